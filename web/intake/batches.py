"""Batches of webhooks. Many deliveries are committed in one transaction, which skips locked rows where it can.

One consumer takes at most `BATCH` queued deliveries and commits them in a thread. The accounts take turns in each
batch. A burst of one account therefore delays other accounts by about one batch.

If another session has locked the rows of a delivery, the delivery is *contended*. The batch is committed without the
contended delivery, which is retried for `CONTENDED_FOR` seconds. If a batch fails for another reason, it is split into
parts, until each delivery that causes a failure is alone in its part. If the database cannot be used, the deliveries
are answered with 503 at once. The consumer works on retries and parts only for a limited time between two batches of
new deliveries (law L14).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum, auto

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from models.db.engine import StartOver
from models.intake import intake
from models.intake.binding_locks import Contended
from ostler.logging import get_logger
from ostler.reasons import cause_of
from web.intake.turns import Turns

BATCH = 200
"""Maximum number of deliveries in one transaction."""

LOCK_MS = 100
"""Milliseconds that a batch waits for a lock that it cannot skip.

Such a lock belongs to another session with an uncommitted insert of the same job or GUID.
"""

PART_LOCK_MS = 5
"""Milliseconds that a part of a failed batch waits for a lock that it cannot skip.

This time is shorter than `LOCK_MS`, because many parts might have to wait one after the other.
"""

PARTS = 8
"""Number of parts into which a failed batch is split."""

SPLIT_WITHIN = 7.0
"""Maximum seconds during which the parts of a failed batch are tried.

Deliveries that are not stored after this time are answered with 503. GitHub waits 10 s for an answer.
"""

SHARE = 0.1
"""Seconds that the consumer works on parts and contended deliveries before it takes a batch of new deliveries."""

CONTENDED_FOR = 1.0
"""Seconds for which a contended delivery is retried. After this time it is answered with 503."""

TRY_AGAIN_AFTER = 0.2
"""Seconds between two tries of a contended delivery."""

ROUNDS = 3
"""Maximum number of tries of one batch. Each try leaves out the deliveries that were contended in an earlier try.

More than one try is needed, because other sessions might lock further rows after the first try.
"""

log = get_logger(__name__)


class NotStored(Exception):
    """Raised for a delivery that was not stored.

    `later` is True if a later try of the same delivery might store it.
    """

    def __init__(self, *, later: bool) -> None:
        super().__init__("not stored")
        self.later = later


class _Undone(Enum):
    """Reasons why a try did not store a delivery."""

    CONTENDED = auto()
    """Another session holds locks on the rows of the delivery."""
    SPLIT = auto()
    """The batch of the delivery failed, and another delivery might be the cause."""
    AWAY = auto()
    """The database cannot be used now."""
    FAILED = auto()
    """The database refused the rows of the delivery, and a retry would fail in the same way."""


_Apply = Callable[[Sequence[intake.Received], int], intake.Applied]


@dataclass(slots=True)
class _Waiting:
    received: intake.Received
    answer: asyncio.Future[intake.Outcome]
    contended_since: float | None = None

    def end(self, outcome: intake.Outcome) -> None:
        if not self.answer.done():  # the request might have been cancelled
            self.answer.set_result(outcome)

    def refuse(self, *, later: bool = True) -> None:
        if not self.answer.done():
            self.answer.set_exception(NotStored(later=later))


@dataclass(frozen=True, slots=True)
class _Group:
    """Deliveries that are committed in one transaction.

    They are tried only between the times `at` and `until`, which are in seconds of the monotonic clock.
    """

    waiting: Sequence[_Waiting]
    lock_ms: int
    at: float = 0.0
    until: float = math.inf


@dataclass(frozen=True, slots=True)
class _Result:
    """Result of one attempt to commit a group of deliveries.

    `applied` has the effects of the commit. It is None if nothing was committed. `answers` has one answer for each
    delivery, in the order of the deliveries.
    """

    applied: intake.Applied | None
    answers: Sequence[intake.Outcome | _Undone]


class Batches:
    """Commits deliveries in batches, from `start` until `stop`.

    `apply` commits a batch. It gets the deliveries, and the number of milliseconds that it may wait for a lock.
    `applied` is called in the event loop with the effects of each committed batch.
    """

    def __init__(
        self,
        *,
        apply: _Apply,
        applied: Callable[[intake.Applied], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._apply = apply
        self._applied = applied
        self._monotonic = monotonic
        self._queue: Turns[_Waiting] = Turns()  # the caller limits its length
        self._changed = asyncio.Event()
        self._aside: list[_Group] = []
        self._thread: ThreadPoolExecutor | None = None
        self._consumer: asyncio.Task[None] | None = None

    @property
    def depth(self) -> int:
        """Return how many deliveries wait for their transaction."""
        return len(self._queue) + sum(len(group.waiting) for group in self._aside)

    @property
    def running(self) -> bool:
        """Return whether new deliveries are accepted."""
        return self._consumer is not None

    def start(self) -> None:
        """Start to accept deliveries. Call it inside the event loop."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="intake")
        self._consumer = asyncio.get_running_loop().create_task(self._consume(), name="intake")

    async def stop(self) -> None:
        """Stop accepting deliveries, and wait until all accepted deliveries are answered."""
        consumer, thread = self._consumer, self._thread
        self._consumer = None
        if consumer is None or thread is None:
            return
        self._changed.set()
        await consumer
        thread.shutdown()

    async def store(self, received: intake.Received, *, within: float) -> intake.Outcome:
        """Queue a delivery, wait for its commit, and return its outcome.

        Raises `NotStored` if the delivery was not stored. Raises TimeoutError after `within` seconds. The delivery
        might then still be stored later.
        """
        waiting = _Waiting(received, asyncio.get_running_loop().create_future())
        self._queue.put(received.event.owner_id, waiting)
        self._changed.set()
        return await asyncio.wait_for(waiting.answer, within)

    def make_room(self, owner_id: int) -> bool:
        """Refuse the newest delivery of the account with the most queued deliveries.

        Return True if a delivery was refused.

        `owner_id` is the account of a new delivery. Return False and refuse nothing if the account with the most
        deliveries would then have fewer deliveries than `owner_id` with its new delivery.
        """
        evicted = self._queue.evict(owner_id)
        if evicted is not None:
            evicted.refuse()
        return evicted is not None

    # Consumer

    async def _consume(self) -> None:
        going_on = True
        while going_on or self._aside:
            if going_on:
                batch, going_on = await self._take()
                if batch:
                    await self._resolve(_Group(batch, lock_ms=LOCK_MS))
            else:
                await asyncio.sleep(self._pause() or 0)
            await self._work_aside()

    def _pause(self) -> float | None:
        """Return the seconds until the next try of a group in `_aside`. Return None if `_aside` is empty.

        `_aside` has the groups of deliveries that are tried again: contended deliveries, and parts of failed batches.
        """
        return max(0.0, min(group.at for group in self._aside) - self._monotonic()) if self._aside else None

    async def _take(self) -> tuple[list[_Waiting], bool]:
        """Wait for a batch of new deliveries. Return the batch, and a flag.

        The batch is empty if the next try of a group in `_aside` is due before a delivery arrives. The flag is False if
        the process is stopping and the queue is empty. The consumer then takes no further batch.
        """
        try:
            async with asyncio.timeout(self._pause()):
                while not self._queue and self.running:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return [], True
        batch = self._queue.take(BATCH)
        return batch, self.running or bool(self._queue)

    async def _work_aside(self) -> None:
        """Try the groups in `_aside` whose next try is due, one after the other, for about `SHARE` seconds."""
        end = self._monotonic() + SHARE
        due = [group for group in self._aside if group.at <= self._monotonic()]
        for group in due:
            self._aside.remove(group)
            if self._monotonic() >= group.until:
                for waiting in group.waiting:
                    waiting.refuse()
            else:
                await self._resolve(group)
            if self._monotonic() >= end:
                return

    async def _resolve(self, group: _Group) -> None:
        received = [waiting.received for waiting in group.waiting]
        result = await asyncio.get_running_loop().run_in_executor(self._thread, self._commit, received, group.lock_ms)
        contended: list[_Waiting] = []
        parts: list[_Waiting] = []
        for waiting, answer in zip(group.waiting, result.answers, strict=True):
            match answer:
                case _Undone.SPLIT:
                    parts.append(waiting)
                case _Undone.CONTENDED:
                    contended.append(waiting)
                case _Undone.AWAY | _Undone.FAILED:
                    waiting.refuse(later=answer is _Undone.AWAY)
                case _:
                    event = waiting.received.event
                    log.info(
                        "webhook.stored",
                        delivery=waiting.received.guid,
                        job=event.job_id,
                        action=event.action,
                        outcome=answer,
                    )
                    waiting.end(answer)
        now = self._monotonic()
        if parts:
            self._split(group, parts, now)
        if again := [waiting for waiting in contended if self._may_try_again(waiting, now)]:
            self._aside.append(_Group(again, at=now + TRY_AGAIN_AFTER, lock_ms=PART_LOCK_MS))
        if result.applied is not None:
            try:
                self._applied(result.applied)
            except Exception:
                # A lost wake costs only seconds (L6). Without the consumer, no webhook would be stored.
                log.exception("webhook.follow_up_messages_not_sent")

    def _split(self, group: _Group, waiting: Sequence[_Waiting], now: float) -> None:
        until = now + SPLIT_WITHIN if group.until == math.inf else group.until
        size = math.ceil(len(waiting) / PARTS)
        self._aside += [
            _Group(waiting[start : start + size], at=now, until=until, lock_ms=PART_LOCK_MS)
            for start in range(0, len(waiting), size)
        ]

    def _may_try_again(self, waiting: _Waiting, now: float) -> bool:
        """Return True if a contended delivery is retried.

        If the delivery has been contended for `CONTENDED_FOR` seconds, refuse the delivery and return False.
        """
        if waiting.contended_since is None:
            waiting.contended_since = now
        if now - waiting.contended_since < CONTENDED_FOR:
            return not waiting.answer.done()
        received = waiting.received
        log.warning("webhook.not_stored_because_rows_are_locked", delivery=received.guid, job=received.event.job_id)
        waiting.refuse()
        return False

    # Thread

    def _commit(self, batch: Sequence[intake.Received], lock_ms: int) -> _Result:
        """Commit a batch without its contended deliveries.

        Every error becomes an answer in the result, so this method raises nothing.
        """
        answers: list[intake.Outcome | _Undone] = [_Undone.CONTENDED] * len(batch)
        left = list(range(len(batch)))
        for _ in range(ROUNDS):
            try:
                applied = self._apply([batch[place] for place in left], lock_ms)
            except Contended as contended:
                left = [place for place in left if batch[place].event.job_id not in contended.jobs]
                if not left:
                    break
            except Exception as error:  # noqa: BLE001  an error of one row must not stop other rows (L14)
                undone = _judge(error, [batch[place] for place in left])
                for place in left:
                    answers[place] = undone
                break
            else:
                for place, outcome in zip(left, applied.outcomes, strict=True):
                    answers[place] = outcome
                return _Result(applied, answers)
        return _Result(None, answers)


def _judge(error: Exception, batch: Sequence[intake.Received]) -> _Undone:
    """Return the reason why a failed batch stored none of its deliveries. Write the reason to the log."""
    cause = "other sessions changed the rows during each attempt" if isinstance(error, StartOver) else cause_of(error)
    if is_away(error):
        log.error("webhook.database_unavailable", deliveries=len(batch), error=cause)
        return _Undone.AWAY
    if len(batch) > 1:
        log.warning("webhook.batch_split_after_error", deliveries=len(batch), error=cause)
        return _Undone.SPLIT
    if is_contended(error):
        return _Undone.CONTENDED
    log.error(  # without its text, because the text of a database error might contain the row
        "webhook.not_stored",
        delivery=batch[0].guid,
        job=batch[0].event.job_id,
        error=cause,
        sqlstate=getattr(getattr(error, "orig", None), "pgcode", None),
    )
    return _Undone.FAILED


def is_away(error: Exception) -> bool:
    """Return whether an error means that the database cannot be used now.

    Such an error does not depend on the rows of the transaction.
    """
    if isinstance(error, PoolTimeoutError):
        return True
    if not isinstance(error, DBAPIError):
        return False
    if error.connection_invalidated:
        return True
    code = getattr(error.orig, "pgcode", None)
    if code is None:
        return isinstance(error, OperationalError | InterfaceError)
    # Connection errors, lack of resources, shutdown or start of the server, read-only standby.
    return str(code)[:2] in {"08", "53"} or code in {"57P01", "57P02", "57P03", "25006"}


def is_contended(error: Exception) -> bool:
    """Return whether an error means that the transaction conflicted with locks of other sessions.

    A retry of the same delivery might succeed.
    """
    if isinstance(error, StartOver):
        return True
    # Deadlock, serialization failure, lock timeout, statement timeout.
    return getattr(getattr(error, "orig", None), "pgcode", None) in {"40P01", "40001", "55P03", "57014"}

"""Batches of webhooks: commit many deliveries in one transaction, none behind a row that another session holds.

One consumer takes what is queued, at most `BATCH` deliveries, and commits it in a thread. The accounts take turns in
each batch, so that a burst of one account delays no other by more than the batch that is under way. A delivery whose
rows are locked by another session is *contended*: the batch is committed without it, and it is tried again until
`CONTENDED_FOR` has passed. A batch that fails for another reason is split until the deliveries at fault stand alone.
What is tried again or split gets a share of the consumer's time, between the batches of new deliveries (law L14).
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
from web.intake.turns import Turns

BATCH = 200
"""Deliveries of one transaction at most."""

LOCK_MS = 100
"""Milliseconds that a batch waits for a lock that cannot be skipped: an uncommitted insert of the same job or GUID."""

PART_LOCK_MS = 5
"""Milliseconds that a part of a failed batch waits for such a lock; many parts may wait one after the other."""

PARTS = 8
"""Parts that a failed batch is split into."""

SPLIT_WITHIN = 7.0
"""Seconds that the parts of a failed batch may take; the rest gets 503. GitHub waits 10 s for an answer."""

SHARE = 0.1
"""Seconds after which parts and contended deliveries let the next batch of new deliveries go first."""

CONTENDED_FOR = 1.0
"""Seconds that a contended delivery is tried again before it gets 503."""

TRY_AGAIN_AFTER = 0.2
"""Seconds between two tries of a contended delivery."""

ROUNDS = 3
"""Times that one batch leaves contended deliveries out; locks may be taken between two rounds."""

log = get_logger(__name__)


class NotStored(Exception):
    """Raised for a delivery that was not stored; `later`: the same delivery may be stored later."""

    def __init__(self, *, later: bool) -> None:
        super().__init__("not stored")
        self.later = later


class _Undone(Enum):
    """Why a delivery was not stored by one try."""

    CONTENDED = auto()
    """Another session holds its rows."""
    SPLIT = auto()
    """Its batch failed, and another delivery may be at fault."""
    AWAY = auto()
    """The database cannot be used now."""
    FAILED = auto()
    """Its rows were refused, and would be again."""


_Apply = Callable[[Sequence[intake.Received], int], intake.Applied]


@dataclass(slots=True)
class _Waiting:
    received: intake.Received
    answer: asyncio.Future[intake.Outcome]
    contended_since: float | None = None

    def end(self, outcome: intake.Outcome) -> None:
        if not self.answer.done():  # its client may have gone
            self.answer.set_result(outcome)

    def refuse(self, *, later: bool = True) -> None:
        if not self.answer.done():
            self.answer.set_exception(NotStored(later=later))


@dataclass(frozen=True, slots=True)
class _Group:
    """Deliveries of one transaction, to be tried from `at` until `until`, on the consumer's clock."""

    waiting: Sequence[_Waiting]
    lock_ms: int
    at: float = 0.0
    until: float = math.inf


@dataclass(frozen=True, slots=True)
class _Result:
    """What became of a group in the thread: its effects, and an answer for each delivery in turn."""

    applied: intake.Applied | None
    answers: Sequence[intake.Outcome | _Undone]


class Batches:
    """Commits deliveries by `apply`, in batches, between `start` and `stop`.

    `apply` gets deliveries and the milliseconds that it may wait for a lock. `applied` is called in the event loop with
    the effects of each committed batch.
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
        self._queue: Turns[_Waiting] = Turns()  # bounded by the caller
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
        """Return whether deliveries are taken."""
        return self._consumer is not None

    def start(self) -> None:
        """Begin to take deliveries; call it inside the event loop."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="intake")
        self._consumer = asyncio.get_running_loop().create_task(self._consume(), name="intake")

    async def stop(self) -> None:
        """Take nothing new, answer what was taken, and return."""
        consumer, thread = self._consumer, self._thread
        self._consumer = None
        if consumer is None or thread is None:
            return
        self._changed.set()
        await consumer
        thread.shutdown()

    async def store(self, received: intake.Received, *, within: float) -> intake.Outcome:
        """Return what became of a delivery once it is committed.

        Raises `NotStored`, and TimeoutError after `within` seconds: it may be stored later all the same.
        """
        waiting = _Waiting(received, asyncio.get_running_loop().create_future())
        self._queue.put(received.event.owner_id, waiting)
        self._changed.set()
        return await asyncio.wait_for(waiting.answer, within)

    def make_room(self, owner_id: int) -> bool:
        """Refuse the newest delivery of the account that has the most queued; False when `owner_id` has as many."""
        evicted = self._queue.evict(owner_id)
        if evicted is not None:
            evicted.refuse()
        return evicted is not None

    # The consumer

    async def _consume(self) -> None:
        going_on = True
        while going_on or self._aside:
            if going_on:
                batch, going_on = await self._take()
                if batch:
                    await self._settle(_Group(batch, lock_ms=LOCK_MS))
            else:
                await asyncio.sleep(self._pause() or 0)
            await self._work_aside()

    def _pause(self) -> float | None:
        """Return the seconds until something put aside is due; None when nothing is."""
        return max(0.0, min(group.at for group in self._aside) - self._monotonic()) if self._aside else None

    async def _take(self) -> tuple[list[_Waiting], bool]:
        """Return a batch of new deliveries, empty when something put aside is due first; False at the end."""
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
        """Try again what is due, in turn, for about `SHARE`."""
        end = self._monotonic() + SHARE
        due = [group for group in self._aside if group.at <= self._monotonic()]
        for group in due:
            self._aside.remove(group)
            if self._monotonic() >= group.until:
                for waiting in group.waiting:
                    waiting.refuse()
            else:
                await self._settle(group)
            if self._monotonic() >= end:
                return

    async def _settle(self, group: _Group) -> None:
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
            except Exception:  # a lost hint costs seconds (L6), a dead consumer every webhook
                log.exception("webhook.publish_failed")

    def _split(self, group: _Group, waiting: Sequence[_Waiting], now: float) -> None:
        until = now + SPLIT_WITHIN if group.until == math.inf else group.until
        size = math.ceil(len(waiting) / PARTS)
        self._aside += [
            _Group(waiting[start : start + size], at=now, until=until, lock_ms=PART_LOCK_MS)
            for start in range(0, len(waiting), size)
        ]

    def _may_try_again(self, waiting: _Waiting, now: float) -> bool:
        """Return whether a contended delivery is tried again; else it is answered."""
        if waiting.contended_since is None:
            waiting.contended_since = now
        if now - waiting.contended_since < CONTENDED_FOR:
            return not waiting.answer.done()
        received = waiting.received
        log.warning("webhook.row_contended", delivery=received.guid, job=received.event.job_id)
        waiting.refuse()
        return False

    # In the thread

    def _commit(self, batch: Sequence[intake.Received], lock_ms: int) -> _Result:
        """Apply what can be applied of a batch; raises nothing."""
        answers: list[intake.Outcome | _Undone] = [_Undone.CONTENDED] * len(batch)
        left = list(range(len(batch)))
        for _ in range(ROUNDS):
            try:
                applied = self._apply([batch[place] for place in left], lock_ms)
            except Contended as contended:
                left = [place for place in left if batch[place].event.job_id not in contended.jobs]
                if not left:
                    break
            except Exception as error:  # noqa: BLE001  whatever a row did, the others must not wait for it (L14)
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
    """Return why none of the deliveries of a batch that failed was stored."""
    if is_away(error):
        log.error("webhook.database_away", deliveries=len(batch), error=type(error).__name__)
        return _Undone.AWAY
    if len(batch) > 1:
        log.warning("webhook.batch_failed", deliveries=len(batch), error=type(error).__name__)
        return _Undone.SPLIT
    if is_contended(error):
        return _Undone.CONTENDED
    log.error(  # the text of a database error may hold the row
        "webhook.row_failed",
        delivery=batch[0].guid,
        job=batch[0].event.job_id,
        error=type(error).__name__,
        code=getattr(getattr(error, "orig", None), "pgcode", None),
    )
    return _Undone.FAILED


def is_away(error: Exception) -> bool:
    """Return whether the database cannot be reached or used now, whatever the row."""
    if isinstance(error, PoolTimeoutError):
        return True
    if not isinstance(error, DBAPIError):
        return False
    if error.connection_invalidated:
        return True
    code = getattr(error.orig, "pgcode", None)
    if code is None:
        return isinstance(error, OperationalError | InterfaceError)
    # Connection exceptions, out of resources, shutdown and start, read-only standby.
    return str(code)[:2] in {"08", "53"} or code in {"57P01", "57P02", "57P03", "25006"}


def is_contended(error: Exception) -> bool:
    """Return whether others kept the rows of a delivery for too long: the same delivery may do later."""
    if isinstance(error, StartOver):
        return True
    # Deadlock, serialization failure, lock timeout, statement timeout.
    return getattr(getattr(error, "orig", None), "pgcode", None) in {"40P01", "40001", "55P03", "57014"}

"""Offers of held polls, written and withdrawn in batches by one task.

While this process receives no notices, it writes no offers. Otherwise it would not detect a claim on an offered Pod,
and the delivery would be late. When notices arrive again, the task offers every Pod that has a held poll. It also
queries the claims of these Pods, because notices might have been lost.

Every poll of the process depends on this task, so the task waits at most 50 ms for a locked row (law L14). If another
transaction has locked the rows of a poll, the poll is tried again after a pause. If the poll was never offered, it is
answered with 503 after three retries.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace

from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from models.db.engine import is_locked
from models.state import offers
from ostler.clock import utcnow
from ostler.logging import get_logger
from ostler.reasons import words_of
from rules.claims.poll_answers import Answer, PollFacts, Verdict, answer
from web.process.publisher import Publisher
from web.process.threads import Threads
from web.runners.held import Poll

BATCH_EVERY = 0.05
"""Seconds that the task waits before a statement, so that several polls share the statement."""
MOST_FRESH = 500
HALVING_WITHIN = 0.5
"""Seconds for which a batch with a locked row is split into halves again and again.

The polls that are not offered in this time are tried again later.
"""
_FIRST_PAUSE = 0.1
"""Seconds until the first retry of a poll with a locked row.

The pause doubles with each try, up to `_LONGEST_PAUSE`.
"""
_LONGEST_PAUSE = 5.0
_FRESH_TRIES = 3
_WITHDRAW_PAUSE = 1.0
"""Seconds until Ostler tries again to withdraw an offer with a locked row."""

log = get_logger(__name__)


class Offering:
    """The held polls by Pod UID, and the task that writes their offers."""

    def __init__(self, *, threads: Threads, publisher: Publisher, web_id: str, counts: Counter[str]) -> None:
        self.held: dict[str, Poll] = {}
        self._threads = threads
        self._publisher = publisher
        self._web_id = web_id
        self._counts = counts
        self._waiting: dict[str, Poll] = {}
        self._withdrawn: list[tuple[str, str]] = []
        self._asked = False
        self._changed = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        self.is_hearing = False

    def start(self) -> None:
        """Start the task."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End the task after its current statement, and withdraw every offer of this process."""
        self._stopping = True
        self._changed.set()
        if self._task is not None:
            await self._task
        await self.leave()

    async def leave(self) -> None:
        """Withdraw every offer of this process, and delete its heartbeat."""
        try:
            await self._threads.offer(lambda db: offers.leave(db, web_id=self._web_id))
        except SQLAlchemyError as error:
            # The offers expire, and without a heartbeat the matcher does not claim them.
            log.warning("offers.not_withdrawn", error=words_of(error))

    def add(self, poll: Poll) -> None:
        """Queue a poll, so that the next batch writes the offer and reads the rows of the Pod."""
        self._waiting[poll.pod_uid] = poll
        self._changed.set()

    def add_later(self, poll: Poll) -> None:
        """Queue a poll again after a pause, because another transaction has locked a row of its Pod.

        The pause doubles with each try.
        """
        if poll.retry is not None:
            poll.retry.cancel()
        pause = min(_FIRST_PAUSE * 2**poll.tries, _LONGEST_PAUSE)
        poll.tries += 1
        poll.retry = asyncio.get_running_loop().call_later(pause, self._add_held, poll)

    def _add_held(self, poll: Poll) -> None:
        if self.held.get(poll.pod_uid) is poll:
            self.add(poll)

    def drop(self, poll: Poll, *, withdraw: bool) -> None:
        """Remove a poll that has ended.

        If `withdraw` is True, also withdraw the offer of the poll, because the client is gone.
        """
        if poll.retry is not None:
            poll.retry.cancel()
        if self._waiting.get(poll.pod_uid) is poll:
            del self._waiting[poll.pod_uid]
        if withdraw and poll.written and not self._stopping:
            self._withdrawn.append((poll.pod_uid, poll.id))
            self._changed.set()

    def hearing(self) -> None:
        """Offer every Pod that has a held poll again."""
        self.is_hearing = True
        self._waiting.update(self.held)
        self._asked = True
        self._changed.set()

    def deaf(self) -> None:
        """Stop writing offers until notices arrive again."""
        self.is_hearing = False

    def tick(self) -> None:
        """Query the claims of the Pods whose polls this process holds, because notices might have been lost."""
        self._asked = True
        self._changed.set()

    async def _run(self) -> None:
        while not self._stopping:
            await self._changed.wait()
            await asyncio.sleep(BATCH_EVERY)
            self._changed.clear()
            await self._flush()

    async def _flush(self) -> None:
        for part in (self._offer_waiting, self._withdraw, self._ask):
            await self._guarded(part)

    async def _guarded(self, part: Callable[[], Awaitable[None]]) -> None:
        """Run one part of the work. If this part fails, the other parts still run."""
        try:
            await part()
        except SQLAlchemyError as error:
            self._counts["offers.failed"] += 1
            log.warning("offers.step_failed", step=part.__name__, error=words_of(error), held_polls=len(self.held))
        except Exception:
            # Every poll of this process depends on this task, so no error of one row may end it.
            self._counts["offers.failed"] += 1
            log.exception("offers.step_failed", step=part.__name__, held_polls=len(self.held))

    async def _offer_waiting(self) -> None:
        # Polls that arrive during a batch go into the next batch. Otherwise most statements would have only one or two
        # polls.
        due = len(self._waiting)
        while due > 0 and self._waiting and self.is_hearing and not self._stopping:
            taken = self._take()
            due -= len(taken)
            await self._offer(taken)

    async def _withdraw(self) -> None:
        if not self._withdrawn:
            return
        withdrawn, self._withdrawn = self._withdrawn, []
        try:
            left = await self._threads.offer(lambda db: offers.withdraw(db, withdrawn))
        except (OperationalError, PoolTimeout):
            self._withdraw_later(withdrawn)
            raise
        if left:
            self._withdraw_later(left)

    def _withdraw_later(self, polls: list[tuple[str, str]]) -> None:
        # Until the retry, the matcher might claim a Pod that has no poll to deliver to.
        self._withdrawn += polls
        asyncio.get_running_loop().call_later(_WITHDRAW_PAUSE, self._changed.set)

    def _take(self) -> list[Poll]:
        """Remove polls from the queue, and return them.

        The method returns all queued polls that were offered before, and up to `MOST_FRESH` polls that were never
        offered.
        """
        again = [poll for poll in self._waiting.values() if poll.written]
        fresh = [poll for poll in self._waiting.values() if not poll.written][:MOST_FRESH]
        for poll in (*again, *fresh):
            del self._waiting[poll.pod_uid]
        return again + fresh

    async def _offer(self, polls: list[Poll]) -> None:
        rows = [poll.polling() for poll in polls]
        for poll in polls:
            poll.written = True
        await self._offer_rows(polls, rows, until=time.monotonic() + HALVING_WITHIN)

    async def _offer_rows(self, polls: list[Poll], rows: list[offers.Polling], *, until: float) -> None:
        now = utcnow()
        try:
            pods = await self._threads.offer(lambda db: offers.offer(db, rows, web_id=self._web_id, now=now))
        except (OperationalError, PoolTimeout) as error:
            if is_locked(error):
                await self._offer_around(polls, rows, until=until)
                return
            self._miss(polls, rows)
            raise
        except Exception:
            if len(polls) == 1:
                polls[0].resolve(Answer(Verdict.NOT_YET, "an error occurred when the offer of this Pod was written"))
                raise
            await self._offer_halves(polls, rows, until=until)
            return
        self._counts["offers.statements"] += 1
        self._publisher.wake(sorted({pod.pool_id for pod in pods if pod.wakes and pod.pool_id is not None}))
        facts = {pod.pod_uid: pod.facts for pod in pods}
        for poll, row in zip(polls, rows, strict=True):
            found = self._judge(poll, facts[poll.pod_uid])
            if found.verdict is Verdict.NOT_YET and facts[poll.pod_uid].locked:
                self._put_off(poll, row, found)
            else:
                poll.resolve(found)

    @staticmethod
    def _judge(poll: Poll, facts: PollFacts) -> Answer:
        """Return the answer to a poll that follows from `facts`, the rows of its Pod.

        If the poll cancels an un-stamp, record its claim in the poll, so that later tries also cancel the un-stamp.
        """
        if facts.claim is not None and facts.claim.id == poll.cancels:
            facts = replace(facts, arrived=True)
        found = answer(facts)
        if found.cancels_unstamp:
            poll.cancels = found.claim_id
        return found

    def _miss(self, polls: list[Poll], rows: list[offers.Polling]) -> None:
        """Handle a failed statement.

        Polls that were never offered are answered with 503. All other polls are queued again.
        """
        for poll, row in zip(polls, rows, strict=True):
            if not row.again:
                poll.resolve(Answer(Verdict.NOT_YET, "the database did not answer"))
            elif self.held.get(poll.pod_uid) is poll:
                self._waiting.setdefault(poll.pod_uid, poll)

    def _put_off(self, poll: Poll, row: offers.Polling, found: Answer) -> None:
        """Queue a poll with a locked row again after a pause.

        If the poll was never offered and has used up its tries, answer the poll with `found` instead.
        """
        self._counts["offers.locked"] += 1
        poll.written = row.again
        if not row.again and poll.tries >= _FRESH_TRIES:
            poll.resolve(found)
        else:
            self.add_later(poll)

    async def _offer_around(self, polls: list[Poll], rows: list[offers.Polling], *, until: float) -> None:
        """Handle a batch with a locked row that the statement cannot skip.

        Offer the halves of the batch separately. If no time is left, or the batch has only one poll, queue its polls
        again later.
        """
        if len(polls) > 1 and time.monotonic() < until:
            await self._offer_halves(polls, rows, until=until)
            return
        log.warning("offers.postponed_because_rows_are_locked", polls=len(polls))
        for poll, row in zip(polls, rows, strict=True):
            self._put_off(poll, row, Answer(Verdict.NOT_YET, "another transaction has locked a row of this Pod"))

    async def _offer_halves(self, polls: list[Poll], rows: list[offers.Polling], *, until: float) -> None:
        """Offer the two halves of a failed batch separately, so that one row blocks no other poll (law L14)."""
        middle = len(polls) // 2
        for half, rest in ((slice(None, middle), slice(middle, None)), (slice(middle, None), slice(0))):
            try:
                await self._offer_rows(polls[half], rows[half], until=until)
            except (OperationalError, PoolTimeout):
                self._miss(polls[rest], rows[rest])
                raise
            except Exception:
                self._counts["offers.bad_row"] += 1
                log.exception("offers.row_failed", pod_uids=[poll.pod_uid for poll in polls[half]])

    async def _ask(self) -> None:
        if not self._asked or not self.is_hearing:
            return
        self._asked = False
        minted, changed = await self._threads.offer(lambda db: offers.unanswered(db, web_id=self._web_id))
        for claim in minted:
            poll = self.held.get(claim.pod_uid)
            if poll is not None and poll.id == claim.poll_id:
                poll.resolve(Answer(Verdict.DELIVER, "the claim was found by a query", claim.claim_id))
        for pod_uid in changed:
            if pod_uid in self.held:
                self.add(self.held[pod_uid])

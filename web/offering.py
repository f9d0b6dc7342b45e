"""Offers of held polls, written and withdrawn in batches by one task.

Nothing is offered while this process is deaf: a claim on such a Pod would wait for its delivery. When it
hears again, every held Pod is offered in one statement, which also tells what was missed.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from models import offers
from ostler.clock import utcnow
from ostler.logging import get_logger
from rules.poll_answers import Answer, Verdict, answer
from web.held import Poll
from web.publisher import Publisher
from web.threads import Threads

BATCH_EVERY = 0.05
"""Seconds; how long a poll waits for others to share its statement."""
MOST_FRESH = 500

log = get_logger(__name__)


class Offering:
    """The dict of held polls, and the task that keeps their offers."""

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
        """End the task after the statement that it is at, and withdraw every offer of this process."""
        self._stopping = True
        self._changed.set()
        if self._task is not None:
            await self._task
        await self.leave()

    async def leave(self) -> None:
        """Withdraw every offer of this process, and its heartbeat."""
        try:
            await self._threads.transaction(lambda db: offers.leave(db, web_id=self._web_id))
        except SQLAlchemyError as error:
            # They run out by themselves, and without a heartbeat nobody takes them.
            log.warning("offers.not_withdrawn", error=type(error).__name__)

    def add(self, poll: Poll) -> None:
        """Have a poll offered and judged with the next batch."""
        self._waiting[poll.pod_uid] = poll
        self._changed.set()

    def drop(self, poll: Poll, *, withdraw: bool) -> None:
        """Forget a poll that ended; `withdraw` its offer too when nobody waits for it any more."""
        if self._waiting.get(poll.pod_uid) is poll:
            del self._waiting[poll.pod_uid]
        if withdraw and poll.written and not self._stopping:
            self._withdrawn.append((poll.pod_uid, poll.id))
            self._changed.set()

    def hearing(self) -> None:
        """Offer every held Pod again."""
        self.is_hearing = True
        self._waiting.update(self.held)
        self._asked = True
        self._changed.set()

    def deaf(self) -> None:
        """Write nothing until we hear again."""
        self.is_hearing = False

    def tick(self) -> None:
        """Ask for claims that wait for one of our Pods."""
        self._asked = True
        self._changed.set()

    async def _run(self) -> None:
        while not self._stopping:
            await self._changed.wait()
            await asyncio.sleep(BATCH_EVERY)
            self._changed.clear()
            try:
                await self._flush()
            except SQLAlchemyError as error:
                self._counts["offers.failed"] += 1
                log.warning("offers.failed", error=type(error).__name__, held=len(self.held))
            except Exception:
                # Every poll of this process waits for this task: it outlives whatever one row makes of it.
                self._counts["offers.failed"] += 1
                log.exception("offers.failed", held=len(self.held))

    async def _flush(self) -> None:
        # What comes while a batch is written shares the next one: else each statement would carry a poll or two.
        due = len(self._waiting)
        while due > 0 and self._waiting and self.is_hearing and not self._stopping:
            taken = self._take()
            due -= len(taken)
            await self._offer(taken)
        if self._withdrawn:
            withdrawn, self._withdrawn = self._withdrawn, []
            await self._threads.transaction(lambda db: offers.withdraw(db, withdrawn))
        if self._asked and self.is_hearing:
            self._asked = False
            await self._ask()

    def _take(self) -> list[Poll]:
        """Take all polls that were offered before, and a batch of those that were not."""
        again = [poll for poll in self._waiting.values() if poll.written]
        fresh = [poll for poll in self._waiting.values() if not poll.written][:MOST_FRESH]
        for poll in (*again, *fresh):
            del self._waiting[poll.pod_uid]
        return again + fresh

    async def _offer(self, polls: list[Poll], rows: list[offers.Polling] | None = None) -> None:
        if rows is None:
            rows = [poll.polling() for poll in polls]
            for poll in polls:
                poll.written = True
        now = utcnow()
        try:
            pods = await self._threads.transaction(lambda db: offers.offer(db, rows, web_id=self._web_id, now=now))
        except (OperationalError, PoolTimeout):
            for poll, row in zip(polls, rows, strict=True):
                if not row.again:
                    poll.settle(Answer(Verdict.NOT_YET, "the database did not answer"))
                elif self.held.get(poll.pod_uid) is poll:
                    self._waiting.setdefault(poll.pod_uid, poll)  # it stays held, and is offered with a later batch
            raise
        except Exception:
            if len(polls) == 1:
                polls[0].settle(Answer(Verdict.NOT_YET, "the rows of this Pod cannot be read"))
                raise
            await self._offer_halves(polls, rows)
            return
        self._counts["offers.statements"] += 1
        self._publisher.wake(sorted({pod.pool_id for pod in pods if pod.wakes and pod.pool_id is not None}))
        facts = {pod.pod_uid: pod.facts for pod in pods}
        for poll in polls:
            poll.settle(answer(facts[poll.pod_uid]))

    async def _offer_halves(self, polls: list[Poll], rows: list[offers.Polling]) -> None:
        """Offer the rest of a batch in which a row fails: one bad row blocks nobody (L14)."""
        middle = len(polls) // 2
        for half in (slice(None, middle), slice(middle, None)):
            try:
                await self._offer(polls[half], rows[half])
            except (OperationalError, PoolTimeout):
                raise
            except Exception:
                self._counts["offers.bad_row"] += 1
                log.exception("offers.bad_row", pods=[poll.pod_uid for poll in polls[half]])

    async def _ask(self) -> None:
        minted, changed = await self._threads.transaction(lambda db: offers.unanswered(db, web_id=self._web_id))
        for claim in minted:
            poll = self.held.get(claim.pod_uid)
            if poll is not None and poll.id == claim.poll_id:
                poll.settle(Answer(Verdict.DELIVER, "found by asking", claim.claim_id))
        for pod_uid in changed:
            if pod_uid in self.held:
                self.add(self.held[pod_uid])

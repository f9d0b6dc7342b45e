"""Offers share statements: a poll that arrives during the write of a batch waits for the next batch."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

from k8s_adapters.runners.identity import PodIdentity
from ostler.clock import utcnow
from web.runners.held import Poll
from web.runners.offering import MOST_FRESH, Offering


def poll(number: int) -> Poll:
    identity = PodIdentity(
        namespace="n", service_account="s", pod_name=f"p{number}", pod_uid=f"u{number}", expires_at=utcnow()
    )
    loop = asyncio.get_running_loop()
    return Poll(identity=identity, until=utcnow() + timedelta(seconds=50), ends_at=loop.time() + 40, loop=loop)


class Statements:
    """A stub of the statement. `meanwhile` more polls arrive during each of the first statements."""

    def __init__(self, offering: Offering, *, meanwhile: int) -> None:
        self.batches: list[int] = []
        self._offering = offering
        self._meanwhile = meanwhile

    async def write(self, polls: list[Poll]) -> None:
        self.batches.append(len(polls))
        for number in range(self._meanwhile if len(self.batches) < 10 else 0):
            self._offering.add(poll(10_000 * len(self.batches) + number))


def flush_once(*, waiting: int, meanwhile: int) -> tuple[list[int], bool]:
    """Return the sizes of the statements of one flush, and whether another flush is due."""

    async def act() -> tuple[list[int], bool]:
        nothing: Any = None
        offering = Offering(threads=nothing, publisher=nothing, web_id="w", counts=Counter())
        offering.is_hearing = True
        statements = Statements(offering, meanwhile=meanwhile)
        offering._offer = statements.write  # type: ignore[method-assign]
        for number in range(waiting):
            offering.add(poll(number))
        offering._changed.clear()
        await offering._flush()
        return statements.batches, offering._changed.is_set()

    return asyncio.run(act())


def test_polls_that_come_while_a_statement_runs_share_the_next_one() -> None:
    assert flush_once(waiting=5, meanwhile=2) == ([5], True)


def test_all_that_waited_are_offered_at_once_however_many_they_are() -> None:
    assert flush_once(waiting=2 * MOST_FRESH + 3, meanwhile=0) == ([MOST_FRESH, MOST_FRESH, 3], False)

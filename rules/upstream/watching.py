"""What a change of a runner Pod or of a pool is worth telling: a pure decision.

A hint follows from it, never an act (law L6).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Sight:
    """What the watch remembers of a Pod. `ready`: its container `runner` shows that a job has begun.

    `unstamped`: its poller has ended, and it carries no stamp.
    """

    pool: str
    terminal: bool
    ready: bool
    unstamped: bool = False


class Hint(StrEnum):
    """What a worker is told to check."""

    GONE = "gone"
    """The Pod may be no more: its claim, if it has one, is to be checked."""
    SPENT = "spent"
    """The Pod has ended: its pool wants a successor."""
    EXECUTING = "executing"
    """The Pod's runner has begun a job."""
    UNSTAMPED = "unstamped"
    """The Pod's poller has ended without a stamp: a stamp that is off may return."""


def hints_of(before: Sight | None, after: Sight | None) -> frozenset[Hint]:
    """Return what follows from two sights of one Pod; None is a Pod that is not known, or not there any more."""
    if after is None:
        return frozenset({Hint.GONE})
    hints = set()
    if after.terminal and not (before is not None and before.terminal):
        hints.add(Hint.SPENT)
    if after.ready and not (before is not None and before.ready):
        hints.add(Hint.EXECUTING)
    if after.unstamped and not (before is not None and before.unstamped):
        hints.add(Hint.UNSTAMPED)
    return frozenset(hints)


@dataclass(frozen=True, slots=True)
class PoolObservation:
    """What the watch remembers of a pool: what changes with its spec and its end, and not with its status."""

    name: str
    generation: int
    terminating: bool


def pool_changed(before: PoolObservation | None, after: PoolObservation | None) -> bool:
    """Return whether a pool is to be checked."""
    return before != after

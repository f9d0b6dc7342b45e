"""Hints of the watch: the changes of a runner Pod or a pool that workers should check.

A hint never leads to an action by itself (law L6).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Sight:
    """State of a Pod that the watch remembers. `ready` says that its container `runner` has begun a job.

    `unstamped` says that its poller has ended while it has no stamp.
    """

    pool: str
    terminal: bool
    ready: bool
    unstamped: bool = False


class Hint(StrEnum):
    """Message that asks a worker for a check."""

    GONE = "gone"
    """The Pod might be gone. Check its claim, if it has one."""
    SPENT = "spent"
    """The Pod has ended. Its pool needs a new Pod."""
    EXECUTING = "executing"
    """The Pod's runner has begun a job."""
    UNSTAMPED = "unstamped"
    """The Pod's poller has ended without a stamp. A removed stamp may be put back."""


def hints_of(before: Sight | None, after: Sight | None) -> frozenset[Hint]:
    """Return the hints that follow from two states of one Pod. None stands for a Pod that is unknown or gone."""
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
    """Fields of a pool that the watch remembers.

    These fields change with its spec and its deletion, not with its status.
    """

    name: str
    generation: int
    terminating: bool


def pool_changed(before: PoolObservation | None, after: PoolObservation | None) -> bool:
    """Return whether a pool has to be checked."""
    return before != after

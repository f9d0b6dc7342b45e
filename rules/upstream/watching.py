"""Hints of the watch: the changes of a runner Pod or a pool that workers should check.

A hint alone never leads to an action (law L6).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter


@dataclass(frozen=True, slots=True)
class Sight:
    """State of a Pod that the watch remembers.

    `ready` is true if the Pod's container `runner` has begun a job. `unstamped` is true if the Pod's poller has ended
    while the Pod has no stamp.
    """

    pool: str
    terminal: bool
    ready: bool
    unstamped: bool = False


class Hint(StrEnum):
    """Message that asks a worker for a check."""

    GONE = "gone"
    """The Pod might be gone. If the Pod has a claim, the worker checks the claim."""
    SPENT = "spent"
    """The Pod has ended. The Pod's pool needs a new Pod."""
    EXECUTING = "executing"
    """The Pod's runner has begun a job."""
    UNSTAMPED = "unstamped"
    """The Pod's poller has ended, and the Pod has no stamp.

    If the Pod has a delivered claim, the worker may put the stamp on the Pod again.
    """


_SIGNS: Mapping[Hint, Callable[[Sight], bool]] = {
    Hint.SPENT: attrgetter("terminal"),
    Hint.EXECUTING: attrgetter("ready"),
    Hint.UNSTAMPED: attrgetter("unstamped"),
}


def hints_of(before: Sight | None, after: Sight | None) -> frozenset[Hint]:
    """Return the hints that follow from two states of one Pod.

    `before` is None if the Pod was unknown. `after` is None if the Pod is gone.
    """
    if after is None:
        return frozenset({Hint.GONE})
    return frozenset(hint for hint, sign in _SIGNS.items() if sign(after) and (before is None or not sign(before)))

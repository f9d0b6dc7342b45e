"""Checks of GitHub's runners: the moment that a list proves, and when two lists are two checks.

Callers share a list for a minute, so it might be older than the claim that is judged by it. A list is evidence only for
the time before it was requested, so a caller compares that time, never "now".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

CHECKS_APART = 55.0
"""Seconds between two checks that prove something: a minute, less the jitter of beat. No setting scales it."""

FRESH = CHECKS_APART
"""Shortest time in seconds for which a list is used: so two lists of a scope are always two checks."""

FRESH_TIMES = 2
"""A list that took long to fetch is used for this multiple of that time.

Otherwise a list of thousands of runners would be too old as soon as it is complete, and GitHub would be asked for
nothing else.
"""


@dataclass(frozen=True, slots=True)
class ListedRunner:
    """A runner in a list. `online`: it was connected. `busy`: it executed a job.

    `has_connected`: it was connected at some time. `version`: of its software, if GitHub reports it.
    """

    id: int
    name: str
    online: bool
    busy: bool
    has_connected: bool = False
    version: str | None = None


@dataclass(frozen=True, slots=True)
class RunnerList:
    """All runners of one scope, by name. `taken_at`: time of the request for its first page."""

    taken_at: datetime
    runners: Mapping[str, ListedRunner] = field(default_factory=dict)

    def used_for(self, *, whole_at: datetime) -> float:
        """Return how many seconds after its start the list may be used, from the time of its completion."""
        return max(FRESH, FRESH_TIMES * (whole_at - self.taken_at).total_seconds())

    def age_of(self, since: datetime) -> float:
        """Return the age in seconds of `since` when the list was taken; negative: the list is older."""
        return (self.taken_at - since).total_seconds()

    def is_second_check(self, first: datetime | None) -> bool:
        """Return whether this list and one taken at `first` count as two checks."""
        return first is not None and self.age_of(first) >= CHECKS_APART

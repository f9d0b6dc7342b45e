"""Looks at GitHub's runners: of which moment a list is proof, and when two lists are two checks.

A list is shared by all who want one in that minute, so it may be older than what it is asked about. What it shows, or
does not show, counts for the time before it was begun only; who judges by it compares that time, never "now".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

CHECKS_APART = 55.0
"""Seconds between two checks that prove something: a minute, less what beat's ticks shift. Nothing scales it."""

FRESH = CHECKS_APART
"""Seconds for which a list is used at least: so two lists of a scope are always two checks."""

FRESH_TIMES = 2
"""A list that took long is used for so many times as long: or one of thousands of runners would be too old for anybody
else when it is whole, and GitHub asked for nothing else."""


@dataclass(frozen=True, slots=True)
class ListedRunner:
    """A runner in a list. `online`: it was connected. `busy`: it executed a job.

    `has_connected`: it was connected at some time. `version`: of its software, where GitHub says so.
    """

    id: int
    name: str
    online: bool
    busy: bool
    has_connected: bool = False
    version: str | None = None


@dataclass(frozen=True, slots=True)
class RunnerList:
    """All runners of one scope, by name. `taken_at`: when its first page was asked for."""

    taken_at: datetime
    runners: Mapping[str, ListedRunner] = field(default_factory=dict)

    def used_for(self, *, whole_at: datetime) -> float:
        """Return for how many seconds since it was begun the list is used, by when it was whole."""
        return max(FRESH, FRESH_TIMES * (whole_at - self.taken_at).total_seconds())

    def age_of(self, since: datetime) -> float:
        """Return how many seconds something was old when the list was taken; negative: the list is older."""
        return (self.taken_at - since).total_seconds()

    def is_second_check(self, first: datetime | None) -> bool:
        """Return whether this list and one taken at `first` are two checks."""
        return first is not None and self.age_of(first) >= CHECKS_APART

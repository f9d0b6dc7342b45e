"""Checks of GitHub's runners: the time that a list is evidence for, and when two lists are two checks.

Callers share a list for a minute, so it might be older than the claim that is judged by it. A list is evidence only for
the time before it was requested. A caller must compare that time, never "now".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

CHECKS_APART = 55.0
"""Least seconds between two lists that count as two checks: a minute, less the jitter of beat.

No setting changes it.
"""

FRESH = CHECKS_APART
"""Shortest time in seconds for reusing a list. It is `CHECKS_APART`, so two lists of a scope are always two checks."""

FRESH_TIMES = 2
"""If a list took long to fetch, it is reused for this multiple of the fetch time.

Otherwise a list of thousands of runners would be too old as soon as it is complete, and would be fetched all the time.
"""


@dataclass(frozen=True, slots=True)
class ListedRunner:
    """A runner in a list.

    - `online`: it was connected at the time of the list.
    - `busy`: it executed a job at the time of the list.
    - `has_connected`: it was connected at some time before.
    - `version`: version of its software, or None if GitHub does not report it.
    """

    id: int
    name: str
    online: bool
    busy: bool
    has_connected: bool = False
    version: str | None = None


@dataclass(frozen=True, slots=True)
class RunnerList:
    """All runners of one scope, by name. `taken_at` is the time of the request for its first page."""

    taken_at: datetime
    runners: Mapping[str, ListedRunner] = field(default_factory=dict)

    def used_for(self, *, whole_at: datetime) -> float:
        """Return the seconds after `taken_at` in which the list may be used.

        `whole_at` is the time of its completion.
        """
        return max(FRESH, FRESH_TIMES * (whole_at - self.taken_at).total_seconds())

    def age_of(self, since: datetime) -> float:
        """Return the seconds from `since` to the time of the list. The result is negative if `since` is later."""
        return (self.taken_at - since).total_seconds()

    def is_second_check(self, first: datetime | None) -> bool:
        """Return whether this list and a list taken at `first` count as two checks. Return False if `first` is None."""
        return first is not None and self.age_of(first) >= CHECKS_APART

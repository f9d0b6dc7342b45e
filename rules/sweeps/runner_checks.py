"""Checks of GitHub's runners: the age of a runner list, and when two lists count as two checks.

Callers share a list for about a minute. A caller might therefore use a list to judge a claim that was made after the
list. A list proves nothing about the time after it was requested. A caller must compare times with `taken_at`, never
with the present time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

CHECKS_APART = 55.0
"""Minimum seconds between two lists that count as two checks: a minute, less the jitter of Celery beat.

No setting changes this number.
"""

FRESH = CHECKS_APART
"""Minimum seconds during which a list is reused.

The value is `CHECKS_APART`, so two lists of a scope count as two checks, unless Postgres lost the first list.
"""

FRESH_TIMES = 2
"""Factor for a list that took long to fetch. Such a list is reused for this multiple of the fetch time.

Otherwise a list of thousands of runners would be too old as soon as it is complete, and would be fetched all the time.
"""


@dataclass(frozen=True, slots=True)
class ListedRunner:
    """A runner in a list.

    - `online`: the runner was connected at the time of the list.
    - `busy`: the runner executed a job at the time of the list.
    - `has_connected`: the runner was connected at some time before.
    - `version`: version of the runner's software, or None if GitHub does not report the version.
    """

    id: int
    name: str
    online: bool
    busy: bool
    has_connected: bool = False
    version: str | None = None


@dataclass(frozen=True, slots=True)
class RunnerList:
    """All runners of one scope, by name. `taken_at` is the time when the list's first page was requested."""

    taken_at: datetime
    runners: Mapping[str, ListedRunner] = field(default_factory=dict)

    def used_for(self, *, whole_at: datetime) -> float:
        """Return for how many seconds after `taken_at` the list may be used.

        `whole_at` is the time when the list was complete.
        """
        return max(FRESH, FRESH_TIMES * (whole_at - self.taken_at).total_seconds())

    def age_of(self, since: datetime) -> float:
        """Return the seconds from `since` to `taken_at`. The result is negative if `since` is later than `taken_at`."""
        return (self.taken_at - since).total_seconds()

    def is_second_check(self, first: datetime | None) -> bool:
        """Return whether this list and a list with the time `first` count as two checks.

        Return False if `first` is None.
        """
        return first is not None and self.age_of(first) >= CHECKS_APART

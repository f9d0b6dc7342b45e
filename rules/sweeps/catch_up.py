"""What the sweep `catch_up` makes of what GitHub lists, how much it may ask, and when it asks again where it failed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from rules.claims.machines import JobState

BASE_QUOTA = 5000
"""Calls an hour of an installation whose quota no answer has told yet ("Rate limits for GitHub Apps")."""

LONGEST_WAIT = timedelta(hours=1)


class Catch(StrEnum):
    """What a listed job needs.

    - `bring`: its webhook `queued` never came; it goes the same way now.
    - `finish`: its webhook `completed` never came.
    - `later`: one of these, when it stays so: its webhook may still be on its way.
    - `leave`: nothing; it stands where we think, or others find it.
    """

    BRING = "bring"
    FINISH = "finish"
    LATER = "later"
    LEAVE = "leave"


def judge_listed(
    *,
    status: str,
    created_at: datetime,
    completed_at: datetime | None,
    ours: JobState | None,
    after: timedelta,
    over_after: timedelta,
    now: datetime,
) -> Catch:
    """Return what a job needs that GitHub lists with `status`; `ours` is where we think it stands (None: unknown).

    What runs is left: its runner is bound by other sweeps. What is over is left when we never heard of it.
    """
    if status == "queued" and ours in {None, JobState.WAITING}:
        return Catch.BRING if now - created_at >= after else Catch.LATER
    if status == "completed" and ours not in {None, JobState.COMPLETED}:
        return Catch.FINISH if now - (completed_at or created_at) >= over_after else Catch.LATER
    return Catch.LEAVE


@dataclass(frozen=True, slots=True)
class Purse:
    """What an installation may still be asked, in calls, as of a moment; `quota` is what GitHub allows it an hour."""

    calls: float
    at: datetime
    quota: int

    @classmethod
    def new(cls, *, percent: float, now: datetime) -> Purse:
        """Return that of an installation that was never asked."""
        return cls(_burst(BASE_QUOTA, percent), now, BASE_QUOTA)


def spend(purse: Purse, *, percent: float, now: datetime) -> Purse | None:
    """Take one call out; None when there is none.

    A quarter of the share is there at once and the rest comes evenly, so that no hour holds more than `percent`.
    """
    passed = max(0.0, (now - purse.at).total_seconds())
    burst = _burst(purse.quota, percent)
    calls = min(burst, purse.calls + passed * 0.75 * purse.quota * percent / 100 / 3600)
    return Purse(calls - 1, now, purse.quota) if calls >= 1 else None


def _burst(quota: int, percent: float) -> float:
    return max(1.0, quota * percent / 400)


def wait_after(failures: int, *, least: timedelta) -> timedelta:
    """Return how long a repository is left alone that failed so often in a row: doubling, an hour at most."""
    return min(least * (1 << min(max(failures - 1, 0), 16)), LONGEST_WAIT)

"""Sweep `catch_up`: verdicts on the jobs that GitHub lists, its quota of calls, and its retries.

The quota leaves most of an installation's rate limit to other callers.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from rules.claims.machines import JobState

BASE_QUOTA = 5000
"""Calls per hour of an installation whose quota is still unknown ("Rate limits for GitHub Apps")."""

LONGEST_WAIT = timedelta(hours=1)


class Catch(StrEnum):
    """Action on a listed job.

    - `bring`: its webhook `queued` never arrived. The job is inserted now, in the same way as from the webhook.
    - `finish`: its webhook `completed` never arrived. The job is finished now.
    - `later`: the webhook is missing but might still arrive, so the job is judged again later.
    - `leave`: the row agrees with GitHub, or other sweeps handle the job.
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
    """Return the action on a job that GitHub lists with `status`.

    `ours` is the state of its row, or None without a row. `after` and `over_after` are the times to wait for the
    webhook `queued` or `completed`. A running job is left, because other sweeps bind its runner. A completed job
    without a row is left.
    """
    if status == "queued" and ours in {None, JobState.WAITING}:
        return Catch.BRING if now - created_at >= after else Catch.LATER
    if status == "completed" and ours not in {None, JobState.COMPLETED}:
        return Catch.FINISH if now - (completed_at or created_at) >= over_after else Catch.LATER
    return Catch.LEAVE


@dataclass(frozen=True, slots=True)
class Purse:
    """Remaining calls to an installation at the time `at`. `quota` is GitHub's hourly limit."""

    calls: float
    at: datetime
    quota: int

    @classmethod
    def new(cls, *, percent: float, now: datetime) -> Purse:
        """Return the purse of an installation that was never called."""
        return cls(_burst(BASE_QUOTA, percent), now, BASE_QUOTA)


def spend(purse: Purse, *, percent: float, now: datetime) -> Purse | None:
    """Return the purse after one more call, or None if no call is left.

    A quarter of the share is available at once and the rest accrues evenly, so that no hour contains more than
    `percent` of the quota.
    """
    passed = max(0.0, (now - purse.at).total_seconds())
    burst = _burst(purse.quota, percent)
    calls = min(burst, purse.calls + passed * 0.75 * purse.quota * percent / 100 / 3600)
    return Purse(calls - 1, now, purse.quota) if calls >= 1 else None


def _burst(quota: int, percent: float) -> float:
    return max(1.0, quota * percent / 400)


def wait_after(failures: int, *, least: timedelta) -> timedelta:
    """Return the pause of a repository after this number of consecutive failures. It doubles, up to one hour."""
    return min(least * (1 << min(max(failures - 1, 0), 16)), LONGEST_WAIT)

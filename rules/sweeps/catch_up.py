"""Sweep `catch_up`: verdicts on the jobs that GitHub lists, the sweep's quota of calls, and its retries.

The quota leaves most of an installation's rate limit to other callers.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from rules.claims.machines import JobState

BASE_QUOTA = 5000
"""Calls per hour of an installation whose quota is not known yet ("Rate limits for GitHub Apps")."""

LONGEST_WAIT = timedelta(hours=1)


class Catch(StrEnum):
    """Action on a job that GitHub lists.

    - `bring`: the webhook `queued` never arrived. The job is inserted now, in the same way as from the webhook.
    - `finish`: the webhook `completed` never arrived. The job is finished now.
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

    `ours` is the state of the job's row, or None if the job has no row. `after` is the time to wait for the webhook
    `queued`, and `over_after` the time to wait for the webhook `completed`. The action on a running job is `leave`,
    because other sweeps find the claim of the job's runner. The action on a completed job without a row is `leave` too.
    """
    if status == "queued" and ours in {None, JobState.WAITING}:
        return Catch.BRING if now - created_at >= after else Catch.LATER
    if status == "completed" and ours not in {None, JobState.COMPLETED}:
        return Catch.FINISH if now - (completed_at or created_at) >= over_after else Catch.LATER
    return Catch.LEAVE


@dataclass(frozen=True, slots=True)
class Allowance:
    """How many calls the sweep may still make for an installation. `calls` is the number at the time `at`.

    `quota` is GitHub's hourly limit for the installation.
    """

    calls: float
    at: datetime
    quota: int

    @classmethod
    def new(cls, *, percent: float, now: datetime) -> Allowance:
        """Return the call allowance of an installation before the sweep's first call."""
        return cls(_burst(BASE_QUOTA, percent), now, BASE_QUOTA)


def spend(allowance: Allowance, *, percent: float, now: datetime) -> Allowance | None:
    """Return the allowance after one more call, or None if no call is left.

    `percent` is the sweep's share of the quota. A quarter of this share is available at once. The rest accrues evenly,
    so that the sweep never makes more than `percent` of the quota's calls within an hour.
    """
    passed = max(0.0, (now - allowance.at).total_seconds())
    burst = _burst(allowance.quota, percent)
    calls = min(burst, allowance.calls + passed * 0.75 * allowance.quota * percent / 100 / 3600)
    return Allowance(calls - 1, now, allowance.quota) if calls >= 1 else None


def _burst(quota: int, percent: float) -> float:
    return max(1.0, quota * percent / 400)


def wait_after(failures: int, *, least: timedelta) -> timedelta:
    """Return the time during which a repository is skipped after `failures` consecutive failures.

    Each failure doubles the time, up to one hour.
    """
    return min(least * (1 << min(max(failures - 1, 0), 16)), LONGEST_WAIT)

"""Route of a queued job: its pool, and the first reason to hold the job, if any.

A missing pool, permission or budget takes precedence over a wait, because a person must correct it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from rules.routing.access import Access
from rules.routing.holds import HoldReason
from rules.routing.labels import PoolChoice


@dataclass(frozen=True, slots=True)
class Wait:
    """The time before which a retry is not allowed, and the reason for the wait."""

    detail: str
    until: datetime


@dataclass(frozen=True, slots=True)
class Route:
    """Pool of a queued job, and the job's hold. A `hold` of None means that the job is not held."""

    pool_id: int | None
    hold: HoldReason | None
    detail: str | None
    not_before: datetime | None


def route(
    choice: PoolChoice,
    *,
    detail: str | None,
    budget_count: int,
    group: Wait | None,
    backoff: Wait | None,
    access: Access = Access.ALLOWED,
) -> Route:
    """Return the route of a job.

    - `choice`: the job's pool, or the reason why the job has no pool.
    - `detail`: the detail of this reason, or None.
    - `budget_count`: number of jobs that the budget of the job's account allows.
    - `group`: the refusal of the pool's runner group, or None.
    - `backoff`: the longest wait of the job's installation, account, repository or runner group, or None.
    - `access`: access of the job's account. If the account is not allowed, the job is held for this reason, and the
      other arguments are ignored.
    """
    if access is not Access.ALLOWED:
        return Route(None, HoldReason.UNKNOWN_ACCOUNT, "the account of the job is not allowed", None)
    if choice.hold_reason is not None:
        return Route(choice.pool_id, choice.hold_reason, detail, None)
    if budget_count == 0:
        return Route(choice.pool_id, HoldReason.BUDGET_ZERO, None, None)
    if group is not None:
        return Route(choice.pool_id, HoldReason.RUNNER_GROUP, group.detail, group.until)
    if backoff is not None:
        return Route(choice.pool_id, HoldReason.BACKOFF, backoff.detail, backoff.until)
    return Route(choice.pool_id, None, None, None)

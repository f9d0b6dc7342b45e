"""Route of a queued job: its pool, and the first reason to hold it, if any.

Missing service comes before waiting, so that the reported reason is the one to correct first.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from rules.routing.access import Access
from rules.routing.holds import HoldReason
from rules.routing.labels import PoolChoice


@dataclass(frozen=True, slots=True)
class Wait:
    """A retry that is allowed no earlier than `until`, and why."""

    detail: str
    until: datetime


@dataclass(frozen=True, slots=True)
class Route:
    """Pool of a queued job, and its hold (None: not held)."""

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

    `access` is that of its account: the jobs of an account that is not allowed are held, whatever else they lack.
    `detail` belongs to the choice, `budget_count` to its account; `group` is the refusal of the pool's runner group,
    `backoff` the longest wait of its installation, account or repository.
    """
    if access is not Access.ALLOWED:
        return Route(None, HoldReason.UNKNOWN_ACCOUNT, "nobody has let its account in", None)
    if choice.hold_reason is not None:
        return Route(choice.pool_id, choice.hold_reason, detail, None)
    if budget_count == 0:
        return Route(choice.pool_id, HoldReason.BUDGET_ZERO, None, None)
    if group is not None:
        return Route(choice.pool_id, HoldReason.RUNNER_GROUP, group.detail, group.until)
    if backoff is not None:
        return Route(choice.pool_id, HoldReason.BACKOFF, backoff.detail, backoff.until)
    return Route(choice.pool_id, None, None, None)

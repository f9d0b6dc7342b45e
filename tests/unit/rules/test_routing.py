"""The reasons why a routed job is held, the one to fix first before the others."""

from __future__ import annotations

from datetime import UTC, datetime

from rules.routing.access import Access
from rules.routing.holds import HoldReason
from rules.routing.labels import PoolChoice
from rules.routing.routing import Route, Wait, route

UNTIL = datetime(2026, 1, 1, tzinfo=UTC)
GROUP, BACKOFF = Wait("the group refuses it", UNTIL), Wait("GitHub is down", UNTIL)
POOL = PoolChoice(7, None, (7,))
NO_POOL = PoolChoice(None, HoldReason.NO_POOL, ())


def routed(
    choice: PoolChoice = POOL,
    *,
    budget: int = 5,
    group: Wait | None = GROUP,
    backoff: Wait | None = BACKOFF,
    access: Access = Access.ALLOWED,
) -> Route:
    return route(choice, detail="of its labels", budget_count=budget, group=group, backoff=backoff, access=access)


def test_a_job_of_an_account_that_nobody_let_in_is_held_for_that_alone() -> None:
    found = routed(NO_POOL, budget=0, access=Access.HELD)
    assert (found.pool_id, found.hold, found.not_before) == (None, HoldReason.UNKNOWN_ACCOUNT, None)
    assert found.detail
    assert routed(access=Access.HELD).pool_id is None


def test_a_job_without_a_pool_is_held_with_the_detail_of_the_choice() -> None:
    assert routed(NO_POOL, budget=0) == Route(None, HoldReason.NO_POOL, "of its labels", None)
    tied = PoolChoice(7, HoldReason.TWO_POOLS, (7, 8))
    assert routed(tied) == Route(7, HoldReason.TWO_POOLS, "of its labels", None)


def test_a_budget_of_nothing_holds_before_what_passes_by_itself() -> None:
    assert routed(budget=0) == Route(7, HoldReason.BUDGET_ZERO, None, None)
    assert routed(budget=1, group=None, backoff=None) == Route(7, None, None, None)


def test_a_runner_group_holds_before_a_backoff() -> None:
    assert routed() == Route(7, HoldReason.RUNNER_GROUP, "the group refuses it", UNTIL)
    assert routed(group=None) == Route(7, HoldReason.BACKOFF, "GitHub is down", UNTIL)


def test_a_job_is_allowed_when_nothing_is_said_of_its_account() -> None:
    assert route(POOL, detail=None, budget_count=1, group=None, backoff=None) == Route(7, None, None, None)

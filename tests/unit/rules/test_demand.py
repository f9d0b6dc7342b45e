"""Demand of pools: the waiting jobs that budgets admit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from rules.claims.fairness import AccountView, Budget, Usage
from rules.pools.demand import Places, Queue, dispatchable

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SMALL = Places(count=100, vcpu_millicores=2000, memory_mib=4096)


def account(
    account_id: int = 1, *, count: int = 1000, vcpu: int = 10**9, memory: int = 10**9, used: int = 0
) -> AccountView:
    return AccountView(
        account_id=account_id,
        weight=1,
        budget=Budget(count=count, vcpu_millicores=vcpu, memory_mib=memory),
        usage=Usage(count=used, vcpu_millicores=2000 * used, memory_mib=4096 * used),
    )


def queue(pool_id: int, jobs: int, *, account_id: int = 1, age: float = 0, priority: int = 0) -> Queue:
    return Queue(pool_id, account_id, jobs, priority, NOON - timedelta(seconds=age))


def demand(*queues: Queue, accounts: tuple[AccountView, ...], pools: dict[int, Places] | None = None) -> dict[int, int]:
    return dispatchable(queues, {each.account_id: each for each in accounts}, pools or {1: SMALL, 2: SMALL})


def test_a_capped_account_inflates_no_pool() -> None:
    assert demand(queue(1, 50), accounts=(account(count=8, used=8),)) == {1: 0, 2: 0}
    assert demand(queue(1, 50), accounts=(account(count=8, used=5),)) == {1: 3, 2: 0}


def test_vcpu_and_memory_cap_as_the_count_does() -> None:
    assert demand(queue(1, 50), accounts=(account(vcpu=7000),))[1] == 3
    assert demand(queue(1, 50), accounts=(account(memory=4096 * 4),))[1] == 4


def test_an_account_of_several_pools_fills_them_in_turn_and_not_twice() -> None:
    found = demand(queue(1, 50, age=60), queue(2, 50), accounts=(account(count=5),))
    assert found == {1: 3, 2: 2}


def test_the_more_urgent_head_comes_first() -> None:
    found = demand(queue(1, 50, age=60), queue(2, 50, priority=1), accounts=(account(count=1),))
    assert found == {1: 0, 2: 1}


def test_what_one_pool_has_no_places_for_is_left_to_the_others() -> None:
    pools = {1: Places(2, 2000, 4096), 2: SMALL}
    assert demand(queue(1, 50, age=60), queue(2, 50), accounts=(account(count=10),), pools=pools) == {1: 2, 2: 8}


def test_a_job_that_is_too_large_leaves_the_budget_to_smaller_ones() -> None:
    pools = {1: Places(100, 64_000, 4096), 2: SMALL}
    assert demand(queue(1, 5, age=60), queue(2, 5), accounts=(account(vcpu=8000),), pools=pools) == {1: 0, 2: 4}


def test_accounts_add_up_to_the_places_of_a_pool() -> None:
    pools = {1: Places(7, 2000, 4096)}
    accounts = (account(1), account(2))
    assert demand(queue(1, 5), queue(1, 5, account_id=2), accounts=accounts, pools=pools) == {1: 7}


def test_who_was_not_read_has_no_demand() -> None:
    assert demand(queue(1, 5, account_id=9), queue(9, 5), accounts=(account(),)) == {1: 0, 2: 0}


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 40), st.integers(-2, 2)), max_size=9),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 60_000), st.integers(0, 60_000)), min_size=3, max_size=3),
    st.lists(st.tuples(st.integers(-2, 30), st.integers(1, 9000), st.integers(1, 9000)), min_size=3, max_size=3),
)
def test_no_demand_is_beyond_a_budget_a_queue_or_the_places(
    waiting: list[tuple[int, int, int, int]], budgets: list[tuple[int, int, int]], sizes: list[tuple[int, int, int]]
) -> None:
    unique = {(pool, of): Queue(pool, of, jobs, priority, NOON) for pool, of, jobs, priority in waiting}
    nothing = Usage(count=0, vcpu_millicores=0, memory_mib=0)
    accounts = {
        number: AccountView(number, 1, Budget(count=count, vcpu_millicores=vcpu, memory_mib=memory), nothing)
        for number, (count, vcpu, memory) in enumerate(budgets, start=1)
    }
    pools = {number: Places(*size) for number, size in enumerate(sizes, start=1)}
    # One account at a time: what each is admitted adds up within its own budget.
    for account_id, view in accounts.items():
        own = [each for each in unique.values() if each.account_id == account_id]
        found = dispatchable(own, {account_id: view}, pools)
        assert sum(found.values()) <= view.budget.count
        assert sum(jobs * pools[pool].vcpu_millicores for pool, jobs in found.items()) <= view.budget.vcpu_millicores
        assert sum(jobs * pools[pool].memory_mib for pool, jobs in found.items()) <= view.budget.memory_mib
    found = dispatchable(list(unique.values()), accounts, pools)
    for pool_id, jobs in found.items():
        waiting_here = sum(each.jobs for each in unique.values() if each.pool_id == pool_id)
        assert 0 <= jobs <= min(waiting_here, max(0, pools[pool_id].count))


def test_a_pool_without_places_has_no_demand_and_keeps_nobody_from_the_others() -> None:
    pools = {1: Places(0, 2000, 4096), 2: SMALL}
    assert demand(queue(1, 5, age=60), queue(2, 5), accounts=(account(count=3),), pools=pools) == {1: 0, 2: 3}
    below = {1: Places(-1, 2000, 4096), 2: SMALL}
    assert demand(queue(1, 5, age=60), accounts=(account(),), pools=below) == {1: 0, 2: 0}


def test_a_pool_whose_queue_is_empty_stops_no_other() -> None:
    pools = {1: SMALL, 2: SMALL, 3: SMALL}
    found = demand(queue(1, 1, age=60), queue(2, 4), queue(3, 4), accounts=(account(count=7),), pools=pools)
    assert found == {1: 1, 2: 3, 3: 3}


def test_a_queue_that_has_run_out_gives_nobody_an_extra_turn() -> None:
    pools = {1: SMALL, 2: SMALL, 3: SMALL}
    queues = queue(1, 5, age=60), queue(2, 1, age=50), queue(3, 5)
    assert demand(*queues, accounts=(account(count=5),), pools=pools) == {1: 2, 2: 1, 3: 2}

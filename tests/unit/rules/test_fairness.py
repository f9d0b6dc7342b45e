"""Order of jobs: budgets hold, no account blocks another, shares follow weights."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.claims.fairness import (
    AccountView,
    BatchPlan,
    Budget,
    JobHead,
    Reservation,
    SkipReason,
    Usage,
    dominant_share,
    plan_batch,
    refusal,
    weighted_share,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
PLENTY = Budget(count=10**6, vcpu_millicores=10**9, memory_mib=10**9)
NOTHING = Usage(count=0, vcpu_millicores=0, memory_mib=0)
TOTALS = Budget(count=100, vcpu_millicores=100_000, memory_mib=100_000)
SLOTS = 100


def account(account_id: int, *, weight: float = 1, budget: Budget = PLENTY, usage: Usage = NOTHING) -> AccountView:
    return AccountView(account_id=account_id, weight=weight, budget=budget, usage=usage)


def job(
    job_id: int,
    account_id: int = 1,
    *,
    priority: int = 0,
    age: int = 0,
    size: tuple[int, int] = (1000, 1000),
    pool_id: int = 1,
) -> JobHead:
    return JobHead(
        job_id=job_id,
        account_id=account_id,
        priority=priority,
        queued_at=NOON - timedelta(seconds=age),
        vcpu_millicores=size[0],
        memory_mib=size[1],
        pool_id=pool_id,
    )


def plan(
    heads: Sequence[JobHead],
    *accounts: AccountView,
    slots: int = SLOTS,
    reservations: Mapping[int, Reservation] | None = None,
) -> BatchPlan:
    views = {view.account_id: view for view in accounts}
    return plan_batch(heads, views, totals=TOTALS, slots=slots, reservations=reservations)


def ids(planned: BatchPlan) -> list[int]:
    return [head.job_id for head in planned.picks]


def test_the_account_that_uses_least_comes_first() -> None:
    used = Usage(count=5, vcpu_millicores=5000, memory_mib=5000)

    planned = plan([job(1, 1, age=60), job(2, 2)], account(1, usage=used), account(2), slots=1)

    assert ids(planned) == [2]


def test_the_largest_of_the_three_shares_counts() -> None:
    much_memory = Usage(count=1, vcpu_millicores=1000, memory_mib=50_000)
    many_jobs = Usage(count=40, vcpu_millicores=1000, memory_mib=1000)

    assert dominant_share(much_memory, TOTALS) == pytest.approx(0.5)
    assert ids(plan([job(1, 1), job(2, 2)], account(1, usage=much_memory), account(2, usage=many_jobs), slots=1)) == [2]


def test_what_nobody_has_a_budget_for_is_left_out_of_the_share() -> None:
    assert dominant_share(Usage(count=1, vcpu_millicores=5, memory_mib=5), Budget(2, 0, 0)) == pytest.approx(0.5)


def test_accounts_that_use_the_same_take_turns_and_the_older_head_begins() -> None:
    heads = [job(1, 1), job(2, 1), job(3, 2, age=60), job(4, 2, age=50)]

    assert ids(plan(heads, account(1), account(2))) == [3, 1, 4, 2]


def test_within_an_account_priority_goes_before_age_and_age_before_id() -> None:
    heads = [job(1), job(2, age=60), job(3, age=60), job(4, priority=1)]

    assert ids(plan(heads, account(1))) == [4, 2, 3, 1]


def test_a_job_that_does_not_fit_blocks_the_later_ones_of_its_account_and_pool_only() -> None:
    budget = Budget(count=9, vcpu_millicores=2000, memory_mib=9000)
    heads = [job(1, 1, age=60, size=(4000, 1000)), job(2, 1), job(3, 1, pool_id=2), job(4, 2)]

    planned = plan(heads, account(1, budget=budget), account(2))

    assert ids(planned) == [3, 4]
    assert planned.skipped == {1: SkipReason.OVER_BUDGET}


def test_an_account_whose_budget_is_full_keeps_what_it_got_and_is_skipped_from_there() -> None:
    budget = Budget(count=2, vcpu_millicores=9000, memory_mib=9000)

    planned = plan([job(n) for n in range(1, 5)], account(1, budget=budget))

    assert ids(planned) == [1, 2]
    assert planned.skipped == {1: SkipReason.OVER_BUDGET}


def test_a_budget_of_zero_jobs_has_a_reason_of_its_own() -> None:
    budget = Budget(count=0, vcpu_millicores=9000, memory_mib=9000)

    assert plan([job(1), job(2, pool_id=2)], account(1, budget=budget)) == BatchPlan(
        picks=(), skipped={1: SkipReason.BUDGET_ZERO}
    )


def test_a_lowered_budget_admits_nothing_and_stops_nobody_else() -> None:
    over = Usage(count=9, vcpu_millicores=9000, memory_mib=9000)

    planned = plan([job(1, 1), job(2, 2)], account(1, budget=Budget(3, 3000, 3000), usage=over), account(2))

    assert ids(planned) == [2]


def test_an_account_that_was_not_read_is_skipped() -> None:
    planned = plan([job(1, 1), job(2, 2)], account(2))

    assert (ids(planned), planned.skipped) == ([2], {1: SkipReason.NOT_READ})


def test_other_pools_leave_the_room_reserved_for_the_job_that_waited_long() -> None:
    budget = Budget(count=9, vcpu_millicores=8000, memory_mib=90_000)
    used = Usage(count=3, vcpu_millicores=3000, memory_mib=3000)
    kept = {1: Reservation(vcpu_millicores=4000, memory_mib=4000, count=1, pool_id=1, queued_at=LONG_AGO, job_id=0)}
    view = account(1, budget=budget, usage=used)

    small = plan([job(1, pool_id=2), job(2, pool_id=2)], view, reservations=kept)
    large = plan([job(3, size=(4000, 4000), pool_id=1)], view, reservations=kept)

    assert (ids(small), small.skipped) == ([1], {1: SkipReason.RESERVED})
    assert ids(large) == [3]


def test_older_job_leaves_no_room_so_that_two_pools_never_wait_for_each_other() -> None:
    one = Budget(count=1, vcpu_millicores=8000, memory_mib=90_000)
    first, second = job(1, pool_id=1), job(2, pool_id=2)
    older, younger = sorted([first, second], key=lambda each: (each.queued_at, each.job_id))
    view = account(1, budget=one)

    def against(head: JobHead, other: JobHead) -> list[int]:
        kept = {1: Reservation(1000, 1000, 1, other.pool_id, other.queued_at, other.job_id)}
        return ids(plan([head], view, reservations=kept))

    assert against(older, younger) == [older.job_id]
    assert against(younger, older) == []


def test_a_reservation_binds_no_other_account() -> None:
    kept = {1: Reservation(vcpu_millicores=10**9, memory_mib=10**9, count=1, pool_id=1, queued_at=LONG_AGO, job_id=0)}

    assert ids(plan([job(1, 1, pool_id=2), job(2, 2, pool_id=2)], account(1), account(2), reservations=kept)) == [2]


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), 0.0, -1.0])
def test_a_weight_that_is_no_weight_counts_as_one(weight: float) -> None:
    used = Usage(count=10, vcpu_millicores=0, memory_mib=0)

    assert weighted_share(account(1, weight=weight, usage=used), TOTALS) == pytest.approx(0.1)


def test_without_slots_nothing_is_picked_and_nobody_is_blamed() -> None:
    assert plan([job(1)], account(1, budget=Budget(0, 0, 0)), slots=0) == BatchPlan(picks=(), skipped={})


SMALL = st.integers(0, 6)
SIZES = st.tuples(st.integers(0, 4), st.integers(0, 4))
ACCOUNTS = st.fixed_dictionaries(
    {
        n: st.builds(
            AccountView,
            account_id=st.just(n),
            weight=st.sampled_from([0.5, 1.0, 3.0]),
            budget=st.builds(Budget, count=SMALL, vcpu_millicores=SMALL, memory_mib=SMALL),
            usage=st.builds(Usage, count=SMALL, vcpu_millicores=SMALL, memory_mib=SMALL),
        )
        for n in (1, 2, 3)
    }
)
HEADS = st.lists(
    st.builds(
        job,
        st.integers(1, 10**6),
        st.integers(1, 3),
        priority=st.integers(0, 1),
        age=st.integers(0, 3),
        size=SIZES,
        pool_id=st.integers(1, 2),
    ),
    max_size=20,
    unique_by=lambda head: head.job_id,
)
RESERVATIONS = st.dictionaries(
    st.integers(1, 3),
    st.builds(
        Reservation,
        st.integers(0, 3),
        st.integers(0, 3),
        st.integers(0, 1),
        st.integers(1, 2),
        st.just(LONG_AGO),
        st.just(0),
    ),
)


def sums(budgets: Sequence[Budget]) -> Budget:
    return Budget(
        count=sum(each.count for each in budgets),
        vcpu_millicores=sum(each.vcpu_millicores for each in budgets),
        memory_mib=sum(each.memory_mib for each in budgets),
    )


def after(view: AccountView, picks: Sequence[JobHead]) -> AccountView:
    mine = [head for head in picks if head.account_id == view.account_id]
    usage = Usage(
        count=view.usage.count + len(mine),
        vcpu_millicores=view.usage.vcpu_millicores + sum(head.vcpu_millicores for head in mine),
        memory_mib=view.usage.memory_mib + sum(head.memory_mib for head in mine),
    )
    return AccountView(account_id=view.account_id, weight=view.weight, budget=view.budget, usage=usage)


@given(accounts=ACCOUNTS, heads=HEADS, reservations=RESERVATIONS, slots=st.integers(0, 20))
def test_no_pick_exceeds_a_budget_or_takes_what_is_reserved_for_another_pool(
    accounts: dict[int, AccountView], heads: list[JobHead], reservations: dict[int, Reservation], slots: int
) -> None:
    totals = sums([view.budget for view in accounts.values()])

    planned = plan_batch(heads, accounts, totals=totals, slots=slots, reservations=reservations)

    assert len(planned.picks) <= slots
    assert len(set(ids(planned))) == len(planned.picks)
    for index, head in enumerate(planned.picks):
        view = after(accounts[head.account_id], planned.picks[: index + 1])
        kept = reservations.get(head.account_id)
        room = (
            kept
            if kept is not None and kept.pool_id != head.pool_id
            else Reservation(0, 0, 0, head.pool_id, LONG_AGO, 0)
        )
        assert view.usage.count + room.count <= view.budget.count
        assert view.usage.vcpu_millicores + room.vcpu_millicores <= view.budget.vcpu_millicores
        assert view.usage.memory_mib + room.memory_mib <= view.budget.memory_mib


@given(accounts=ACCOUNTS, heads=HEADS, reservations=RESERVATIONS, slots=st.integers(0, 20))
def test_no_slot_stays_free_while_the_first_job_of_an_account_and_pool_fits(
    accounts: dict[int, AccountView], heads: list[JobHead], reservations: dict[int, Reservation], slots: int
) -> None:
    totals = sums([view.budget for view in accounts.values()])

    planned = plan_batch(heads, accounts, totals=totals, slots=slots, reservations=reservations)

    if len(planned.picks) == slots:
        return
    left = sorted(
        (head for head in heads if head not in planned.picks),
        key=lambda head: (-head.priority, head.queued_at, head.job_id),
    )
    for key in {(head.account_id, head.pool_id) for head in left}:
        first = next(head for head in left if (head.account_id, head.pool_id) == key)
        view = after(accounts[first.account_id], planned.picks)
        assert refusal(first, view, reservations.get(first.account_id)) is not None
    assert set(planned.skipped) == {head.account_id for head in left}


@given(heads=HEADS, accounts=ACCOUNTS, data=st.data())
def test_a_plan_does_not_depend_on_the_order_of_its_input(
    heads: list[JobHead], accounts: dict[int, AccountView], data: st.DataObject
) -> None:
    planned = plan_batch(heads, accounts, totals=TOTALS, slots=5)

    assert plan_batch(data.draw(st.permutations(heads)), accounts, totals=TOTALS, slots=5) == planned


@given(heads=HEADS, accounts=ACCOUNTS, slots=st.integers(0, 10))
def test_the_size_of_a_batch_changes_nobodys_part_of_it(
    heads: list[JobHead], accounts: dict[int, AccountView], slots: int
) -> None:
    fewer = plan_batch(heads, accounts, totals=TOTALS, slots=slots)
    more = plan_batch(heads, accounts, totals=TOTALS, slots=slots + 5)

    assert more.picks[:slots] == fewer.picks


@given(accounts=st.integers(1, 6), slots=st.integers(0, 60))
def test_accounts_of_equal_weight_differ_by_one_job_at_most(accounts: int, slots: int) -> None:
    heads = [job(1000 * n + m, n, age=n) for n in range(1, accounts + 1) for m in range(slots)]

    planned = plan(heads, *(account(n) for n in range(1, accounts + 1)), slots=slots)

    got = Counter(head.account_id for head in planned.picks)
    counts = [got[n] for n in range(1, accounts + 1)]
    assert sum(counts) == slots
    assert max(counts) - min(counts) <= 1


@given(weights=st.lists(st.integers(1, 5), min_size=2, max_size=4), slots=st.integers(0, 60))
def test_jobs_are_shared_in_proportion_to_the_weights(weights: list[int], slots: int) -> None:
    heads = [job(1000 * n + m, n) for n in range(len(weights)) for m in range(slots)]

    planned = plan(heads, *(account(n, weight=weight) for n, weight in enumerate(weights)), slots=slots)

    got = Counter(head.account_id for head in planned.picks)
    per_weight = [(got[n] / weight, 1 / weight) for n, weight in enumerate(weights)]
    # One job is the grain: no account is ahead of another by more than its own last job.
    for (one, grain), (other, other_grain) in combinations(per_weight, 2):
        assert one - other <= grain + 1e-9
        assert other - one <= other_grain + 1e-9


def test_a_job_does_not_wait_for_the_room_that_is_reserved_for_itself() -> None:
    one = Budget(count=1, vcpu_millicores=8000, memory_mib=90_000)
    head = job(1, pool_id=2)
    own = Reservation(1000, 1000, 1, 1, head.queued_at, head.job_id)
    assert refusal(head, account(1, budget=one), own) is None


@pytest.mark.parametrize("short", [(3, 3000, 3000), (4, 2999, 3000), (4, 3000, 2999)])
def test_a_job_is_admitted_when_just_what_is_reserved_is_left(short: tuple[int, int, int]) -> None:
    head = job(1, pool_id=2)
    kept = Reservation(vcpu_millicores=2000, memory_mib=2000, count=3, pool_id=1, queued_at=LONG_AGO, job_id=0)
    assert refusal(head, account(1, budget=Budget(4, 3000, 3000)), kept) is None
    assert refusal(head, account(1, budget=Budget(*short)), kept) is SkipReason.RESERVED


@pytest.mark.parametrize(
    ("usage", "totals", "share"),
    [
        (Usage(5, 0, 0), Budget(10, 100, 100), 0.5),
        (Usage(0, 50, 0), Budget(10, 100, 100), 0.5),
        (Usage(0, 0, 50), Budget(10, 100, 100), 0.5),
        (Usage(1, 0, 0), Budget(1, 100, 100), 1.0),
        (Usage(0, 1, 0), Budget(10, 1, 100), 1.0),
        (Usage(0, 0, 1), Budget(10, 100, 1), 1.0),
        (Usage(5, 10, 10), Budget(0, 100, 100), 0.1),
        (Usage(1, 50, 10), Budget(10, 0, 100), 0.1),
        (Usage(1, 10, 50), Budget(10, 100, 0), 0.1),
        (Usage(0, 0, 0), Budget(0, 0, 0), 0.0),
    ],
)
def test_the_share_is_the_largest_of_what_there_is_a_budget_for(usage: Usage, totals: Budget, share: float) -> None:
    assert dominant_share(usage, totals) == pytest.approx(share)


def test_a_weight_below_one_makes_a_share_larger() -> None:
    used = Usage(count=10, vcpu_millicores=0, memory_mib=0)
    assert weighted_share(account(1, weight=0.5, usage=used), TOTALS) == pytest.approx(0.2)


@pytest.mark.parametrize("size", [(50_000, 0), (0, 50_000)])
def test_what_was_picked_is_charged_in_full(size: tuple[int, int]) -> None:
    used = Usage(count=5, vcpu_millicores=0, memory_mib=0)
    heads = [job(1, 1, size=size), job(2, 1, size=size), job(3, 2)]
    assert ids(plan(heads, account(1), account(2, usage=used), slots=2)) == [1, 3]


def test_accounts_that_come_last_come_after_those_that_use_more() -> None:
    used = {2: Usage(count=50, vcpu_millicores=0, memory_mib=0)}
    views = {n: account(n, usage=used.get(n, NOTHING)) for n in (1, 2, 3)}
    planned = plan_batch([job(1, 1), job(2, 2), job(3, 3)], views, totals=TOTALS, slots=3, last={1: 1, 3: 2})
    assert ids(planned) == [2, 1, 3]

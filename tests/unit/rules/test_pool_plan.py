"""The plan of a reconcile: the order of retirements, the Pods that stay, and rolls that keep enough Pods."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given

from rules.pools.pod_states import AVAILABLE, PodState
from rules.pools.pool_plan import (
    IDLE,
    ObservedPod,
    PlanFacts,
    PoolPlan,
    Why,
    budget_of,
    plan,
    surge_of,
    unavailable_of,
)
from rules.pools.starts import Starts, Trouble
from tests.unit.rules.pool_strategies import NOW, pods_of, pool, pools_of

MOST = 50


def pod(
    number: int,
    state: PodState = PodState.WARM,
    *,
    age: float = 100,
    generation: float = 3600,
    **flags: bool | str | datetime,
) -> ObservedPod:
    return ObservedPod(
        id=number,
        state=state,
        created_at=NOW - timedelta(seconds=age),
        generation=NOW - timedelta(seconds=generation),
        **flags,  # type: ignore[arg-type]
    )


def look(of: PlanFacts, *pods: ObservedPod, most: int = MOST) -> PoolPlan:
    return plan(of, pods, most=most, now=NOW)


def retired(made: PoolPlan) -> list[tuple[int, Why]]:
    return [(each.id, each.why) for each in made.retire]


def test_what_is_missing_is_created_and_the_spent_and_the_retiring_count_for_nothing() -> None:
    made = look(pool(4), pod(1), pod(2, PodState.SPENT), pod(3, PodState.RETIRING), pod(4, PodState.BUSY))
    assert (made.create, made.retire) == (2, ())


def test_reconcile_continues_at_once_while_pods_are_missing_and_pods_start() -> None:
    assert look(pool(60)).goes_on
    assert not look(pool(MOST)).goes_on
    starting = [pod(number, PodState.STARTING) for number in range(20)]
    assert look(pool(100, max_concurrent=40), *starting).goes_on
    assert not look(pool(100, max_concurrent=20), *starting).goes_on, "its Pods have to start first"
    assert not look(pool(100, starts=Starts(failures=3, create_after=NOW + timedelta(seconds=9)))).goes_on
    assert not look(pool(100, suspended=True)).goes_on


def test_a_pod_that_others_delete_is_replaced_unless_it_works() -> None:
    going = [
        pod(n, state, terminating=True) for n, state in enumerate((PodState.UNRESPONSIVE, PodState.WARM, PodState.BUSY))
    ]
    made = look(pool(4), *going, pod(9))
    assert (made.create, made.retire) == (2, ())


def test_surplus_takes_rows_first_then_pods_that_never_polled_then_the_newest() -> None:
    pods = [
        pod(1, age=500),
        pod(2, age=10),
        pod(3, age=90),
        pod(4, PodState.STARTING),
        pod(5, PodState.STARTING, unborn=True),
    ]
    made = look(pool(1), *pods)
    assert made.give_up == (5,)
    assert retired(made) == [(4, Why.SURPLUS), (2, Why.SURPLUS), (3, Why.SURPLUS)]


def test_unresponsive_pods_are_surplus_before_starting_and_warm_ones() -> None:
    pods = [
        pod(1, age=1),
        pod(2, PodState.STARTING),
        pod(3, PodState.UNRESPONSIVE),
        pod(4, PodState.UNRESPONSIVE, age=30),
    ]
    assert retired(look(pool(3), *pods)) == [(4, Why.SURPLUS)]
    assert retired(look(pool(1), *pods)) == [(4, Why.SURPLUS), (3, Why.SURPLUS), (2, Why.SURPLUS)]
    assert look(pool(4), *pods).retire == (), "silence alone is judged by its own sweep"


def test_cordoned_and_stale_pods_are_surplus_before_healthy_ones() -> None:
    healthy = [pod(1, age=1, generation=9000), pod(2, age=1)]
    worse = [pod(3, stale=True, age=50), pod(4, cordoned=True, age=90), pod(5, stale=True, age=10)]
    made = look(pool(2, max_surge=0), *healthy, *worse)
    assert retired(made) == [(4, Why.SURPLUS), (5, Why.SURPLUS), (3, Why.SURPLUS)]


@pytest.mark.parametrize(("replicas", "why"), [(1, Why.SURPLUS), (5, Why.TEMPLATE)])
def test_the_oldest_template_goes_first_and_its_newest_pod_before_the_others(replicas: int, why: Why) -> None:
    first = [pod(1, stale=True, generation=900, age=900), pod(2, stale=True, generation=900, age=500)]
    second = [pod(3, stale=True, generation=600, age=600), pod(4, stale=True, generation=600, age=20)]
    made = look(pool(replicas, max_surge=0, max_unavailable_percent=80), *second, pod(5, age=10), *first)
    assert retired(made) == [(number, why) for number in (2, 1, 4, 3)]


def test_surplus_pods_count_as_unavailable_for_a_roll() -> None:
    stale = [pod(n, stale=True) for n in range(2, 5)]
    made = look(pool(4, max_surge=0), pod(1), *stale, pod(5, PodState.UNRESPONSIVE, seen=False))
    assert retired(made) == [(2, Why.TEMPLATE)], "three are left for four replicas: no more may go"


def test_one_plan_retires_a_tenth_and_five_at_least() -> None:
    assert len(look(pool(0), *[pod(n) for n in range(20)]).retire) == 5
    assert len(look(pool(0), *[pod(n) for n in range(200)]).retire) == 20


def test_a_closed_gate_retires_nothing_and_creates_as_ever() -> None:
    assert look(pool(0, gate_open=False), pod(1)).retire == ()
    assert look(pool(2, gate_open=False), pod(1)).create == 1


def test_a_roll_takes_its_share_and_waits_until_the_new_ones_have_polled() -> None:
    stale = [pod(n, stale=True) for n in range(1, 11)]
    of = pool(10, max_unavailable_percent=20)
    assert retired(look(of, *stale)) == [(1, Why.TEMPLATE), (2, Why.TEMPLATE)]
    # Two of the new template are starting: the share is used up.
    news = [pod(11, PodState.STARTING), pod(12, PodState.STARTING)]
    assert look(of, *stale[2:], *news).retire == ()
    # One of them polls: room for one more.
    assert len(look(of, *stale[2:], pod(11), news[1]).retire) == 1


def test_a_roll_takes_one_pod_at_least() -> None:
    of = pool(3, max_unavailable_percent=1, max_surge=0)
    assert len(look(of, *[pod(n, stale=True) for n in range(3)]).retire) == 1


@pytest.mark.parametrize("flag", ["stale", "cordoned"])
def test_a_pool_of_one_warm_pod_is_never_without_while_it_rolls(flag: str) -> None:
    old = pod(1, stale=flag == "stale", cordoned=flag == "cordoned")
    first = look(pool(1), old)
    assert (first.create, first.retire) == (1, ())
    starting = look(pool(1), old, pod(2, PodState.STARTING))
    assert (starting.create, starting.retire) == (0, ()), "the old one goes once the new one has polled"
    polled = look(pool(1), old, pod(2))
    assert (polled.create, [each.id for each in polled.retire]) == (0, [1])
    assert look(pool(1), pod(2)).create == 0


def test_surge_makes_its_pods_before_old_ones_go_and_counts_in_the_share() -> None:
    stale = [pod(n, stale=True) for n in range(1, 11)]
    made = look(pool(10, max_unavailable_percent=40, max_surge=3), *stale)
    assert (made.create, len(made.retire)) == (3, 1)
    made = look(pool(10, max_unavailable_percent=20, max_surge=3), *stale)
    assert (made.create, len(made.retire)) == (3, 0)
    assert look(pool(10, max_unavailable_percent=20), *stale).create == 0, "a share of two or more has no surge"
    assert look(pool(10, max_surge=5), *stale[:2], *[pod(n) for n in range(11, 19)]).create == 2


def test_surge_needs_something_to_replace_and_a_pool_that_stays() -> None:
    assert look(pool(2), pod(1), pod(2)).create == 0
    assert look(pool(2), pod(1, PodState.BUSY, stale=True), pod(2)).create == 0
    assert look(pool(1, leaving=True), pod(1, stale=True)).create == 0
    assert retired(look(pool(0), pod(1, stale=True))) == [(1, Why.SURPLUS)]


@pytest.mark.parametrize("trouble", [Trouble.UNSCHEDULABLE, Trouble.QUOTA])
def test_roll_goes_on_without_surge_where_there_is_no_room_for_one_more(trouble: Trouble) -> None:
    starts = Starts(trouble=trouble, failures=1, failed_at=NOW, create_after=NOW)
    unborn = pod(2, PodState.STARTING, unborn=True)
    made = look(pool(1, starts=starts), pod(1, stale=True), unborn)
    assert (made.create, made.give_up, retired(made)) == (0, (2,), [(1, Why.TEMPLATE)])


@pytest.mark.parametrize("trouble", [Trouble.IMAGE, Trouble.UNRESPONSIVE, Trouble.REFUSED, Trouble.POLLER])
def test_template_that_does_not_start_leaves_the_old_pod(trouble: Trouble) -> None:
    starts = Starts(trouble=trouble, failures=3, failed_at=NOW, create_after=NOW + timedelta(seconds=60))
    made = look(pool(1, starts=starts), pod(1, stale=True))
    assert (made.create, made.retire) == (0, ())


def test_a_stale_pod_that_has_not_polled_goes_at_once_and_costs_nothing() -> None:
    made = look(pool(3), pod(1, stale=True), pod(2), pod(3, PodState.STARTING, stale=True))
    assert retired(made) == [(3, Why.TEMPLATE)]


def test_a_new_template_that_never_polls_stops_its_roll() -> None:
    stale = [pod(n, stale=True) for n in range(1, 10)]
    failing = pod(10, PodState.STARTING, age=1000, waiting="ImagePullBackOff")
    made = look(pool(10), *stale, failing)
    assert retired(made) == [(10, Why.NOT_STARTED)]
    assert made.failed_starts == (Trouble.IMAGE,)
    assert look(pool(10, starts=made.starts), *stale).retire == ()


def test_warm_pods_of_cordoned_nodes_retire_before_stale_ones_and_busy_ones_stay() -> None:
    pods = [pod(1, stale=True), pod(2, cordoned=True), pod(3, PodState.BUSY, cordoned=True), pod(4)]
    made = look(pool(4, max_surge=0), *pods)
    assert retired(made) == [(2, Why.CORDONED)]


def test_failed_starts_are_counted_once_a_round_and_hold_up_creations() -> None:
    late = [pod(n, PodState.STARTING, age=400) for n in range(3)]
    made = look(pool(3), *late)
    assert {why for _, why in retired(made)} == {Why.NOT_STARTED}
    assert made.starts.failures == 1
    assert made.starts.create_after == NOW  # the first is made again at once
    again = look(pool(3, starts=made.starts), *late)
    assert again.starts.failures == 1
    later = NOW + timedelta(seconds=1000)
    young = replace(pod(9, PodState.STARTING), created_at=NOW + timedelta(seconds=1))
    third = plan(pool(3, starts=made.starts), [young], most=MOST, now=later)
    assert third.starts.failures == 2
    assert third.starts.create_after == later + timedelta(seconds=5)
    assert (third.create, third.creates) == (0, False)


def test_a_starting_pod_that_was_not_in_the_list_is_no_failed_start() -> None:
    made = look(pool(1, start_timeout=0), pod(1, PodState.STARTING, seen=False))
    assert (made.retire, made.failed_starts, made.starts.failures) == ((), (), 0)
    assert look(pool(1, start_timeout=0), pod(1, PodState.STARTING)).failed_starts == (Trouble.UNRESPONSIVE,)


def test_no_start_has_failed_while_no_web_process_could_hear_the_pod() -> None:
    made = look(pool(1, web_beats=False), pod(1, PodState.STARTING, age=4000))
    assert (made.retire, made.starts.failures) == ((), 0)


def test_a_poller_that_ended_before_its_first_poll_is_a_failed_start_at_once() -> None:
    made = look(pool(1), replace(pod(1, PodState.STARTING, age=1), poller_exit_code=1))
    assert made.failed_starts == (Trouble.POLLER,)


def test_an_image_that_no_waiting_helps_is_told_at_once() -> None:
    made = look(pool(1), pod(1, PodState.STARTING, waiting="ErrImageNeverPull"))
    assert made.hopeless == "ErrImageNeverPull"
    assert look(pool(1), pod(1, PodState.STARTING, waiting="ImagePullBackOff")).hopeless is None


def test_a_paused_pool_keeps_what_it_has_and_one_that_is_deleted_drains_all_the_same() -> None:
    pods = [pod(1, stale=True), pod(2, cordoned=True), pod(3, PodState.STARTING, age=9999)]
    made = look(pool(9, suspended=True), *pods)
    assert (made.create, made.creates, made.give_up, made.retire) == (0, False, (), ())
    assert {why for _, why in retired(look(pool(9, suspended=True, leaving=True), *pods[:2]))} == {Why.DRAINED}


@pytest.mark.parametrize("suspended", [False, True])
def test_forbidden_pool_retires_its_idle_pods_within_the_budget_and_creates_none(*, suspended: bool) -> None:
    idle = [pod(number) for number in range(60)]
    with_jobs = pod(60, PodState.BUSY), pod(61, PodState.RESERVED)
    made = look(pool(62, forbidden=True, suspended=suspended), *idle, *with_jobs)
    assert (made.create, made.wanted) == (0, 0)
    assert {why for _, why in retired(made)} == {Why.FORBIDDEN}
    assert len(made.retire) == budget_of(62)
    unborn = look(pool(1, forbidden=True), pod(1, PodState.STARTING, unborn=True))
    assert (unborn.give_up, unborn.create) == ((1,), 0)


def test_no_more_pods_are_starting_at_a_time_than_the_pool_allows() -> None:
    made = look(pool(20, max_concurrent=5), pod(1), pod(2, PodState.STARTING), pod(3, PodState.STARTING, unborn=True))
    assert made.create == 3


def test_a_pod_that_was_not_in_the_list_is_not_touched() -> None:
    assert look(pool(0), pod(1, seen=False), pod(2, PodState.STARTING, seen=False)).retire == ()


def leaves(each: ObservedPod) -> bool:
    """Return whether a Pod counts for nothing: over, retiring, on a gone node, or deleted by others while idle."""
    over = each.node_gone or each.state in {PodState.SPENT, PodState.RETIRING}
    return over or (each.terminating and each.state in IDLE)


@given(pools_of, pods_of())
def test_plan_retires_no_pod_that_might_have_a_job_and_stays_within_its_bounds(
    of: PlanFacts, pods: list[ObservedPod]
) -> None:
    made = look(of, *pods)
    by_id = {each.id: each for each in pods}
    kept = [each for each in pods if not leaves(each)]
    gone = [by_id[each.id] for each in made.retire]
    asked = [each for each in gone if each.state is PodState.BUSY]
    assert all(each.registered_at is not None and not each.marked for each in asked), "GitHub refuses only for these"
    assert {each.state for each in gone if each not in asked} <= IDLE
    assert all(each.seen for each in gone)
    assert len({each.id for each in gone}) == len(gone) <= budget_of(len(kept))
    rolled = {each.id for each in made.retire if each.why in {Why.TEMPLATE, Why.CORDONED, Why.AGE}}
    if any(by_id[each].state is not PodState.STARTING for each in rolled):
        serving = [each for each in kept if each.state in AVAILABLE and not each.registering and not each.marked]
        now = replace(of, starts=made.starts)  # a rollout without room goes on without surge
        assert sum(each not in gone for each in serving) >= of.pool.wanted - unavailable_of(now)
    assert made.create <= max(0, of.pool.wanted + surge_of(of) - len(kept))
    starts = sum(each.state is PodState.STARTING and each not in gone for each in kept)
    assert made.create == 0 or made.create + starts <= of.pool.max_concurrent
    missing = 0 if of.pool.suspended else of.pool.wanted - len(kept)
    assert made.create >= min(missing, MOST, of.pool.max_concurrent - starts), "a Pod that leaves is replaced at once"


@pytest.mark.parametrize("state", PodState)
def test_only_idle_pods_are_retired_because_their_kubelet_does_not_end_them(state: PodState) -> None:
    deleted = pod(1, state, terminating=True)
    assert retired(look(pool(0), deleted)) == []
    expected = [(1, Why.OVERDUE)] if state in IDLE else []
    assert retired(look(pool(0), replace(deleted, overdue=True))) == expected
    assert look(pool(0, gate_open=False), replace(deleted, overdue=True)).retire == ()


def test_overdue_pods_and_surplus_pods_share_the_budget_of_a_plan() -> None:
    overdue = [pod(number, terminating=True, overdue=True) for number in range(9)]
    assert len(look(pool(0), *overdue).retire) == 5
    assert len(look(pool(0), *overdue, *[pod(number) for number in (20, 21, 22)]).retire) == 5


def test_a_retirement_is_told_with_its_detail_if_it_has_one() -> None:
    (failed,) = look(pool(1), pod(1, PodState.STARTING, age=400, waiting="ImagePullBackOff")).retire
    assert str(failed) == f"{Why.NOT_STARTED}: {failed.detail}"
    assert "ImagePullBackOff" in failed.detail
    (surplus,) = look(pool(0), pod(1)).retire
    assert str(surplus) == str(Why.SURPLUS)


@pytest.mark.parametrize("held", [False, True])
def test_a_plan_says_how_the_pool_stands(*, held: bool) -> None:
    starts = Starts(failures=2, failed_at=NOW, create_after=NOW, trouble=Trouble.UNRESPONSIVE)
    made = look(
        pool(3, suspended=held, starts=starts),
        pod(1, stale=True),
        pod(2, PodState.STARTING, unborn=True),
        pod(3, node_gone=True),
        pod(4, PodState.SPENT, node_gone=True),
        pod(5, PodState.BUSY),
    )
    assert made.counts == {PodState.WARM: 1, PodState.SPENT: 1, PodState.BUSY: 1}
    assert (made.stale, made.lost, made.wanted) == (1, 1, 3)
    assert made.starts == starts
    assert made.creates is not held


def test_plans_of_one_tick_share_their_budget() -> None:
    warm = [pod(n) for n in range(20)]
    assert len(look(pool(0, retired=3), *warm).retire) == 2
    assert look(pool(0, retired=5), *warm).retire == ()
    assert look(pool(0, retired=9), *warm).retire == ()


def test_a_failed_start_that_could_not_be_retired_is_not_counted() -> None:
    made = look(pool(1, retired=5), pod(1, PodState.STARTING, age=400))
    assert (made.retire, made.failed_starts, made.starts) == ((), (), Starts())


def test_start_fails_at_the_end_of_its_timeout_although_others_start() -> None:
    made = look(pool(2), pod(1, PodState.STARTING, age=1), pod(2, PodState.STARTING, age=300))
    assert retired(made) == [(2, Why.NOT_STARTED)]


def test_an_image_is_hopeless_only_for_a_pod_of_this_template_that_starts() -> None:
    assert look(pool(1), pod(1, waiting="ErrImageNeverPull")).hopeless is None
    assert look(pool(1), pod(1, PodState.STARTING, stale=True, waiting="ErrImageNeverPull")).hopeless is None


def test_gated_pod_is_no_failed_start_and_its_time_limit_begins_without_the_gate() -> None:
    of = pool(1, start_timeout=60)

    def started(**flags: Any) -> PoolPlan:
        return look(of, pod(1, PodState.STARTING, age=600, **flags))

    assert retired(started()) == [(1, Why.NOT_STARTED)]
    gated = started(gated=True, gated_at=NOW)
    assert (gated.retire, gated.create, gated.starts) == ((), 0, of.starts)
    assert started(gated_at=NOW - timedelta(seconds=59)).retire == ()
    assert retired(started(gated_at=NOW - timedelta(seconds=60))) == [(1, Why.NOT_STARTED)]

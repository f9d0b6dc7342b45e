"""The plan of a pool with persistent runners: who leaves first, and how many Pods there are meanwhile."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rules.pools.pod_states import PodState, Registration, StateFacts, state_of
from rules.pools.pool_plan import ObservedPod, Why, surge_of
from tests.unit.rules.pool_strategies import NOW
from tests.unit.rules.test_pool_plan import look, pod, pool, retired

HOUR = 3600.0


def test_a_runner_is_warm_only_after_github_showed_it_online() -> None:
    delivered = {"claimed": True, "delivered": True, "ever_delivered": True, "may_hold_jit": True, "ever_polled": True}
    states = {each: state_of(StateFacts(**delivered, registration=each)) for each in (*Registration, None)}
    assert states == {
        Registration.BEGUN: PodState.RESERVED,
        Registration.IDLE: PodState.WARM,
        Registration.BUSY: PodState.BUSY,
        None: PodState.BUSY,
    }


def test_the_end_of_a_pod_and_its_retirement_come_before_its_registration() -> None:
    idle = Registration.IDLE
    assert state_of(StateFacts(terminal=True, registration=idle)) is PodState.SPENT
    assert state_of(StateFacts(retiring=True, registration=idle)) is PodState.RETIRING


def test_a_marked_runner_counts_as_a_replica_and_as_surplus_until_it_is_gone() -> None:
    marked = pod(1, PodState.BUSY, marked=True)
    assert retired(look(pool(2), marked, pod(2), pod(3))) == []
    assert look(pool(3), marked, pod(2), pod(3)).create == 0
    assert retired(look(pool(1), marked, pod(2, age=9), pod(3))) == [(2, Why.SURPLUS)]


def test_a_marked_runner_is_not_available_for_a_rollout() -> None:
    stale = [pod(number, stale=True) for number in range(1, 4)]
    marked = pod(4, PodState.BUSY, marked=True, stale=True)
    unmarked = pod(4, PodState.BUSY, stale=True)
    of = pool(4, max_surge=0, max_unavailable_percent=25)
    assert len(look(of, *stale, unmarked).retire) == 1
    assert look(of, *stale, marked).retire == ()


def test_an_old_idle_runner_is_replaced_and_an_old_busy_runner_stays() -> None:
    of = pool(3, max_runner_age=HOUR, max_surge=0)
    old, young = NOW - timedelta(hours=2), NOW - timedelta(minutes=59)
    pods = [
        pod(1, registered_at=young),
        pod(2, registered_at=old),
        pod(3, PodState.BUSY, registered_at=old),
    ]
    assert retired(look(of, *pods)) == [(2, Why.AGE)]
    assert retired(look(pool(3, max_surge=0), *pods)) == []


def test_an_old_runner_is_replaced_by_a_surge_pod_if_no_replica_may_be_unavailable() -> None:
    of = pool(3, max_runner_age=HOUR)
    old, young = NOW - timedelta(hours=2), NOW - timedelta(minutes=59)
    pods = [pod(1, registered_at=young), pod(2, registered_at=old), pod(3, registered_at=old)]
    made = look(of, *pods)
    assert (made.create, made.retire) == (1, ())
    assert look(of, *pods, pod(4, PodState.RESERVED, registering=True)).retire == (), "it is not online yet"
    after = look(of, *pods, pod(4, registered_at=young))
    assert (after.create, retired(after)) == (0, [(2, Why.AGE)])
    busy = [replace(each, state=PodState.BUSY) for each in pods]
    assert look(of, *busy).create == 0, "a busy runner is not replaced for its age"


def busy_runner(number: int, **facts: Any) -> ObservedPod:
    return pod(number, PodState.BUSY, registered_at=NOW - timedelta(hours=2), **facts)


def test_a_busy_runner_is_asked_for_if_no_idle_runner_is_left_to_go() -> None:
    busy = [busy_runner(number, age=100 - number) for number in (1, 2, 3)]
    assert retired(look(pool(2), *busy, pod(4))) == [(4, Why.SURPLUS), (3, Why.SURPLUS)]
    assert retired(look(pool(0, leaving=True), *busy)) == [(3, Why.DRAINED), (2, Why.DRAINED), (1, Why.DRAINED)]
    assert retired(look(pool(2), *busy[:2], replace(busy[2], marked=True))) == [], "it was asked for before"
    assert retired(look(pool(2), *busy[:2], pod(3, PodState.BUSY))) == [(2, Why.SURPLUS)], "a job claim is never asked"


def test_a_rollout_asks_for_busy_runners_after_idle_ones_and_within_its_limits() -> None:
    of = pool(4, max_surge=0, max_unavailable_percent=50)
    busy = [busy_runner(1, stale=True), busy_runner(2, cordoned=True)]
    assert retired(look(of, *busy, pod(3, stale=True), pod(4))) == [(3, Why.TEMPLATE), (2, Why.CORDONED)]
    asked = [replace(each, marked=True) for each in busy]
    assert retired(look(of, *asked, busy_runner(3, stale=True), pod(4))) == []


@st.composite
def fleets(draw: st.DrawFn) -> list[tuple[PodState, bool, bool]]:
    states = st.sampled_from([PodState.WARM, PodState.RESERVED, PodState.BUSY, PodState.STARTING])
    found = draw(st.lists(st.tuples(states, st.booleans(), st.booleans()), max_size=30))
    return [(state, stale, marked and state is PodState.BUSY) for state, stale, marked in found]


@settings(deadline=None)
@given(replicas=st.integers(0, 20), surge=st.integers(0, 3), given_pods=fleets())
def test_no_plan_retires_a_busy_pod_of_a_job_claim_or_exceeds_the_surge(
    replicas: int, surge: int, given_pods: list[tuple[PodState, bool, bool]]
) -> None:
    pods = [
        pod(number, state, stale=stale, marked=marked)
        for number, (state, stale, marked) in enumerate(given_pods, start=1)
    ]
    of = pool(replicas, max_surge=surge)
    made = look(of, *pods)
    busy = {each.id for each in pods if each.state in {PodState.BUSY, PodState.RESERVED}}
    assert not busy & {each.id for each in made.retire}
    assert made.create == 0 or len(pods) + made.create <= replicas + surge_of(of)

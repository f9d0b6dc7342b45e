"""The plan of a pool with persistent runners: the order of removals, and the number of Pods in the meantime."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.claims.machines import RUNNERS, Purpose
from rules.pools.pod_states import AVAILABLE, PodState, Registration, StateFacts, state_of
from rules.pools.pool_plan import IDLE, ObservedPod, PlanFacts, Why, unavailable_of
from tests.unit.rules.pool_strategies import (
    NOW,
    places,
    pods_of,
    pool,
    registered,
    registered_in,
    registering,
    seldom,
    starting,
    unregistered,
)
from tests.unit.rules.test_pool_plan import leaves, look, pod, retired

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


def test_a_row_is_not_given_up_instead_of_a_runner_that_is_marked() -> None:
    row = pod(3, PodState.STARTING, unborn=True, seen=False)
    assert look(pool(2), pod(1, PodState.BUSY, marked=True), pod(2), row).give_up == ()
    assert look(pool(1), pod(1, PodState.BUSY, marked=True), pod(2), row).give_up == (3,)


@pytest.mark.parametrize("flag", ["stale", "cordoned"])
def test_a_pool_of_busy_runners_is_replaced_one_by_one_with_a_surge_pod(flag: str) -> None:
    busy = [busy_runner(number, **{flag: True}) for number in (1, 2, 3)]
    fresh = pod(4, registered_at=NOW)
    assert (look(pool(3), *busy).create, look(pool(3), *busy).retire) == (1, ())
    assert len(retired(look(pool(3), *busy, fresh))) == 1
    asked = [replace(busy[0], marked=True), *busy[1:]]
    waiting = look(pool(3), *asked, fresh)
    assert (waiting.create, waiting.retire) == (0, ()), "GitHub refuses while it executes a job"
    assert (look(pool(3), *busy[1:], fresh).create, look(pool(3), *busy[1:], fresh).retire) == (1, ())


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
    assert retired(look(of, *busy, pod(4, registered_at=young))) == [], "a busy runner is not replaced for its age"


def test_a_surge_pod_stays_while_the_old_runner_has_a_job_again() -> None:
    of = pool(1, max_runner_age=HOUR)
    old = pod(1, PodState.BUSY, registered_at=NOW - timedelta(hours=2))
    surge = pod(2, registered_at=NOW)
    for state in (PodState.STARTING, PodState.RESERVED, PodState.WARM, PodState.BUSY):
        assert look(of, old, replace(surge, state=state, registering=state is PodState.RESERVED)).retire == ()
    assert retired(look(of, replace(old, state=PodState.WARM), surge)) == [(1, Why.AGE)]


def test_a_runner_that_might_never_serve_makes_no_other_runner_surplus() -> None:
    absent = [pod(number, PodState.RESERVED, registering=True) for number in (1, 2, 3, 4)]
    healthy = [pod(number, registered_at=NOW) for number in (5, 6, 7, 8)]
    assert look(pool(4), *absent, *healthy).retire == ()
    assert len(look(pool(3), *absent, *healthy).retire) == 1
    assert len(look(pool(0), *absent, *healthy).retire) == 4
    assert look(pool(1), replace(absent[0], stale=True), healthy[0]).retire == ()
    assert look(pool(1), absent[0], busy_runner(5)).retire == ()


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


fleets = pods_of(registered, registered, registering, unregistered, starting, max_size=24)
replicas = st.integers(0, 12)


calm = registered_in(st.sampled_from([{}, {}, {}, {"cordoned": True}]))


@st.composite
def rollouts(draw: st.DrawFn) -> tuple[PlanFacts, list[ObservedPod]]:
    """Return a pool and about as many Pods as it wants, most of them registered, so that a rollout has room."""
    pods = draw(pods_of(calm, calm, calm, calm, registered, registering, max_size=12))
    wanted = sum(not leaves(each) for each in pods) + draw(st.integers(-2, 2))
    percent, surge = draw(st.sampled_from([10, 25, 50, 100])), draw(st.sampled_from([None, 0, 0, 1, 3]))
    given: dict[str, Any] = {"max_unavailable_percent": percent, "max_surge": surge, "max_runner_age": HOUR}
    return pool(max(0, wanted), leaving=draw(seldom), **given), pods


def refused(pods: Sequence[ObservedPod], chosen: Collection[int]) -> list[ObservedPod]:
    """Return the Pods after a plan, while GitHub refuses to delete the chosen runners."""
    return [replace(each, state=PodState.BUSY, marked=True) if each.id in chosen else each for each in pods]


@given(rollouts())
def test_no_runner_is_asked_for_twice_while_github_refuses(given: tuple[PlanFacts, list[ObservedPod]]) -> None:
    of, pods = given
    asked = {each.id for each in pods if each.marked}
    for _ in range(6):
        chosen = {each.id for each in look(of, *pods).retire}
        assert not chosen & asked
        asked |= {each.id for each in pods if each.id in chosen and each.registered_at is not None}
        pods = refused([each for each in pods if each.id in asked or each.id not in chosen], asked)


@given(rollouts())
def test_no_busy_runner_is_retired_for_its_age(given: tuple[PlanFacts, list[ObservedPod]]) -> None:
    of, pods = given
    made = look(of, *pods)
    by_id = {each.id: each for each in pods}
    old = [by_id[each.id] for each in made.retire if each.why is Why.AGE]
    assert all(each.state is PodState.WARM and each.registered_at is not None for each in old)
    assert all(NOW - each.registered_at > timedelta(seconds=HOUR) for each in old if each.registered_at is not None)


@given(wanted=replicas, leaving=st.booleans(), pods=fleets)
def test_no_busy_runner_leaves_a_pool_that_shrinks_before_every_idle_one_leaves(
    wanted: int, leaving: bool, pods: list[ObservedPod]
) -> None:
    made = look(pool(wanted, leaving=leaving), *pods)
    busy = {each.id for each in pods if each.state is PodState.BUSY}
    chosen = {each.id for each in made.retire}
    if any(each.id in busy and each.why in {Why.SURPLUS, Why.DRAINED} for each in made.retire):
        assert {each.id for each in pods if each.state in IDLE and each.seen and not leaves(each)} <= chosen


@given(wanted=replicas, pods=fleets)
def test_a_marked_runner_is_capacity_until_it_is_unregistered(wanted: int, pods: list[ObservedPod]) -> None:
    of = pool(wanted, max_surge=0, web_beats=False)  # no failed start delays a creation
    kept = [each for each in pods if not leaves(each)]
    unmarked = [each for each in kept if not each.marked]
    assert look(of, *pods).create == max(0, wanted - len(kept))
    surplus = [why for _, why in retired(look(of, *pods)) if why is Why.SURPLUS]
    assert len(surplus) <= max(0, len(unmarked) - wanted), "the marked runners leave as well"
    unregistered = [replace(each, state=PodState.RETIRING) if each.marked else each for each in pods]
    assert look(of, *unregistered).create == max(0, wanted - len(unmarked))


@given(rollouts())
def test_a_rollout_leaves_enough_runners_that_github_showed_and_nobody_removes(
    given: tuple[PlanFacts, list[ObservedPod]],
) -> None:
    of, pods = given
    kept = [each for each in pods if not leaves(each)]
    made = look(of, *pods)
    chosen = {each.id for each in made.retire}
    rolled = {each.id for each in made.retire if each.why in {Why.TEMPLATE, Why.CORDONED, Why.AGE}}
    if any(each.id in rolled and each.state is not PodState.STARTING for each in pods):
        online = [each for each in kept if each.state in AVAILABLE and not each.registering and not each.marked]
        assert sum(each.id not in chosen for each in online) >= of.pool.wanted - unavailable_of(of)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The rows of a Pod. `online`: GitHub showed its runner. `delivered`: the live claim was delivered."""

    purpose: Purpose | None
    delivered: bool
    earlier: bool
    """A claim of the Pod that ended was delivered."""
    online: bool
    executes: bool
    releasing: bool
    polled: bool
    over: bool

    @property
    def asks_github(self) -> bool:
        """Return whether a retirement releases a registration, which asks GitHub to delete the runner first."""
        return self.purpose is Purpose.REGISTER and self.delivered and not self.releasing

    @property
    def may_be_busy(self) -> bool:
        """Return whether a runner of the Pod might have a job, or get one before the Pod is deleted."""
        return not self.over and (self.purpose is not None or self.earlier)

    def observed(self, number: int, **facts: Any) -> ObservedPod:
        """Return the Pod as `tasks.pools.plan.observed_pod` builds it."""
        registration = None
        if self.purpose is Purpose.REGISTER and self.delivered:
            shown = Registration.IDLE if self.online else Registration.BEGUN
            registration = Registration.BUSY if self.releasing or self.executes else shown
        state = state_of(
            StateFacts(
                terminal=self.over,
                retiring=self.purpose is Purpose.RETIRE,
                claimed=self.purpose in RUNNERS,
                delivered=self.delivered,
                ever_delivered=self.delivered or self.earlier,
                may_hold_jit=self.delivered or self.earlier,
                ever_polled=self.polled,
                heard=self.polled and number % 2 == 0,
                registration=registration,
            )
        )
        made = pod(
            number,
            state,
            marked=registration is not None and self.releasing,
            registering=self.purpose is Purpose.REGISTER and not self.online,
            **facts,
        )
        shown_at = NOW - timedelta(hours=2) if registration is not None and self.online else None
        return replace(made, registered_at=shown_at)


evidence = st.builds(
    Evidence,
    purpose=st.sampled_from([None, None, Purpose.JOB, Purpose.REGISTER, Purpose.REGISTER, Purpose.RETIRE]),
    **dict.fromkeys(("delivered", "online", "polled"), st.booleans()),
    **dict.fromkeys(("earlier", "executes", "releasing", "over"), seldom),
).map(lambda given: given if given.purpose in RUNNERS else replace(given, delivered=False, online=False))


@given(wanted=replicas, leaving=st.booleans(), rows=st.lists(evidence, max_size=20), place=places, stale=st.booleans())
def test_no_plan_ends_a_runner_that_may_be_busy_without_asking_github_first(
    wanted: int, leaving: bool, rows: list[Evidence], place: Mapping[str, bool], stale: bool
) -> None:
    pods = [each.observed(number, stale=stale, **place) for number, each in enumerate(rows)]
    chosen = [rows[each.id] for each in look(pool(wanted, leaving=leaving), *pods).retire]
    assert all(each.asks_github and each.online for each in chosen if each.may_be_busy)

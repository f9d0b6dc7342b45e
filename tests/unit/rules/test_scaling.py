"""The formula of the autoscaler, its bounds and its patience."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.pools.node_sharing import stuck
from rules.pools.scaling import Decision, Demand, Limits, Parts, Verdict, decide, explain, growth_only, wanted

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LIMITS = Limits(min_warm=2, max_replicas=20, scale_down_delay=600)

demands = st.builds(Demand, load=st.integers(0, 60), queue=st.integers(0, 60), usual=st.integers(0, 60))
limits = st.builds(
    Limits,
    min_warm=st.integers(0, 30),
    max_replicas=st.integers(0, 40),
    scale_down_delay=st.just(600.0),
    target_busy=st.integers(1, 100),
)


def decided(replicas: int, demand: Demand, *, up: float | None = None, given_limits: Limits = LIMITS) -> Decision:
    since = None if up is None else NOON - timedelta(seconds=up)
    return decide(replicas, wanted(demand, given_limits), limits=given_limits, scaled_up_at=since, why="", now=NOON)


@pytest.mark.parametrize(
    ("demand", "total"),
    [
        (Demand(0, 0, 0), 2),
        (Demand(3, 4, 0), 9),
        (Demand(3, 4, 5), 9),
        (Demand(1, 0, 9), 11),
        (Demand(15, 4, 0), 20),
        (Demand(40, 4, 0), 20),
    ],
)
def test_the_formula(demand: Demand, total: int) -> None:
    assert wanted(demand, LIMITS).total == total


@pytest.mark.parametrize(("usual", "percent", "pods"), [(8, 100, 8), (8, 80, 10), (9, 80, 12), (0, 1, 0), (1, 1, 100)])
def test_the_usual_load_is_at_most_the_wanted_share(usual: int, percent: int, pods: int) -> None:
    assert replace(LIMITS, target_busy=percent).for_usual(usual) == pods


@given(demands, limits)
def test_what_is_wanted_is_the_formula_in_parts_and_within_bounds(demand: Demand, given_limits: Limits) -> None:
    parts = wanted(demand, given_limits)
    usual = math.ceil(100 * demand.usual / given_limits.target_busy)
    formula = max(demand.load + demand.queue, usual) + given_limits.min_warm
    assert parts.total == min(max(formula, 0), given_limits.max_replicas)
    assert min(parts.real, parts.floor, parts.headroom) >= 0
    assert parts.real == min(demand.load + demand.queue, given_limits.max_replicas)
    assert parts.floor <= given_limits.min_warm


@given(demands, limits, st.integers(0, 5), st.integers(0, 5), st.integers(0, 5))
def test_more_demand_never_means_fewer_pods(
    demand: Demand, given_limits: Limits, load: int, queue: int, usual: int
) -> None:
    more = Demand(demand.load + load, demand.queue + queue, demand.usual + usual)
    assert wanted(more, given_limits).total >= wanted(demand, given_limits).total


@given(demands, limits, st.integers(0, 60), st.one_of(st.none(), st.floats(0, 1200)))
def test_decision_stays_within_the_maximum_and_never_drops_load(
    demand: Demand, given_limits: Limits, replicas: int, up: float | None
) -> None:
    decision = decided(replicas, demand, up=up, given_limits=given_limits)
    assert 0 <= decision.replicas <= given_limits.max_replicas
    assert decision.replicas >= min(demand.load + demand.queue, given_limits.max_replicas)


def test_up_is_at_once() -> None:
    decision = decided(3, Demand(3, 4, 0), up=1)
    assert (decision.replicas, decision.verdict) == (9, Verdict.UP)


def test_down_waits_for_the_delay_since_the_last_scale_up() -> None:
    idle = Demand(0, 0, 0)
    assert (decided(9, idle, up=599).replicas, decided(9, idle, up=599).verdict) == (9, Verdict.COOLING)
    assert (decided(9, idle, up=600).replicas, decided(9, idle, up=600).verdict) == (2, Verdict.DOWN)
    assert decided(9, idle).replicas == 2


def test_a_lowered_maximum_waits_for_nothing() -> None:
    lower = Limits(min_warm=2, max_replicas=5, scale_down_delay=600)
    decision = decided(9, Demand(0, 0, 0), up=1, given_limits=lower)
    assert (decision.replicas, decision.verdict) == (5, Verdict.DOWN)


def test_what_may_be_counted_too_low_only_grows() -> None:
    down, up = Decision(1, Verdict.DOWN, ""), Decision(9, Verdict.UP, "")
    assert growth_only(down, 4, why="doubt") == Decision(4, Verdict.LEFT, "doubt")
    assert growth_only(up, 4, why="doubt") == up


@pytest.mark.parametrize(
    ("queue", "idle", "waited", "found"),
    [(3, True, 60, True), (3, True, 59, False), (3, False, 600, False), (0, True, 600, False), (3, True, None, False)],
)
def test_a_queue_is_stuck_when_it_waits_for_long_beside_idle_pods(
    queue: int, idle: bool, waited: float | None, found: bool
) -> None:
    oldest = None if waited is None else NOON - timedelta(seconds=waited)
    assert (stuck(queue=queue, idle=idle, oldest=oldest, now=NOON) is not None) is found


def test_a_decision_is_told_in_numbers() -> None:
    demand = Demand(load=3, queue=4, usual=9)
    assert explain(demand, LIMITS, wanted(demand, LIMITS), short_of=None) == (
        "3 with jobs + 4 queued, usually 9 + 2 warm = 11"
    )
    assert explain(demand, LIMITS, Parts(7, 1, 0), short_of="disk=ssd") == (
        "3 with jobs + 4 queued, usually 9 + 2 warm = 11; 8 fit (disk=ssd)"
    )
    assert "at most 20" in explain(Demand(30, 0, 0), LIMITS, wanted(Demand(30, 0, 0), LIMITS), short_of=None)


def explained(demand: Demand, granted: int, limits: Limits = LIMITS) -> str:
    return explain(demand, limits, Parts(granted, 0, 0), short_of=None)


def test_the_numbers_of_a_decision_are_told() -> None:
    assert explained(Demand(3, 4, 0), 9) == "3 with jobs + 4 queued + 2 warm = 9"
    assert explained(Demand(3, 4, 7), 9) == "3 with jobs + 4 queued + 2 warm = 9"
    assert explained(Demand(3, 4, 8), 10) == "3 with jobs + 4 queued, usually 8 + 2 warm = 10"
    assert explained(Demand(10, 8, 0), 20) == "10 with jobs + 8 queued + 2 warm = 20"
    assert explained(Demand(10, 9, 0), 20) == "10 with jobs + 9 queued + 2 warm, at most 20 = 20"
    assert explained(Demand(3, 4, 0), 8) == "3 with jobs + 4 queued + 2 warm = 9; 8 fit (the nodes)"


def test_a_pool_without_warm_pods_or_replicas_wants_none() -> None:
    assert wanted(Demand(0, 0, 0), Limits(0, 20, 600)) == Parts(0, 0, 0)
    assert wanted(Demand(1, 1, 5), Limits(-3, 20, 600)) == Parts(2, 0, 3)
    none = decide(0, Parts(1, 0, 0), limits=Limits(0, 0, 600), scaled_up_at=None, why="", now=NOON)
    assert (none.replicas, none.verdict) == (0, Verdict.STEADY)


def test_a_pool_at_its_ceiling_cools_down_like_any_other() -> None:
    assert decided(20, Demand(0, 0, 0), up=1).verdict is Verdict.COOLING
    assert decided(21, Demand(0, 0, 0), up=1).replicas == 20

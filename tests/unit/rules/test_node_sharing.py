"""Decisions of the autoscaler while nodes are not Ready."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rules.pools.fleets import Fleet, Needs, Node, Size, Taint
from rules.pools.node_sharing import Contender, Doubts, Outcome, plan
from rules.pools.scaling import Decision, Demand, Parts, Verdict
from tests.rows import pool_spec

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
DELAY = 600.0
LOST = tuple(
    Taint(f"node.kubernetes.io/{key}", "", effect)
    for key in ("not-ready", "unreachable")
    for effect in ("NoSchedule", "NoExecute")
)


def node(*, lost: float | None = None, dated: bool = True, taints: tuple[Taint, ...] = LOST) -> Node:
    """Return a node for nine Pods that has been lost for `lost` seconds."""
    since = NOW - timedelta(seconds=lost) if lost is not None and dated else None
    return Node(
        labels={},
        usable=lost is None,
        allocatable=Size(10_000, 100_000),
        taints=() if lost is None else taints,
        not_ready=lost is not None,
        not_ready_since=since,
    )


def decided(*nodes: Node, replicas: int = 18, warm: int = 18, load: int = 0, delay: float = DELAY) -> Decision:
    contender = view(replicas=replicas, load=load, min_warm=warm, scale_down_delay=delay)
    contender = replace(contender, needs=Needs(Size(1000, 1000), Fleet(), ()))
    return plan([contender], nodes=nodes, doubts=Doubts(), now=NOW)[1].decision


def test_a_lost_node_shrinks_a_pool_after_the_delay_only() -> None:
    assert decided(node(), node()).verdict is Verdict.STEADY
    assert decided(node(), node(lost=DELAY - 1)).verdict is Verdict.LEFT
    late = decided(node(), node(lost=DELAY + 1))
    assert (late.verdict, late.replicas) == (Verdict.DOWN, 9)
    assert decided(node(), node(lost=0), delay=0).verdict is Verdict.DOWN


def test_node_lost_long_ago_does_not_shorten_the_wait_for_another() -> None:
    found = decided(node(), node(lost=9999), node(lost=1), replicas=27, warm=27)
    assert (found.verdict, found.replicas) == (Verdict.DOWN, 18)


def test_a_lost_node_brings_no_growth() -> None:
    found = decided(node(), node(lost=1), replicas=3)
    assert (found.verdict, found.replicas) == (Verdict.UP, 9)


def test_a_pool_shrinks_for_its_demand_while_a_node_is_lost() -> None:
    found = decided(node(), node(lost=1), warm=12)
    assert (found.verdict, found.replicas) == (Verdict.DOWN, 12)
    for_its_demand = decided(node(), node(lost=1), warm=9)
    assert for_its_demand.replicas == 9
    assert "not Ready" not in for_its_demand.why


def test_a_lost_node_whose_time_is_not_known_is_doubt() -> None:
    assert decided(node(), node(lost=1, dated=False)).verdict is Verdict.LEFT


def test_a_lost_node_that_no_pod_may_use_does_not_count() -> None:
    assert decided(node(), node(lost=1, taints=(*LOST, Taint("gpu", "", "NoSchedule")))).verdict is Verdict.DOWN


@pytest.mark.parametrize("lost", [1, 9999])
def test_all_nodes_lost_change_nothing(lost: float) -> None:
    assert decided(node(lost=lost), node(lost=lost)).verdict is Verdict.STEADY


def view(
    pool_id: int = 1, *, load: int = 5, since: datetime | None = None, stuck: str | None = None, **spec: Any
) -> Contender:
    """Return a pool that wants `load` Pods, with these fields of its specification."""
    given = {"autoscaled": True, "replicas": 3, "min_warm": 0, "max_replicas": 100, "scale_down_delay": DELAY, **spec}
    return Contender(
        id=pool_id,
        pool=pool_spec(**given),
        needs=Needs(Size(1000, 1024), Fleet(), ()),
        demand=Demand(load, 0, 0),
        alive=0,
        scaled_up_at=since,
        stuck=stuck,
    )


def test_a_pool_that_is_not_scaled_stays_and_is_granted_nothing() -> None:
    found = plan([view(paused=True)], nodes=None, doubts=Doubts(), now=NOW)[1]
    assert found == Outcome(Decision(3, Verdict.LEFT, "the pool is paused"), Parts(0, 0, 0))


def test_what_other_pools_hold_is_not_granted() -> None:
    views = [view(1, load=0, min_warm=9), replace(view(2, paused=True, replicas=9), alive=4)]
    found = plan(views, nodes=[node()], doubts=Doubts(), now=NOW)[1]
    assert found.decision.replicas == 5
    assert found.decision.why == "0 with jobs + 0 queued + 9 warm = 9; 5 fit (all nodes: 9 vCPU, 87.9 GiB)"
    lost = plan(
        [view(1, load=0, replicas=18, min_warm=18), views[1]],
        nodes=[node(), node(lost=1)],
        doubts=Doubts(),
        now=NOW,
    )[1]
    assert lost.decision.replicas == 14, "those of the lost node are hoped for, without what others hold"


def test_a_scale_up_that_was_lately_delays_a_scale_down() -> None:
    lately = view(replicas=9, since=NOW - timedelta(seconds=1))
    assert plan([lately], nodes=None, doubts=Doubts(), now=NOW)[1].decision.verdict is Verdict.COOLING
    few = view(replicas=9, scale_down_delay=10.0, since=NOW - timedelta(seconds=11))
    assert plan([few], nodes=None, doubts=Doubts(), now=NOW)[1].decision.verdict is Verdict.DOWN


def test_a_pool_whose_queue_says_nothing_does_not_grow_and_may_shrink() -> None:
    grows, shrinks = view(1, stuck="its Pods do not start"), view(2, stuck="its Pods do not start", replicas=9)
    found = plan([grows, shrinks], nodes=None, doubts=Doubts(), now=NOW)
    assert found[1].decision.verdict is Verdict.LEFT
    assert found[1].decision.why.endswith("; but its Pods do not start")
    assert found[2].decision.verdict is Verdict.DOWN


def test_doubts_stop_what_they_are_about() -> None:
    views = [view(1), view(2, replicas=9)]
    barred = plan(views, nodes=None, doubts=Doubts(barred="the gate is tripped"), now=NOW)
    assert {each.decision.verdict for each in barred.values()} == {Verdict.LEFT}
    assert barred[1].granted == Parts(5, 0, 0)
    shrinking = plan(views, nodes=None, doubts=Doubts(shrinking="rows are old"), now=NOW)
    assert [shrinking[n].decision.verdict for n in (1, 2)] == [Verdict.UP, Verdict.LEFT]
    assert shrinking[2].decision.why.endswith("; but rows are old")


def test_the_ceiling_binds_a_pool_that_cools_down_while_a_node_is_lost() -> None:
    lately = view(replicas=25, load=0, min_warm=12, max_replicas=20, since=NOW - timedelta(seconds=1))
    found = plan([lately], nodes=[node(), node(lost=1)], doubts=Doubts(), now=NOW)[1].decision
    assert (found.replicas, found.verdict) == (20, Verdict.DOWN)

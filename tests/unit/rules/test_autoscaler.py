"""What the autoscaler decides while nodes are not Ready."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from rules.autoscaler import Doubts, PoolView, plan
from rules.fleets import Fleet, Node, Size, Taint
from rules.scaling import Decision, Demand, Limits, Verdict

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
DELAY = 600.0
LOST = tuple(Taint(f"node.kubernetes.io/{key}", "", effect)
             for key in ("not-ready", "unreachable") for effect in ("NoSchedule", "NoExecute"))  # fmt: skip


def node(*, lost: float | None = None, dated: bool = True, taints: tuple[Taint, ...] = LOST) -> Node:
    """Return a node for nine Pods, of which one is lost for so many seconds."""
    since = NOW - timedelta(seconds=lost) if lost is not None and dated else None
    return Node(
        labels={}, usable=lost is None, allocatable=Size(10_000, 100_000), taints=() if lost is None else taints,
        not_ready=lost is not None, not_ready_since=since,
    )  # fmt: skip


def decided(*nodes: Node, replicas: int = 18, warm: int = 18, load: int = 0, delay: float = DELAY) -> Decision:
    view = PoolView(
        pool_id=1, replicas=replicas, limits=Limits(warm, 100, delay), demand=Demand(load, 0, 0),
        size=Size(1000, 1000), fleet=Fleet(), tolerations=(), scaled_up_at=None, holds=replicas,
    )  # fmt: skip
    return plan([view], nodes=nodes, doubts=Doubts(), now=NOW)[1].decision


def test_a_lost_node_shrinks_a_pool_after_the_delay_only() -> None:
    assert decided(node(), node()).verdict is Verdict.STEADY
    assert decided(node(), node(lost=DELAY - 1)).verdict is Verdict.LEFT
    late = decided(node(), node(lost=DELAY + 1))
    assert (late.verdict, late.replicas) == (Verdict.DOWN, 9)
    assert decided(node(), node(lost=0), delay=0).verdict is Verdict.DOWN


def test_a_node_that_was_lost_long_ago_ends_no_patience_with_another() -> None:
    found = decided(node(), node(lost=9999), node(lost=1), replicas=27, warm=27)
    assert (found.verdict, found.replicas) == (Verdict.DOWN, 18)


def test_a_lost_node_brings_no_growth() -> None:
    found = decided(node(), node(lost=1), replicas=3)
    assert (found.verdict, found.replicas) == (Verdict.UP, 9)


def test_a_pool_shrinks_for_its_demand_while_a_node_is_lost() -> None:
    found = decided(node(), node(lost=1), warm=12)
    assert (found.verdict, found.replicas) == (Verdict.DOWN, 12)


def test_a_lost_node_whose_time_is_not_known_is_doubt() -> None:
    assert decided(node(), node(lost=1, dated=False)).verdict is Verdict.LEFT


def test_a_lost_node_that_no_pod_may_use_does_not_count() -> None:
    assert decided(node(), node(lost=1, taints=(*LOST, Taint("gpu", "", "NoSchedule")))).verdict is Verdict.DOWN


@pytest.mark.parametrize("lost", [1, 9999])
def test_all_nodes_lost_change_nothing(lost: float) -> None:
    assert decided(node(lost=lost), node(lost=lost)).verdict is Verdict.STEADY

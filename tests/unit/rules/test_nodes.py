"""Gone nodes: when a node counts as gone, and when a Pod of it may be deleted without its kubelet."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.claims.busy import PodEvidence, may_hold_jit
from rules.sweeps.limits import Source, enough
from rules.sweeps.nodes import Gone, NodeHealth, Ready, judge_forced, judge_node, may_force, nothing_forced

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
LOST_AFTER = 600.0

TIMES = st.one_of(st.none(), st.floats(-7200, 7200).map(lambda seconds: NOW - timedelta(seconds=seconds)))
HEALTH = st.builds(
    NodeHealth,
    ready=st.sampled_from([None, *Ready]),
    ready_since=TIMES,
    out_of_service=st.booleans(),
    tainted=st.booleans(),
    tainted_since=TIMES,
)
EVIDENCE = st.builds(
    PodEvidence,
    any_delivered=st.booleans(),
    poller_exit_code=st.sampled_from([None, 0, 1]),
    runner_ever_ready=st.booleans(),
    github_runner_seen=st.just("unknown"),
    terminal=st.booleans(),
    runner_removed_proof=st.booleans(),
)


def judge(node: NodeHealth | None) -> Gone | None:
    return judge_node(node, lost_after=LOST_AFTER, now=NOW)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def test_a_deleted_node_is_gone() -> None:
    assert judge(None) is Gone.DELETED


@pytest.mark.parametrize(
    ("ready", "gone"),
    [(Ready.UNKNOWN, Gone.OUT_OF_SERVICE), (Ready.FALSE, Gone.OUT_OF_SERVICE), (Ready.TRUE, None)],
)
def test_an_out_of_service_node_is_gone_unless_it_is_ready_again(ready: Ready, gone: Gone | None) -> None:
    assert judge(NodeHealth(ready, ready_since=NOW, out_of_service=True)) is gone


@pytest.mark.parametrize(("seconds", "gone"), [(599, None), (600, None), (601, Gone.UNREACHABLE)])
def test_an_unreachable_node_is_gone_when_it_was_lost_for_long_enough(seconds: float, gone: Gone | None) -> None:
    assert judge(NodeHealth(Ready.UNKNOWN, ready_since=ago(seconds))) is gone
    assert judge(NodeHealth(None, tainted=True, tainted_since=ago(seconds))) is gone


def test_of_two_times_the_later_one_counts() -> None:
    node = NodeHealth(Ready.UNKNOWN, ready_since=ago(3600), tainted=True, tainted_since=ago(10))
    assert judge(node) is None


def test_a_kubelet_that_says_not_ready_is_no_lost_one() -> None:
    assert judge(NodeHealth(Ready.FALSE, ready_since=ago(86400))) is None


def test_a_kubelet_that_is_back_but_not_ready_overrides_an_old_taint() -> None:
    assert judge(NodeHealth(Ready.FALSE, ready_since=ago(1), tainted=True, tainted_since=ago(3600))) is None


def test_without_a_time_nothing_is_lost() -> None:
    assert judge(NodeHealth(Ready.UNKNOWN)) is None
    assert judge(NodeHealth(Ready.UNKNOWN, tainted=True)) is None


@given(node=HEALTH)
def test_a_node_that_reports_ready_is_never_gone(node: NodeHealth) -> None:
    verdict = judge(node)
    assert not (node.ready is Ready.TRUE and verdict is not None)
    if verdict is Gone.UNREACHABLE:
        times = [at for at in (node.ready_since, node.tainted_since) if at is not None]
        assert node.unreachable
        assert times
        assert any(at < ago(LOST_AFTER) for at in times)


@pytest.mark.parametrize(("lost", "alive", "doubt"), [(0, 0, True), (1, 0, True), (1, 1, False), (2, 1, True)])
def test_nothing_is_forced_when_more_than_half_of_the_nodes_are_unreachable(
    lost: int, alive: int, *, doubt: bool
) -> None:
    nodes = [NodeHealth(Ready.UNKNOWN)] * lost + [NodeHealth(Ready.TRUE)] * alive
    assert nothing_forced(nodes) is doubt


def test_an_attachable_volume_needs_a_node_that_is_vouched_for() -> None:
    allowed = {
        (gone, volumes)
        for gone, volumes, overdue in product([None, *Gone], [False, True], [False, True])
        if may_force(gone, attachable_volumes=volumes, overdue=overdue and gone is not None)
    }
    assert allowed == {
        (Gone.DELETED, False),
        (Gone.DELETED, True),
        (Gone.OUT_OF_SERVICE, False),
        (Gone.OUT_OF_SERVICE, True),
        (Gone.UNREACHABLE, False),
    }


def test_an_overdue_pod_needs_no_gone_node_but_no_volume_either() -> None:
    assert may_force(None, attachable_volumes=False, overdue=True)
    assert not may_force(None, attachable_volumes=True, overdue=True)
    assert not may_force(Gone.UNREACHABLE, attachable_volumes=True, overdue=True)


@given(evidence=EVIDENCE, gone=st.sampled_from([None, *Gone]), volumes=st.booleans(), overdue=st.booleans())
def test_a_pod_is_forced_only_on_two_witnesses_and_never_when_it_may_hold_a_jit(
    evidence: PodEvidence, gone: Gone | None, *, volumes: bool, overdue: bool
) -> None:
    verdict = judge_forced(evidence, gone, attachable_volumes=volumes, overdue=overdue)
    if verdict.keep:
        return
    assert may_force(gone, attachable_volumes=volumes, overdue=overdue)
    assert gone is not None or (overdue and not volumes)
    assert not may_hold_jit(evidence).busy
    assert enough(verdict.witnesses)
    other = Source.GITHUB if evidence.any_delivered else Source.POSTGRES
    assert {witness.source for witness in verdict.witnesses} == {Source.KUBERNETES, other}
    assert evidence.runner_removed_proof or not evidence.any_delivered


def test_a_pod_that_was_never_given_a_jit_is_forced() -> None:
    evidence = PodEvidence(
        any_delivered=False, poller_exit_code=None, runner_ever_ready=False, github_runner_seen="unknown"
    )
    verdict = judge_forced(evidence, Gone.UNREACHABLE, attachable_volumes=False)
    assert not verdict.keep
    assert verdict.reason == str(Gone.UNREACHABLE)
    assert str(Gone.UNREACHABLE) in {witness.saw for witness in verdict.witnesses}

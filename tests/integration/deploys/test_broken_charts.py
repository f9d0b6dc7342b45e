"""The deploy rule finds the problem of each broken chart, and none in a correct one. The real Helm renders them."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploys.deploy_network import Question, judge_network
from deploys.deploys import Danger
from tests.integration.deploys.charts import BROKEN, SMALL, broken_chart, rendered

RUNNERS = frozenset({"ostler-runners"})

FOUND = {
    "the_original_fault": {Danger.ROLLING_PEER, Danger.BUSY_REACHES_WEB},
    "private_ranges_allowed": {Danger.PRIVATE_EGRESS},
    "busy_pods_dispatch": {Danger.ROLLING_PEER, Danger.BUSY_REACHES_WEB},
    "version_in_selectors": {Danger.IDLE_MISSES_WEB},
    "public_egress_covers_web": {Danger.BUSY_REACHES_WEB},
    "wrong_namespace": {Danger.NOT_RULED},
    "no_base": {Danger.NOT_RULED},
    "open_ingress": {Danger.OPEN_INGRESS, Danger.ROLLING_PEER},
    "dispatch_in_another_namespace": {Danger.IDLE_MISSES_WEB},
    "version_on_base": {Danger.POLICY_REWRITTEN},
}


def dangers(before: Path, after: Path) -> set[Danger]:
    """Return the dangers of a change of the image."""
    old, new = rendered(before, {"tag": "1"}), rendered(after, {"tag": "2"})
    return {each.danger for each in judge_network(Question(old, new, RUNNERS)).refusals}


def test_nothing_is_wrong_with_a_sound_chart() -> None:
    verdict = judge_network(Question(rendered(SMALL, {"tag": "1"}), rendered(SMALL, {"tag": "2"}), RUNNERS))
    assert verdict.refusals == ()
    assert {(row.pool, row.state, row.same, row.reaches_web) for row in verdict.rows} == {
        (f"ostler-runners/{pool}", state, same, not same)
        for pool in ("linux", "windows", "(any other)")
        for state, same in (("stamped", True), ("idle", None))
    }


@pytest.mark.parametrize("name", sorted(each.name for each in BROKEN.iterdir()))
def test_a_broken_chart_is_refused(name: str, tmp_path: Path) -> None:
    chart = broken_chart(name, tmp_path)
    assert dangers(chart, chart) >= FOUND[name]


@pytest.mark.parametrize("name", ["the_original_fault", "private_ranges_allowed", "open_ingress", "wrong_namespace"])
def test_going_to_a_broken_chart_or_away_from_it_changes_peers(name: str, tmp_path: Path) -> None:
    chart = broken_chart(name, tmp_path)
    assert Danger.PEERS_CHANGE in dangers(SMALL, chart)
    assert dangers(chart, SMALL) == {Danger.PEERS_CHANGE}


def test_the_original_fault_is_told_with_its_policy_its_peers_and_its_cure(tmp_path: Path) -> None:
    chart = broken_chart("the_original_fault", tmp_path)
    verdict = judge_network(Question(rendered(chart), rendered(chart, {"tag": "2"}), RUNNERS))
    told = next(each for each in verdict.refusals if each.danger is Danger.ROLLING_PEER)
    assert "runners-base" in told.reason
    assert "Deployment ostler/web" in told.reason
    assert "ostler.dev/runner-pool-owner" in told.cure
    assert told.subjects == ("ostler-runners/linux", "ostler-runners/windows", "ostler-runners/(any other)")

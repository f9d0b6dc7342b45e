"""A delivered Pod is cut off only when the clock, the cluster and GitHub all say so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rules.claims.cuts import CUT_OFF_AFTER, CutEvidence, judge_cut

CUT_OFF = CutEvidence(
    delivered_seconds=CUT_OFF_AFTER, stamped=True, poller_running=True, runner_began=False, github_runner_seen="offline"
)


def test_unresponsive_pod_is_cut_off_fifteen_seconds_after_its_delivery() -> None:
    assert judge_cut(CUT_OFF).cut
    assert judge_cut(replace(CUT_OFF, github_runner_seen="absent")).cut
    assert not judge_cut(replace(CUT_OFF, delivered_seconds=14.9)).cut
    assert not judge_cut(CUT_OFF, after=20).cut


@pytest.mark.parametrize(
    "seen",
    [
        replace(CUT_OFF, stamped=False),
        replace(CUT_OFF, poller_running=False),
        replace(CUT_OFF, runner_began=True),
        replace(CUT_OFF, github_runner_seen="online"),
        replace(CUT_OFF, github_runner_seen="busy"),
        replace(CUT_OFF, github_runner_seen="unknown"),
        replace(CUT_OFF, delivered_seconds=float("nan")),
    ],
)
def test_a_pod_is_not_cut_off_when_one_witness_is_against_it(seen: CutEvidence) -> None:
    assert not judge_cut(seen).cut


def test_the_first_witness_against_a_cut_is_named() -> None:
    verdict = judge_cut(replace(CUT_OFF, stamped=False, poller_running=False))
    assert verdict.why == "the Pod carries no stamp"
    assert "online" in judge_cut(replace(CUT_OFF, github_runner_seen="online")).why
    assert "never came online" in judge_cut(CUT_OFF).why

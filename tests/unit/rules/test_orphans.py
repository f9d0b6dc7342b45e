"""Orphans, and objects that only look like one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.claims.busy import PodEvidence
from rules.sweeps.limits import Source, enough
from rules.sweeps.orphans import (
    FinishedPod,
    QuietPod,
    StampedPod,
    judge_finished,
    judge_orphaned_stamp,
    judge_runner,
    judge_service_account,
    judge_stamped,
    judge_unresponsive,
)

ORPHAN = StampedPod(has_row=True, has_live_claim=False, ever_delivered=False, idle_seconds=301)
WAITING = PodEvidence(any_delivered=False, poller_exit_code=None, runner_ever_ready=False, github_runner_seen="unknown")
SEEN: dict[str, Any] = {"same_uid": True, "stamped": True, "terminating": False, "poller_running": True}
LEFT: dict[str, Any] = {"ours": True, "online": False, "busy": False, "has_live_claim": False, "idle_seconds": 901.0}
LONELY: dict[str, Any] = {"row_is_open": False, "pod_exists": False, "terminating": False, "age_seconds": 601.0}


def test_stamped_pod_without_a_claim_is_checked_after_its_grace() -> None:
    assert judge_stamped(ORPHAN, grace_seconds=300) is None


@pytest.mark.parametrize(
    "change", [{"has_row": False}, {"has_live_claim": True}, {"ever_delivered": True}, {"idle_seconds": 299}]
)
def test_a_stamped_pod_is_left_alone(change: dict[str, Any]) -> None:
    kept = judge_stamped(replace(ORPHAN, **change), grace_seconds=300)

    assert kept is not None
    assert kept.keep


@pytest.mark.parametrize("code", [None, 1, 10, 143])
def test_a_pod_whose_poller_never_wrote_a_jit_goes_by_two_witnesses(code: int | None) -> None:
    verdict = judge_orphaned_stamp(replace(WAITING, poller_exit_code=code), **SEEN)

    assert not verdict.keep
    assert enough(verdict.witnesses)


@pytest.mark.parametrize(
    ("code", "running", "agreed"), [(None, True, True), (1, False, True), (143, False, True), (None, False, False)]
)
def test_sources_agree_on_an_orphan_only_when_its_poller_runs_or_failed(
    code: int | None, *, running: bool, agreed: bool
) -> None:
    verdict = judge_orphaned_stamp(replace(WAITING, poller_exit_code=code), **{**SEEN, "poller_running": running})

    assert (verdict.keep, verdict.agreed) == (False, agreed)


@pytest.mark.parametrize("change", [{"same_uid": False}, {"stamped": False}, {"terminating": True}])
def test_a_pod_that_is_another_or_ends_by_itself_stays(change: dict[str, Any]) -> None:
    assert judge_orphaned_stamp(WAITING, **{**SEEN, **change}).keep


HOLDS = [{"poller_exit_code": 0}, {"runner_ever_ready": True}, {"any_delivered": True}, {"terminal": True}]


@pytest.mark.parametrize("change", HOLDS)
def test_a_pod_that_may_hold_a_jit_stays(change: dict[str, Any]) -> None:
    evidence = replace(WAITING, **change)

    verdict = judge_orphaned_stamp(evidence, **SEEN)
    assert (verdict.keep, verdict.agreed) == (True, False)
    assert judge_unresponsive(QuietPod(quiet_seconds=1000, web_beats=True), evidence, grace_seconds=300).keep


@pytest.mark.parametrize(
    ("pod", "code", "goes"),
    [
        (QuietPod(quiet_seconds=301, web_beats=True), None, True),
        (QuietPod(quiet_seconds=299, web_beats=True), None, False),
        (QuietPod(quiet_seconds=301, web_beats=False), None, False),
        (QuietPod(quiet_seconds=1, web_beats=False), 10, True),
    ],
)
def test_a_pod_goes_for_its_silence_or_for_its_failed_poller(pod: QuietPod, code: int | None, goes: bool) -> None:
    verdict = judge_unresponsive(pod, replace(WAITING, poller_exit_code=code), grace_seconds=300)

    assert verdict.keep != goes
    assert verdict.keep or enough(verdict.witnesses)


@given(
    job_over=st.booleans(),
    outlasts=st.booleans(),
    over_for=st.none() | st.floats(min_value=0, max_value=2000),
    runner=st.sampled_from(["absent", "idle", "busy"]),
    free_for=st.none() | st.floats(min_value=0, max_value=1000),
)
def test_finished_pod_is_retired_only_after_two_checks_of_a_runner_that_is_not_busy(
    job_over: bool,
    outlasts: bool,
    over_for: float | None,
    runner: Any,
    free_for: float | None,
) -> None:
    pod = FinishedPod(
        job_over=job_over, outlasts=outlasts, job_over_seconds=over_for, runner=runner, free_for_seconds=free_for
    )
    verdict = judge_finished(pod, checks_apart=60, job_over_after=900)

    assert verdict.keep == (runner == "busy" or free_for is None or free_for < 60)
    if not verdict.keep:
        assert enough(verdict.witnesses)
        proven = over_for is not None and over_for >= 900
        assert ("the job that the runner executed is over" in str(verdict.proof)) == proven
        assert ("removes the runner from GitHub" in str(verdict.proof)) != proven


@given(
    over_for=st.none() | st.floats(min_value=0, max_value=2000),
    runner=st.sampled_from(["absent", "idle", "busy"]),
    free_for=st.none() | st.floats(min_value=0, max_value=1000),
    absent_for=st.none() | st.floats(min_value=0, max_value=1000),
)
def test_a_pod_that_only_lingers_goes_only_when_its_runner_was_absent_in_two_checks(
    over_for: float | None, runner: Any, free_for: float | None, absent_for: float | None
) -> None:
    pod = FinishedPod(
        job_over=True,
        outlasts=False,
        job_over_seconds=over_for,
        runner=runner,
        free_for_seconds=free_for,
        absent_for_seconds=absent_for,
        overdue=False,
    )
    verdict = judge_finished(pod, checks_apart=55, job_over_after=900, absent_after=90)

    proven = over_for is not None and over_for >= 90 and absent_for is not None and absent_for >= 55
    assert verdict.keep != (runner == "absent" and proven)
    if not verdict.keep:
        assert enough(verdict.witnesses)
        assert verdict.proof == "GitHub removed the runner"


def test_a_runner_of_an_ended_claim_goes() -> None:
    verdict = judge_runner(**LEFT, grace_seconds=900)

    assert not verdict.keep
    assert enough(verdict.witnesses)


@pytest.mark.parametrize(
    "change", [{"ours": False}, {"online": True}, {"busy": True}, {"has_live_claim": True}, {"idle_seconds": 899.0}]
)
def test_a_runner_stays(change: dict[str, Any]) -> None:
    assert judge_runner(**{**LEFT, **change}, grace_seconds=900).keep


def test_a_service_account_without_a_pod_goes() -> None:
    verdict = judge_service_account(**LONELY, grace_seconds=600)

    assert not verdict.keep
    assert enough(verdict.witnesses)


@pytest.mark.parametrize(
    "change", [{"row_is_open": True}, {"pod_exists": True}, {"terminating": True}, {"age_seconds": 599.0}]
)
def test_a_service_account_stays(change: dict[str, Any]) -> None:
    assert judge_service_account(**{**LONELY, **change}, grace_seconds=600).keep


def test_each_orphan_is_judged_from_the_end_of_its_grace_on() -> None:
    silent = QuietPod(quiet_seconds=300, web_beats=True)
    assert judge_stamped(replace(ORPHAN, idle_seconds=300), grace_seconds=300) is None
    assert not judge_unresponsive(silent, WAITING, grace_seconds=300).keep
    assert not judge_runner(**{**LEFT, "idle_seconds": 900.0}, grace_seconds=900).keep
    assert not judge_service_account(**{**LONELY, "age_seconds": 600.0}, grace_seconds=600).keep


@pytest.mark.parametrize(("code", "seen"), [(None, "has not exited"), (10, "exited 10")])
def test_the_witness_of_kubernetes_says_what_the_poller_did(code: int | None, seen: str) -> None:
    verdict = judge_orphaned_stamp(replace(WAITING, poller_exit_code=code), **SEEN)
    said = {witness.source: witness.saw for witness in verdict.witnesses}
    assert seen in said[Source.KUBERNETES]
    assert "delivered" in said[Source.POSTGRES]


@pytest.mark.parametrize(
    ("online", "busy", "seen"), [(True, False, "online"), (True, True, "online"), (False, True, "busy")]
)
def test_a_runner_that_stays_says_what_github_saw(online: bool, busy: bool, seen: str) -> None:
    assert seen in judge_runner(**{**LEFT, "online": online, "busy": busy}, grace_seconds=900).reason


@pytest.mark.parametrize(
    ("pod", "what", "witness"),
    [
        ({"node_gone": "its node is deleted", "outlasts": True}, "its node is deleted", Source.KUBERNETES),
        ({"outlasts": True}, "longer than GitHub allows", Source.POSTGRES),
        ({}, "the job of the Pod is over", Source.POSTGRES),
        ({"job_over": False}, "no running job of the Pod is known", Source.POSTGRES),
    ],
)
def test_a_finished_pod_goes_for_the_strongest_reason_in_the_words_of_its_source(
    pod: dict[str, Any], what: str, witness: Source
) -> None:
    finished = FinishedPod(
        **{
            "job_over": True,
            "outlasts": False,
            "job_over_seconds": None,
            "runner": "idle",
            "free_for_seconds": 60.0,
            **pod,
        }
    )
    verdict = judge_finished(finished, checks_apart=60, job_over_after=900)
    assert what in verdict.reason
    said = {each.source: each.saw for each in verdict.witnesses}
    assert what in said[witness]
    assert "idle now" in said[Source.GITHUB]
    assert set(said) == {Source.GITHUB, witness}


def test_pod_is_checked_again_when_its_job_ended_a_moment_ago() -> None:
    lingers = FinishedPod(
        job_over=True,
        outlasts=False,
        job_over_seconds=90,
        runner="absent",
        free_for_seconds=1000.0,
        absent_for_seconds=54.9,
        overdue=False,
    )
    assert judge_finished(lingers, checks_apart=55, job_over_after=900, absent_after=90).keep
    gone = replace(lingers, absent_for_seconds=55)
    assert not judge_finished(gone, checks_apart=55, job_over_after=900, absent_after=90).keep


def test_the_end_of_a_job_is_proof_after_the_time_that_the_caller_gives() -> None:
    pod = FinishedPod(job_over=True, outlasts=False, job_over_seconds=100, runner="idle", free_for_seconds=60)
    assert "the job that the runner executed is over" in str(
        judge_finished(pod, checks_apart=60, job_over_after=100).proof
    )
    assert "removes the runner from GitHub" in str(judge_finished(pod, checks_apart=60, job_over_after=101).proof)

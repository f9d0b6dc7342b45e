"""May a Pod hold a JIT: the judgement that protects running jobs (law L3)."""

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.claims.busy import PodEvidence, RunnerSeen, may_hold_jit

WARM = PodEvidence(any_delivered=False, poller_exit_code=None, runner_ever_ready=False, github_runner_seen="absent")
DELIVERED = replace(WARM, any_delivered=True, poller_exit_code=0, github_runner_seen="unknown")
EVIDENCE = st.builds(
    PodEvidence,
    any_delivered=st.booleans(),
    poller_exit_code=st.sampled_from([None, 0, 1, 10]),
    runner_ever_ready=st.booleans(),
    github_runner_seen=st.sampled_from(get_args(RunnerSeen)),
    terminal=st.booleans(),
    gone=st.booleans(),
    runner_removed_proof=st.booleans(),
    executed_job_terminal_for_seconds=st.none() | st.floats(),
    runner_absent_or_idle_in_two_checks=st.booleans(),
)


def test_a_warm_pod_holds_nothing() -> None:
    assert not may_hold_jit(WARM).busy


@pytest.mark.parametrize(
    ("evidence", "reason"),
    [
        (replace(WARM, any_delivered=True), "a claim was delivered"),
        (replace(WARM, poller_exit_code=0), "the poller exited 0"),
        (replace(WARM, runner_ever_ready=True), "the container `runner` is or was ready"),
        (replace(WARM, github_runner_seen="online"), "the runner of the Pod is online on GitHub"),
        (replace(WARM, github_runner_seen="busy"), "the runner of the Pod is busy on GitHub"),
    ],
)
def test_each_sign_of_a_delivery_is_enough_alone_and_is_named(evidence: PodEvidence, reason: str) -> None:
    verdict = may_hold_jit(evidence)

    assert verdict.busy
    assert verdict.reasons == (reason,)


@pytest.mark.parametrize("seen", ["offline", "absent", "unknown"])
@pytest.mark.parametrize("exit_code", [None, 1, 10])
def test_a_runner_minted_and_never_delivered_is_not_enough(seen: RunnerSeen, exit_code: int | None) -> None:
    assert not may_hold_jit(replace(WARM, github_runner_seen=seen, poller_exit_code=exit_code)).busy


@pytest.mark.parametrize("seen", ["offline", "absent", "unknown"])
def test_one_check_without_the_runner_frees_no_delivered_pod(seen: RunnerSeen) -> None:
    assert may_hold_jit(replace(DELIVERED, github_runner_seen=seen)).busy


def test_a_pod_that_is_terminal_or_gone_holds_nothing() -> None:
    assert not may_hold_jit(replace(DELIVERED, terminal=True)).busy
    assert not may_hold_jit(replace(DELIVERED, gone=True, github_runner_seen="busy")).busy


def test_removed_runner_frees_the_pod_unless_the_last_check_found_it_alive() -> None:
    removed = replace(DELIVERED, runner_removed_proof=True)

    assert not may_hold_jit(removed).busy
    assert may_hold_jit(replace(removed, github_runner_seen="online")).busy
    assert may_hold_jit(replace(removed, github_runner_seen="busy")).busy


def test_end_of_the_executed_job_frees_a_pod_with_an_idle_runner_after_15_minutes() -> None:
    over = replace(DELIVERED, executed_job_terminal_for_seconds=900, runner_absent_or_idle_in_two_checks=True)

    assert not may_hold_jit(over).busy
    assert not may_hold_jit(replace(over, github_runner_seen="online")).busy
    assert may_hold_jit(replace(over, github_runner_seen="busy")).busy
    assert may_hold_jit(replace(over, executed_job_terminal_for_seconds=899)).busy
    assert may_hold_jit(replace(over, executed_job_terminal_for_seconds=None)).busy
    assert may_hold_jit(replace(over, runner_absent_or_idle_in_two_checks=False)).busy
    assert not may_hold_jit(replace(over, executed_job_terminal_for_seconds=60), job_over_after=60).busy


@given(evidence=EVIDENCE)
def test_every_verdict_has_a_reason(evidence: PodEvidence) -> None:
    assert may_hold_jit(evidence).reasons


@given(evidence=EVIDENCE)
def test_a_pod_without_any_proof_is_busy_as_soon_as_there_is_one_sign(evidence: PodEvidence) -> None:
    unproven = replace(
        evidence, terminal=False, gone=False, runner_removed_proof=False, executed_job_terminal_for_seconds=None
    )
    signs = (
        unproven.any_delivered,
        unproven.poller_exit_code == 0,
        unproven.runner_ever_ready,
        unproven.github_runner_seen in {"online", "busy"},
    )

    assert may_hold_jit(unproven).busy == any(signs)


@given(evidence=EVIDENCE)
def test_more_signs_never_free_a_pod(evidence: PodEvidence) -> None:
    if may_hold_jit(evidence).busy:
        more = replace(evidence, any_delivered=True, runner_ever_ready=True, github_runner_seen="busy")
        assert may_hold_jit(more).busy

"""The claim that a started job belongs to, and the binding it displaces."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from rules.intake.bindings import ClaimView, JobView, Loss, Runner, judge_runner, loss_of, may_swap

CLAIM = ClaimView(
    id=1, state="delivered", job_id=10, pool_id=1, account_id=7, scope="orgs/acme", vcpu=1, memory=1, runner_name="r"
)
LOSER = replace(CLAIM, id=2, job_id=11, runner_name="s")
FORMER = JobView(
    id=10, state="claimed", account_id=7, pool_id=1, vcpu=1, memory=1, queued_at=datetime(2026, 11, 20, tzinfo=UTC)
)


@pytest.mark.parametrize("state", ["delivered", "executing", "releasing"])
def test_a_runner_whose_jit_may_have_left_us_is_ours(state: str) -> None:
    assert judge_runner(replace(CLAIM, state=state), runner_name="r", job_id=10) is Runner.OURS


@pytest.mark.parametrize("state", ["claimed", "minted"])
def test_a_runner_that_was_never_delivered_cannot_run(state: str) -> None:
    assert judge_runner(replace(CLAIM, state=state), runner_name="r", job_id=10) is Runner.UNDELIVERED


def test_a_runner_of_an_older_attempt_of_the_claim_was_never_delivered() -> None:
    assert judge_runner(CLAIM, runner_name="older", job_id=10) is Runner.UNDELIVERED


def test_a_runner_without_a_live_claim_is_foreign() -> None:
    assert judge_runner(None, runner_name="r", job_id=10) is Runner.FOREIGN


def test_a_single_use_runner_takes_no_second_job() -> None:
    busy = replace(CLAIM, state="executing", executes=10)
    assert judge_runner(busy, runner_name="r", job_id=10) is Runner.OURS
    assert judge_runner(busy, runner_name="r", job_id=11) is Runner.TAKEN


@pytest.mark.parametrize(
    ("state", "loss"),
    [
        ("claimed", Loss.RELEASE),
        ("minted", Loss.RELEASE),
        ("delivered", Loss.SPARE),
        ("executing", Loss.FORGET),
        ("releasing", Loss.FORGET),
    ],
)
def test_what_becomes_of_a_claim_that_lost_its_job(state: str, loss: Loss) -> None:
    assert loss_of(replace(CLAIM, state=state)) is loss


@pytest.mark.parametrize("state", ["claimed", "minted", "delivered"])
def test_two_claims_of_one_pool_and_scope_swap(state: str) -> None:
    assert may_swap(CLAIM, replace(LOSER, state=state), FORMER)


@pytest.mark.parametrize(
    "loser",
    [
        replace(LOSER, pool_id=2),
        replace(LOSER, scope="repos/acme/app"),
        replace(LOSER, account_id=8),
        replace(LOSER, state="releasing"),
        replace(LOSER, state="executing"),
    ],
)
def test_a_claim_elsewhere_or_not_free_gets_no_job(loser: ClaimView) -> None:
    assert not may_swap(CLAIM, loser, FORMER)


@pytest.mark.parametrize("former", [None, replace(FORMER, state="running"), replace(FORMER, state="completed")])
def test_only_a_job_that_waits_for_its_runner_is_handed_on(former: JobView | None) -> None:
    assert not may_swap(CLAIM, LOSER, former)

"""Transitions that end a stall, and those that show that the claim never was stalled."""

from __future__ import annotations

import pytest

from rules.claims.machines import TRANSITIONS, ClaimState, Machine
from rules.claims.stalls import PATHS, After, Cause, after

ENDS = [t.name for t in TRANSITIONS.values() if t.machine is Machine.CLAIM and t.target == ClaimState.ENDED]


@pytest.mark.parametrize("cause", Cause)
@pytest.mark.parametrize("name", ENDS)
def test_the_end_of_a_claim_serves_it_whatever_it_was_stalled_by(cause: Cause, name: str) -> None:
    assert after(cause, name) is After.SERVED


@pytest.mark.parametrize("cause", Cause)
@pytest.mark.parametrize("name", ["begin_release", "stamp_on", "lease_mint"])
def test_what_only_begins_serves_nobody(cause: Cause, name: str) -> None:
    assert after(cause, name) is After.STALLED


def test_a_step_serves_a_claim_whose_message_was_lost_and_no_claim_whose_pod_is_gone() -> None:
    assert after(Cause.MESSAGE_LOST, "mint") is After.SERVED
    assert after(Cause.POD_GONE, "refuse_release") is After.STALLED


def test_a_runner_that_executes_after_all_was_not_unused() -> None:
    assert after(Cause.RUNNER_UNUSED, "refuse_release") is After.NEVER_WAS
    assert after(Cause.RUNNER_UNUSED, "execute") is After.NEVER_WAS


def test_every_cause_has_somebody_who_finds_it() -> None:
    assert {cause for cause, _ in PATHS} == set(Cause)

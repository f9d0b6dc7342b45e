"""The decision about a request to queue a job again."""

from __future__ import annotations

import itertools

import pytest

from rules.claims.machines import TRANSITIONS, ClaimState, JobState
from rules.claims.requeues import Requeue, judge, sentence
from rules.routing.holds import HoldReason


@pytest.mark.parametrize("hold", list(HoldReason))
def test_every_hold_but_a_question_is_decided_again(hold: HoldReason) -> None:
    expected = Requeue.ASK if hold is HoldReason.ASK_GITHUB else Requeue.ROUTE
    assert judge(JobState.QUEUED, hold=hold, claim=None) is expected


def test_release_is_asked_for_exactly_where_a_release_may_begin() -> None:
    found = {each for each in ClaimState if judge(JobState.CLAIMED, hold=None, claim=each) is Requeue.RELEASE}
    assert found == TRANSITIONS["begin_release"].sources


def test_claimed_job_without_a_live_claim_is_asked_about() -> None:
    assert judge(JobState.CLAIMED, hold=None, claim=None) is Requeue.ASK


def test_no_request_touches_a_job_that_runs_or_is_over() -> None:
    for state, hold, claim in itertools.product(
        (JobState.RUNNING, JobState.COMPLETED, JobState.WAITING), (None, *HoldReason), (None, *ClaimState)
    ):
        assert judge(state, hold=hold, claim=claim).refused


def test_every_action_has_a_sentence() -> None:
    assert all(sentence(each, hold=hold) for each in Requeue for hold in (None, HoldReason.NO_POOL))

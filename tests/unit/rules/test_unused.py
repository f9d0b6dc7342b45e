"""Delivered claims without an execution, and spares: the verdict of the sweep on each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.sweeps.unused import ClaimedJob, RunnerNow, UnusedAction, UnusedClaim, judge_unused

OLD = 61.0


def judge(
    runner: RunnerNow, job: ClaimedJob = ClaimedJob.NOT_ASKED, *, absent_before: bool = False, age: float = OLD
) -> UnusedAction:
    claim = UnusedClaim(runner=runner, absent_before=absent_before, job=job, is_spare=False, age_seconds=age)
    return judge_unused(claim).action


def judge_spare(runner: RunnerNow, *, absent_before: bool = False, age: float = OLD) -> UnusedAction:
    claim = UnusedClaim(
        runner=runner, absent_before=absent_before, job=ClaimedJob.NOT_ASKED, is_spare=True, age_seconds=age
    )
    return judge_unused(claim).action


@pytest.mark.parametrize(
    ("job", "action"),
    [
        (ClaimedJob.NOT_ASKED, UnusedAction.ASK_JOB),
        (ClaimedJob.IN_PROGRESS_HERE, UnusedAction.EXECUTE),
        (ClaimedJob.IN_PROGRESS_ELSEWHERE, UnusedAction.EXECUTE_UNBOUND),
        (ClaimedJob.QUEUED, UnusedAction.EXECUTE_UNBOUND),
        (ClaimedJob.TERMINAL, UnusedAction.EXECUTE_UNBOUND),
        (ClaimedJob.UNKNOWN, UnusedAction.EXECUTE_UNBOUND),
    ],
)
def test_a_busy_runner_executes_and_is_bound_only_to_a_job_that_runs_on_it(
    job: ClaimedJob, action: UnusedAction
) -> None:
    assert judge(RunnerNow.BUSY, job) is action


@pytest.mark.parametrize(
    ("job", "action"),
    [
        (ClaimedJob.NOT_ASKED, UnusedAction.ASK_JOB),
        (ClaimedJob.IN_PROGRESS_HERE, UnusedAction.EXECUTE),
        (ClaimedJob.IN_PROGRESS_ELSEWHERE, UnusedAction.SPARE),
        (ClaimedJob.QUEUED, UnusedAction.WAIT),
        (ClaimedJob.TERMINAL, UnusedAction.SPARE),
        (ClaimedJob.UNKNOWN, UnusedAction.WAIT),
    ],
)
def test_an_idle_runner_waits_for_its_queued_job_and_becomes_a_spare_without_one(
    job: ClaimedJob, action: UnusedAction
) -> None:
    assert judge(RunnerNow.ONLINE_IDLE, job) is action


def test_an_offline_runner_never_started_unless_github_runs_its_job_on_it() -> None:
    assert judge(RunnerNow.OFFLINE) is UnusedAction.RELEASE_NEVER_STARTED
    assert judge(RunnerNow.OFFLINE, ClaimedJob.IN_PROGRESS_HERE) is UnusedAction.EXECUTE


@pytest.mark.parametrize(
    ("age", "restarts", "action"),
    [
        (OLD, True, UnusedAction.WAIT),
        (599.9, True, UnusedAction.WAIT),
        (600.0, True, UnusedAction.RELEASE_NEVER_STARTED),
        (OLD, False, UnusedAction.RELEASE_NEVER_STARTED),
    ],
)
def test_an_offline_runner_that_was_online_has_ten_minutes_for_an_update_of_itself(
    age: float, restarts: bool, action: UnusedAction
) -> None:
    claim = UnusedClaim(
        runner=RunnerNow.OFFLINE,
        absent_before=False,
        job=ClaimedJob.NOT_ASKED,
        is_spare=False,
        age_seconds=age,
        restarts=restarts,
    )
    assert judge_unused(claim).action is action


@pytest.mark.parametrize(
    ("job", "action"),
    [
        (ClaimedJob.NOT_ASKED, UnusedAction.ASK_JOB),
        (ClaimedJob.IN_PROGRESS_HERE, UnusedAction.EXECUTE),
        (ClaimedJob.IN_PROGRESS_ELSEWHERE, UnusedAction.SPARE),
        (ClaimedJob.QUEUED, UnusedAction.RELEASE_NEVER_STARTED),
        (ClaimedJob.TERMINAL, UnusedAction.FINISH),
        (ClaimedJob.UNKNOWN, UnusedAction.WAIT),
    ],
)
def test_runner_absent_in_two_checks_is_decided_by_its_job(job: ClaimedJob, action: UnusedAction) -> None:
    assert judge(RunnerNow.ABSENT, job, absent_before=True) is action


def test_a_runner_absent_for_the_first_time_waits() -> None:
    assert judge(RunnerNow.ABSENT, ClaimedJob.QUEUED) is UnusedAction.WAIT
    assert judge_spare(RunnerNow.ABSENT) is UnusedAction.WAIT


def test_a_spare_without_a_job_in_time_is_retired_and_a_busy_one_executes() -> None:
    assert judge_spare(RunnerNow.ONLINE_IDLE) is UnusedAction.RETIRE_SPARE
    assert judge_spare(RunnerNow.OFFLINE) is UnusedAction.RETIRE_SPARE
    assert judge_spare(RunnerNow.ABSENT, absent_before=True) is UnusedAction.RETIRE_SPARE
    assert judge_spare(RunnerNow.BUSY) is UnusedAction.EXECUTE_UNBOUND


@pytest.mark.parametrize("runner", RunnerNow)
def test_a_job_that_ended_on_the_claims_runner_finishes_it_whatever_the_list_shows(runner: RunnerNow) -> None:
    assert judge(runner, ClaimedJob.TERMINAL_HERE) is UnusedAction.FINISH


@pytest.mark.parametrize("job", [ClaimedJob.IN_PROGRESS_HERE, ClaimedJob.TERMINAL_HERE])
def test_a_spare_is_not_judged_by_the_job_that_it_lost(job: ClaimedJob) -> None:
    spare = UnusedClaim(RunnerNow.ONLINE_IDLE, absent_before=False, job=job, is_spare=True, age_seconds=OLD)
    assert judge_unused(spare).action is UnusedAction.RETIRE_SPARE


def test_a_claim_is_judged_from_the_end_of_its_grace_on() -> None:
    assert judge(RunnerNow.OFFLINE, age=59.9) is UnusedAction.WAIT
    assert judge(RunnerNow.OFFLINE, age=60.0) is UnusedAction.RELEASE_NEVER_STARTED


def test_runner_list_is_a_check_when_it_is_known_and_the_claim_is_old_enough() -> None:
    def look(runner: RunnerNow, age: float) -> tuple[UnusedAction, bool]:
        verdict = judge_unused(
            UnusedClaim(runner, absent_before=False, job=ClaimedJob.QUEUED, is_spare=False, age_seconds=age)
        )
        return verdict.action, verdict.counts

    assert look(RunnerNow.ABSENT, OLD) == (UnusedAction.WAIT, True)
    assert look(RunnerNow.ABSENT, 1.0) == (UnusedAction.WAIT, False)
    assert look(RunnerNow.UNKNOWN, OLD) == (UnusedAction.WAIT, False)


CLAIMS = st.builds(
    UnusedClaim,
    runner=st.sampled_from(RunnerNow),
    absent_before=st.booleans(),
    job=st.sampled_from(ClaimedJob),
    is_spare=st.booleans(),
    age_seconds=st.floats(),
)
ENDS = {UnusedAction.RELEASE_NEVER_STARTED, UnusedAction.FINISH, UnusedAction.RETIRE_SPARE}


@given(claim=CLAIMS)
def test_nothing_is_ended_young_busy_running_on_a_failed_list_or_after_one_check(claim: UnusedClaim) -> None:
    verdict = judge_unused(claim)

    assert verdict.reason
    if verdict.action in ENDS:
        assert claim.age_seconds >= 60
        over_here = claim.job is ClaimedJob.TERMINAL_HERE
        assert claim.runner not in {RunnerNow.BUSY, RunnerNow.UNKNOWN} or over_here
        assert claim.runner is not RunnerNow.ABSENT or claim.absent_before or over_here
        assert claim.is_spare or claim.job is not ClaimedJob.IN_PROGRESS_HERE


@given(claim=CLAIMS)
def test_github_is_asked_at_most_once_for_a_claim_with_a_job_and_never_for_a_spare(claim: UnusedClaim) -> None:
    if judge_unused(claim).action is UnusedAction.ASK_JOB:
        assert claim.job is ClaimedJob.NOT_ASKED
        assert not claim.is_spare


@pytest.mark.parametrize(
    ("runner", "job", "age", "unlabelled", "action"),
    [
        (RunnerNow.ONLINE_IDLE, ClaimedJob.QUEUED, 120.0, True, UnusedAction.RELEASE_NOT_GIVEN),
        (RunnerNow.ONLINE_IDLE, ClaimedJob.QUEUED, 119.0, True, UnusedAction.WAIT),
        (RunnerNow.ONLINE_IDLE, ClaimedJob.QUEUED, 9999.0, False, UnusedAction.WAIT),
        (RunnerNow.ONLINE_IDLE, ClaimedJob.UNKNOWN, 9999.0, True, UnusedAction.WAIT),
        (RunnerNow.BUSY, ClaimedJob.QUEUED, 9999.0, True, UnusedAction.EXECUTE_UNBOUND),
    ],
)
def test_only_an_idle_runner_stops_waiting_for_a_queued_job_without_labels(
    runner: RunnerNow, job: ClaimedJob, age: float, unlabelled: bool, action: UnusedAction
) -> None:
    claim = UnusedClaim(
        runner=runner, absent_before=False, job=job, is_spare=False, age_seconds=age, unlabelled=unlabelled
    )
    assert judge_unused(claim).action is action

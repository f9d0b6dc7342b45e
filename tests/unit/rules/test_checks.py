"""Checks of a job: one for each step in order, and the first that the job cannot pass is the explanation."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from rules.claims.fairness import Usage
from rules.claims.machines import ClaimState, JobState, Stamp
from rules.claims.runner_brakes import Brake
from rules.routing.holds import HoldReason
from rules.waiting.facts import ClaimFacts, JobFacts, RegisteredRunners
from rules.waiting.jobs import explain
from rules.waiting.steps import Check, Expected, Result, Step
from tests.unit.rules.test_waiting import JOB, POOL, of_spec

AT = datetime(2026, 11, 21, 3, 4, 5, tzinfo=UTC)
BRAKE = Brake(7, AT, AT, AT, jobs=3, pods=4, exit_code=1, why="the Pod has ended")
FULL = Usage(count=2, vcpu_millicores=4000, memory_mib=8192)
RUNNERS = RegisteredRunners(scope="orgs/acme", online=2, busy=1)

POOLS = st.builds(
    of_spec,
    st.just(POOL),
    warm=st.integers(0, 2),
    deleted_at=st.sampled_from([None, AT]),
    rerouting=st.booleans(),
    paused=st.booleans(),
    brake=st.sampled_from([None, BRAKE, replace(BRAKE, account_id=8)]),
    runners=st.sampled_from([None, None, RUNNERS]),
)
CLAIMS = st.builds(
    ClaimFacts,
    id=st.just(9),
    state=st.sampled_from([each for each in ClaimState if each is not ClaimState.ENDED]),
    stamp=st.sampled_from(list(Stamp)),
    pod=st.just("small-1"),
    runner=st.just("small-1-r"),
    created_at=st.just(AT),
)
JOBS = st.builds(
    replace,
    st.just(JOB),
    state=st.sampled_from(list(JobState)),
    hold_reason=st.sampled_from([None, None, *HoldReason]),
    hold_detail=st.just("a detail"),
    pool=st.none() | POOLS,
    ahead=st.integers(0, 3),
    usage=st.sampled_from([Usage(0, 0, 0), FULL]),
    database_older=st.booleans(),
    queued_at=st.just(AT),
)


def checks(**changes: object) -> dict[Step, Check]:
    return {each.step: each for each in explain(replace(JOB, **changes)).checks}  # type: ignore[arg-type]


@given(job=JOBS, claim=CLAIMS)
def test_first_check_that_the_job_cannot_pass_is_the_explanation(job: JobFacts, claim: ClaimFacts) -> None:
    if job.state is JobState.CLAIMED:
        job = replace(job, claim=claim)
    found = explain(job)
    if job.state in {JobState.RUNNING, JobState.COMPLETED}:
        assert found.checks == ()
        return
    order = list(Step)
    assert [each.step for each in found.checks] == sorted({each.step for each in found.checks}, key=order.index)
    passed = list(takewhile(lambda each: each.result is Result.PASSED, found.checks))
    first, *later = found.checks[len(passed) :]
    assert first.result is Result.WAITS
    assert first.evidence
    assert found.summary.endswith(first.evidence)
    assert all(each.evidence for each in passed)
    assert Result.PASSED not in {each.result for each in later}
    by_step = {each.step: each for each in found.checks}
    turn = by_step.get(Step.TURN)
    assert turn is None or turn is first or turn.result is not Result.WAITS
    stamp = by_step.get(Step.STAMP)
    if stamp is not None and stamp.result is Result.PASSED:
        assert (stamp.evidence == "Pod small-1 is stamped.") is (claim.stamp is Stamp.ON)
    if job.hold_reason is HoldReason.ASK_GITHUB and not job.database_older:
        assert not {Step.ACCOUNT, Step.POOL, Step.RUNNER_GROUP} & {each.step for each in passed}


def test_a_queued_job_shows_every_step_that_stops_it_and_the_rest_as_open() -> None:
    found = checks(usage=FULL, pool=of_spec(POOL, warm=0, paused=True), ahead=2, queued_at=AT)
    assert [step for step, each in found.items() if each.result is Result.WAITS] == [Step.BUDGET, Step.POD]
    assert found[Step.ENVIRONMENT].at == AT
    assert "creates no Pods" in (found[Step.POD].evidence or "")
    assert found[Step.TURN].evidence == "2 jobs of the same account in the same pool come first."
    assert {found[step].result for step in (Step.TURN, Step.STAMP, Step.START)} == {Result.OPEN}
    assert not {Step.ANSWER, Step.RELEASE} & set(found)


def test_a_held_job_shows_nothing_about_the_steps_behind_its_hold() -> None:
    found = checks(hold_reason=HoldReason.UNKNOWN_ACCOUNT, pool=None)
    assert found[Step.ACCOUNT].result is Result.WAITS
    behind = list(found.values())[list(found).index(Step.ACCOUNT) + 1 :]
    assert {(each.result, each.evidence) for each in behind} == {(Result.OPEN, None)}


def test_a_claimed_job_shows_when_it_passed_each_step() -> None:
    claim = ClaimFacts(9, ClaimState.DELIVERED, Stamp.ON, "small-1", "small-1-r", None, AT, AT, AT)
    found = checks(state=JobState.CLAIMED, claim=claim)
    assert [step for step, each in found.items() if each.at == AT] == [
        Step.POD,
        Step.TURN,
        Step.MINT,
        Step.DELIVERY,
    ]
    assert found[Step.START].result is Result.WAITS


def test_a_job_of_persistent_runners_has_only_the_steps_that_github_leaves() -> None:
    found = checks(pool=replace(POOL, runners=RUNNERS))
    assert list(found)[-2:] == [Step.RUNNERS, Step.START]
    assert found[Step.RUNNERS].result is Result.WAITS


def test_a_stamp_that_was_given_up_is_said_so() -> None:
    claim = ClaimFacts(9, ClaimState.MINTED, Stamp.GAVE_UP, "small-1", "small-1-r")
    found = checks(state=JobState.CLAIMED, claim=claim)
    assert found[Step.STAMP].evidence == "Pod small-1 could not be stamped, and the claim continues without a stamp."


def test_the_next_try_is_the_end_of_the_hold_the_next_probe_or_the_next_creation() -> None:
    assert explain(replace(JOB, hold_reason=HoldReason.BACKOFF, not_before=AT)).next_at == AT
    assert explain(replace(JOB, pool=replace(POOL, brake=BRAKE))).next_at == AT
    assert explain(replace(JOB, pool=replace(POOL, warm=0, create_after=AT))).next_at == AT
    assert explain(JOB).next_at is None


def test_starting_pods_are_told_with_the_usual_time_of_a_start() -> None:
    def told(**changes: object) -> str:
        short = of_spec(POOL, warm=0, replicas=3, taken=1)
        return explain(replace(JOB, pool=replace(short, **changes))).summary  # type: ignore[arg-type]

    assert told(starting=2, starts_in=11.6).endswith("; 2 Pods start now; a start takes 12 s in the median.")
    assert told(starting=1, starts_in=0.4).endswith("a start takes less than 1 s in the median.")
    assert told(starting=1).endswith("; 1 Pod starts now.")


def test_a_usual_wait_is_unknown_below_twenty_jobs() -> None:
    told = Expected.of(20, 4.2, 61.0).describe()
    assert told == "4 s in the median, 61 s in the 90th percentile of 20 jobs of the last hour."
    assert Expected.of(19, 4.2, 61.0).p50 is None
    assert Expected.of(1, 4.2, 61.0).describe() == "Unknown, because only 1 job of the last hour can be compared."
    assert Expected.of(0, None, None).describe() == "Unknown, because no jobs of the last hour can be compared."


def test_a_wait_is_expected_of_queued_jobs_only() -> None:
    expected = Expected.of(30, 1.0, 2.0)
    assert explain(replace(JOB, expected=expected)).expected == expected
    assert explain(replace(JOB, state=JobState.CLAIMED, expected=expected)).expected is None

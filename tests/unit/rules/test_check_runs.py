"""Texts of check runs: what is told, when, and under which state."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from rules.claims.machines import JobState
from rules.claims.pod_ends import PodEnd
from rules.waiting.check_runs import Told, tell
from rules.waiting.facts import JobFacts, LostPod
from rules.waiting.jobs import explain
from tests.unit.rules.test_waiting import JOB, POOL

AT = datetime(2026, 11, 30, tzinfo=UTC)
LATE = timedelta(minutes=5)
OOM = PodEnd(reason="OOMKilled", runner_exit_code=137, over=True)


def told(job: JobFacts, minutes: float = 6, *, shown: bool = False) -> Told | None:
    return tell(job, explain(job), waited=timedelta(minutes=minutes), late=LATE, shown=shown)


def test_a_job_that_waits_is_told_with_its_cause_after_the_time_and_not_before() -> None:
    found = told(JOB)
    assert found is not None
    assert found.state.startswith("waits:")
    assert found.title.startswith("Waits 6 min: ")
    assert explain(JOB).summary in found.text
    assert told(JOB, 4.9) is None


def test_another_cause_is_another_state() -> None:
    first = told(JOB)
    assert first is not None
    other = told(replace(JOB, database_older=True))
    assert other is not None
    assert other.state == "waits:restore"
    assert other.state != first.state


@pytest.mark.parametrize(("state", "expected"), [(JobState.RUNNING, "started"), (JobState.COMPLETED, "ended")])
def test_a_start_or_an_end_is_told_only_to_a_job_with_a_check_run(state: JobState, expected: str) -> None:
    job = replace(JOB, state=state, conclusion="cancelled", claim=None)
    assert told(job) is None
    found = told(job, shown=True)
    assert found is not None
    assert found.state == expected


@pytest.mark.parametrize(
    ("end", "conclusion", "expected"),
    [
        (OOM, "failure", "The Pod of the job ended before the job: out of memory"),
        (replace(OOM, reason="Evicted"), "failure", "The Pod of the job ended before the job: it was evicted"),
        (OOM, "success", None),
        (replace(OOM, reason=None, runner_exit_code=1), "failure", None),
    ],
)
def test_only_a_failure_of_the_infrastructure_is_told_without_a_wait(
    end: PodEnd, conclusion: str, expected: str | None
) -> None:
    job = replace(
        JOB, state=JobState.COMPLETED, conclusion=conclusion, lost=LostPod("small-1", end), pool=POOL, claim=None
    )
    found = told(job)
    assert (None if found is None else found.title) == expected
    assert found is None or found.state == "failed"
    if end is OOM and found is not None:
        assert f"Its pool gives each job {POOL.spec.charged_mib / 1024:g} GiB" in found.text

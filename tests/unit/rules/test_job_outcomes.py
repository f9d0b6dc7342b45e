"""Next step of a job that lost its claim, by GitHub's state of the job and of its run."""

from __future__ import annotations

import pytest

from rules.claims.job_outcomes import WAITS, NextStep, OverRun, from_github


@pytest.mark.parametrize("status", sorted(WAITS))
def test_what_waits_is_queued_again_unless_its_run_is_over(status: str) -> None:
    assert from_github(status=status, conclusion=None).next_step is NextStep.REQUEUE
    job_outcome = from_github(status=status, conclusion=None, run=OverRun("startup_failure"))
    assert (job_outcome.next_step, job_outcome.conclusion) == (NextStep.FINISH, "startup_failure")
    assert from_github(status=status, conclusion=None, run=OverRun(None)).conclusion == "unknown"


def test_a_run_that_is_over_changes_nothing_for_what_runs_or_has_ended() -> None:
    over = OverRun("cancelled")
    assert from_github(status="in_progress", conclusion=None, run=over).next_step is NextStep.RUNNING
    assert from_github(status="completed", conclusion="success", run=over).conclusion == "success"
    assert from_github(status=None, conclusion=None, run=over).next_step is NextStep.RUNNING


def test_a_job_that_is_over_without_a_conclusion_has_an_unknown_one() -> None:
    assert from_github(status="completed", conclusion=None).conclusion == "unknown"


def test_the_runner_of_a_running_job_is_named_where_it_is_known() -> None:
    assert from_github(status="in_progress", conclusion=None, runner="r-1").why.endswith("in_progress on runner r-1")
    assert from_github(status="in_progress", conclusion=None).why.endswith("in_progress")

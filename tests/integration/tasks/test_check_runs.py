"""`check_runs` makes one call at most for each job and state, and none while it is off or GitHub does not answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from ostler.errors import Forbidden, RateLimited, Retryable
from tasks.intake.check_runs import check_runs
from tests.database import Database
from tests.integration.tasks.conftest import Stage


@dataclass
class Teller:
    """A GitHub that records the check runs, and raises `error` instead if it is set."""

    told: list[dict[str, Any]] = field(default_factory=list)
    error: Exception | None = None
    calls: int = 0

    def tell_check_run(self, **given: Any) -> int:
        self.calls += 1
        if self.error is not None:
            raise self.error
        self.told.append(given)
        return given["check_id"] or 900 + len(self.told)

    @property
    def titles(self) -> list[str]:
        return [each["title"] for each in self.told]


@pytest.fixture
def github(clusterless: Stage) -> Teller:
    """Job 7 waits for 6 minutes, because the pool has no Pod. Check runs are on after 5 minutes."""
    clusterless.rt.github = teller = Teller()
    clusterless.with_settings(check_runs_after=300)
    clusterless.job(7, state="queued")
    clusterless.rows("UPDATE jobs SET head_sha = repeat('a', 40), queued_at = now() - interval '6 min'")
    return teller


def again(stage: Stage) -> None:
    """Let the time pass until the jobs are examined again, and run the task."""
    stage.rows("UPDATE jobs SET check_at = now() - interval '2 min' WHERE check_at IS NOT NULL")
    check_runs.run()


def test_a_job_that_waits_is_told_once_in_its_state(clusterless: Stage, github: Teller) -> None:
    for _ in range(4):
        again(clusterless)
    (told,) = github.told
    assert told["title"].startswith("Waits 6 min: ")
    assert (told["commit"], told["repository"], told["check_id"]) == ("a" * 40, "acme/shop", None)
    (job,) = clusterless.rows("SELECT check_id, check_said FROM jobs")
    assert job.check_id == 901
    assert len(job.check_said) == 1


def test_another_state_changes_the_check_run_and_an_earlier_state_is_not_told_again(
    clusterless: Stage, github: Teller
) -> None:
    again(clusterless)
    for hold in ("backoff", None, "backoff", None):
        clusterless.rows("UPDATE jobs SET hold_reason = :hold, not_before = now()", hold=hold)
        again(clusterless)
    assert [each["check_id"] for each in github.told] == [None, 901]
    clusterless.rows("UPDATE jobs SET state = 'running', started_at = now()")
    for _ in range(2):
        again(clusterless)
    assert github.titles[2:] == ["The job started after 6 min"]
    clusterless.rows(
        "UPDATE jobs SET state = 'completed', conclusion = 'success', completed_at = now() - interval '40 s'"
    )
    for _ in range(2):
        again(clusterless)
    assert github.titles[3:] == ["The job ended: success"]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE jobs SET queued_at = now()",
        "UPDATE jobs SET head_sha = NULL",
        "UPDATE jobs SET installation_id = NULL",
        "INSERT INTO gates (upstream, closed_at, why) VALUES ('github', now(), 'down')",
    ],
)
def test_no_call_is_made_without_a_late_job_a_commit_or_an_open_gate(
    clusterless: Stage, github: Teller, change: str
) -> None:
    clusterless.rows(change)
    again(clusterless)
    assert github.calls == 0


def test_no_call_is_made_when_the_setting_is_off(clusterless: Stage, github: Teller) -> None:
    clusterless.with_settings(check_runs_after=0)
    again(clusterless)
    assert github.calls == 0


@pytest.mark.parametrize("error", [Forbidden("Resource not accessible by integration"), Retryable("no answer")])
def test_a_refused_call_is_not_repeated_and_spares_the_installation(
    clusterless: Stage, github: Teller, error: Exception
) -> None:
    clusterless.job(8, state="queued")
    clusterless.rows("UPDATE jobs SET head_sha = repeat('b', 40), queued_at = now() - interval '6 min' WHERE id = 8")
    github.error = error
    check_runs.run()
    assert github.calls == 1
    for _ in range(4):
        again(clusterless)
    assert github.calls == 2


def test_a_call_that_an_empty_quota_denies_is_made_later(clusterless: Stage, github: Teller) -> None:
    github.error = RateLimited("the quota is used up", after=60)
    for _ in range(2):
        again(clusterless)
    assert github.told == []
    github.error = None
    for _ in range(2):
        again(clusterless)
    assert len(github.told) == 1


def test_a_locked_job_is_left_and_the_others_are_told(clusterless: Stage, github: Teller, database: Database) -> None:
    clusterless.job(8, state="queued")
    clusterless.rows("UPDATE jobs SET head_sha = repeat('b', 40), queued_at = now() - interval '6 min' WHERE id = 8")
    with database.engine.begin() as holder:
        holder.exec_driver_sql("SELECT 1 FROM jobs WHERE id = 7 FOR NO KEY UPDATE")
        check_runs.run()
    assert [each["commit"] for each in github.told] == ["b" * 40]


def test_a_pod_without_memory_is_told_after_the_job_failed(clusterless: Stage, github: Teller) -> None:
    clusterless.add_pod("small-1")
    clusterless.claim("small-1", job_id=7, state="executing", runner="r")
    clusterless.rows("UPDATE claims SET state = 'ended', ended_at = now(), end_reason = 'pod_spent', jit = NULL")
    clusterless.rows("UPDATE runner_pods SET terminal_at = now(), runner_exit_code = 137, exit_reason = 'OOMKilled'")
    clusterless.rows(
        "UPDATE jobs SET state = 'completed', conclusion = 'failure', completed_at = now() - interval '40 s'"
    )
    for _ in range(2):
        again(clusterless)
    assert github.titles == ["The Pod of the job ended before the job: out of memory"]
    assert "1 GiB" in github.told[0]["text"]

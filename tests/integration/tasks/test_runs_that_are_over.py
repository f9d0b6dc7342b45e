"""A run can end and leave its jobs queued forever: no step queues such a job again."""

from __future__ import annotations

import pytest

from tasks.sweeps.missing_pods import missing_pods
from tasks.sweeps.unused_runners import unused_runners
from tests.integration.tasks.conftest import RUNNER, Stage, StubGitHub


@pytest.fixture
def claim(stage: Stage, github: StubGitHub, pod: str) -> int:
    """A delivered claim without a recorded execution. Its job is queued at GitHub, and its run is over."""
    github.run = ("completed", "startup_failure")
    stage.job(7)
    found = stage.claim(pod, job_id=7, state="delivered", age=90, runner=RUNNER)
    stage.rows("UPDATE claims SET runner_name = :runner", runner=RUNNER)
    return found


def shown(stage: Stage) -> tuple[str, str | None]:
    (job,) = stage.rows("SELECT state, conclusion FROM jobs")
    return job.state, job.conclusion


def test_the_release_of_an_unused_runner_finishes_its_job(stage: Stage, github: StubGitHub, claim: int) -> None:
    github.runner = "offline"
    unused_runners.run()
    stage.released()
    assert stage.see(claim).end_reason == "never_started"
    assert shown(stage) == ("completed", "startup_failure")


def test_a_runner_that_waits_for_such_a_job_becomes_a_spare(stage: Stage, github: StubGitHub, claim: int) -> None:
    github.runner = "online"
    unused_runners.run()
    assert (stage.see(claim).state, stage.see(claim).job_id) == ("delivered", None)
    assert shown(stage) == ("completed", "startup_failure")


def test_a_runner_whose_job_is_queued_in_a_run_that_goes_on_waits_for_it(
    stage: Stage, github: StubGitHub, claim: int
) -> None:
    github.runner, github.run = "online", ("queued", None)
    unused_runners.run()
    assert (stage.see(claim).state, stage.see(claim).job_id) == ("delivered", 7)
    assert shown(stage) == ("claimed", None)


def test_the_end_of_a_pod_that_is_gone_finishes_its_job(stage: Stage, pod: str, claim: int) -> None:
    stage.rows("UPDATE claims SET state = 'executing'")
    stage.kube.request("DELETE", f"/api/v1/namespaces/{stage.namespace}/pods/{pod}")
    missing_pods.run()
    assert stage.see(claim).end_reason == "pod_gone"
    assert shown(stage) == ("completed", "startup_failure")

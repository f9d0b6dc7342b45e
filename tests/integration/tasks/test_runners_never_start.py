"""A job whose runners never start is set aside, or its pool backs off."""

from __future__ import annotations

from tests.integration.tasks.conftest import RUNNER, Stage, StubGitHub


def test_a_job_waits_when_twenty_runners_never_started(clusterless: Stage) -> None:
    stage = clusterless
    stage.rt.github = github = StubGitHub()
    stage.job(1)
    for number in range(20):
        stage.add_pod(f"pod-{number}")
        github.runner = "offline"
        claim = stage.claim(f"pod-{number}", job_id=1, state="delivered", age=70, runner=f"{RUNNER}-{number}")
        stage.rows("UPDATE jobs SET state = 'claimed' WHERE id = 1")
        stage.release(claim, reason="the runner is offline")
        assert stage.see(claim).end_reason == "never_started"
    (job,) = stage.rows("SELECT hold_reason FROM jobs")
    (pool,) = stage.rows("SELECT create_after FROM pools")
    assert job.hold_reason is not None or pool.create_after is not None

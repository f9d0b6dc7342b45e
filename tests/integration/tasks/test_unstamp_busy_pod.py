"""An un-stamp reads the Pod: rows are no proof that it is idle (law L3)."""

from __future__ import annotations

from tasks.claims.stamp import unstamp
from tests.integration.tasks.conftest import RUNNER, Stage, StubGitHub
from tests.integration.tasks.test_may_hold_jit import claims, put_stamp


def test_a_pod_that_runs_a_job_keeps_its_stamp_when_a_failover_lost_its_delivery(
    stage: Stage, pod: str, github: StubGitHub
) -> None:
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="minted", age=400, runner=RUNNER)
    stage.rows("UPDATE claims SET stamp = 'removing' WHERE id = :id", id=claim)
    put_stamp(stage, pod)
    stage.execute_job(pod)
    github.runner = "busy"
    unstamp.run(claim_id=claim)
    assert stage.pods()[pod].owner == 1
    assert stage.see(claim).state == "releasing"
    assert len(stage.outbox.take("ostler.release")) == 1


def test_release_keeps_the_stamp_of_a_busy_pod_when_a_failover_lost_its_delivery(
    stage: Stage, pod: str, github: StubGitHub
) -> None:
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="minted", age=400, runner=RUNNER)
    put_stamp(stage, pod)
    stage.execute_job(pod)
    github.runner = "idle"  # GitHub removes it: the runner has not said yet that it executes
    stage.release(claim)
    assert stage.pods()[pod].owner == 1
    assert stage.see(claim).end_reason == "released"
    assert claims(stage, "retire") == [("claimed", None)]

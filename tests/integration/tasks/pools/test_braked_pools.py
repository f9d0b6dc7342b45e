"""Reconciler and status of a pool whose runners never execute."""

from __future__ import annotations

from tests.integration.tasks.conftest import Stage
from tests.integration.tasks.pools.fleet import condition, kept, reasons, spec


def failures(stage: Stage, *, code: int = 0, ago: float = 60) -> None:
    """Record the ends of runners of three jobs of two accounts."""
    stage.rows(
        """
        INSERT INTO runner_failures (claim_id, pool_id, template_hash, account_id, job_id, pod_uid, claimed_at, at,
                                     exit_code, why)
        SELECT n, id, template_hash, n % 2, n, 'pod-' || n, t.at, t.at, :code, 'the Pod has ended'
        FROM pools, generate_series(1, 3) n, (SELECT now() - make_interval(secs => :ago) AS at) t
        """,
        code=code,
        ago=ago,
    )


def check(stage: Stage) -> list[dict[str, int]]:
    """Reconcile, and return the wakes of the matcher."""
    stage.outbox.take("wake")
    stage.rows("UPDATE pools SET status_at = NULL")
    kept(stage)
    return stage.outbox.take("wake")


def test_a_pool_whose_runners_do_not_start_is_degraded_and_its_probe_is_woken(stage: Stage) -> None:
    stage.pool(replicas=1)
    kept(stage)
    failures(stage, code=134)

    woken = check(stage)

    found = condition(stage, "Degraded")
    assert (found["status"], found["reason"]) == ("True", "RunnersDoNotStart")
    assert "3 runners in a row ended without a job; the last runner: exit code 134" in found["message"]
    assert len(woken) == 1


def test_a_brake_whose_wait_is_not_over_wakes_nobody(stage: Stage) -> None:
    stage.pool(replicas=1)
    kept(stage)
    failures(stage, ago=1)

    assert check(stage) == []
    assert condition(stage, "Degraded")["reason"] == "RunnersDoNotStart"


def test_a_runner_that_is_too_old_is_named_with_its_cure(stage: Stage) -> None:
    stage.pool(replicas=1)
    kept(stage)
    failures(stage, code=7)
    check(stage)

    message = condition(stage, "Degraded")["message"]
    assert "GitHub refuses the version of the runner as too old (exit code 7)" in message
    assert "use an image with a newer runner" in message


def test_another_image_clears_the_condition_and_wakes_the_matcher(stage: Stage) -> None:
    stage.pool(replicas=1)
    kept(stage)
    failures(stage, ago=1)
    check(stage)
    stage.outbox.take("wake")

    spec(stage, image="runner:2")
    woken = [*stage.outbox.take("wake"), *check(stage)]

    assert condition(stage, "Degraded")["status"] == "False"
    assert "RunnersDoNotStart" not in reasons(stage).values()
    assert woken
    assert stage.rows("SELECT 1 FROM runner_failures WHERE cleared_at IS NULL") == []

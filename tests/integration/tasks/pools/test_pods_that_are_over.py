"""A Pod is over when `poller` and `runner` have terminated, whatever its other containers do."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from models.db.engine import transaction
from models.pools import pod_rows, scaling
from ostler.clock import utcnow
from tests.integration.tasks.conftest import RUNNER, Stage, StubGitHub
from tests.integration.tasks.pools.fleet import (
    beats,
    condition,
    kept,
    new_tick,
    polls,
    reasons,
    retired,
    status,
    the_pool,
)

OVER = "the poller and the runner of the Pod have ended"


def pod_of(stage: Stage, *, sidecar: bool = True, polling: bool = True) -> str:
    """Create the only Pod of a pool and return its name. A `sidecar` still runs after poller and runner have ended."""
    containers = [{"name": "dind", "image": "docker:dind"}] if sidecar else []
    stage.pool(replicas=1, podTemplate={"spec": {"containers": containers}})
    kept(stage)
    if polling:
        polls(stage)
    (name,) = stage.pods()
    return name


def executes(stage: Stage, name: str) -> int:
    stage.job(7, state="running")
    return stage.claim(name, job_id=7, state="executing", runner=RUNNER)


def completes(stage: Stage, claim: int) -> None:
    stage.rows("UPDATE claims SET state = 'ended', ended_at = now(), end_reason = 'completed' WHERE id = :c", c=claim)
    stage.rows("UPDATE jobs SET state = 'completed', conclusion = 'success', completed_at = now() WHERE id = 7")


def test_an_over_pod_is_replaced_at_once_and_deleted_under_a_retire_claim(stage: Stage, github: StubGitHub) -> None:
    name = pod_of(stage)
    completes(stage, executes(stage, name))
    stage.finish(name, phase="Running")

    kept(stage)
    assert len(stage.pods()) == 2, "its successor is made before it is gone"
    assert reasons(stage) == {name: OVER}
    assert name in stage.pods(), "no Pod that is not terminal goes without its claim's own step (L7)"
    retired(stage)

    assert name not in stage.pods()
    assert name not in stage.service_accounts()
    assert github.deleted == [77]
    (row,) = stage.rows("SELECT * FROM runner_pods WHERE name = :name", name=name)
    assert (row.poller_exit_code, row.runner_exit_code) == (0, 0)
    assert row.gone_at is not None


def test_an_over_pod_counts_as_spent_in_the_status_and_as_no_load(stage: Stage, github: StubGitHub) -> None:
    del github
    name = pod_of(stage)
    executes(stage, name)
    stage.finish(name, phase="Running")
    kept(stage)
    polls(stage, *(set(stage.pods()) - {name}))
    condition(stage, "Ready")

    counts = status(stage)
    assert {key: counts.get(key, 0) for key in ("warm", "busy", "ending", "spent", "replicas")} == {
        "warm": 1,
        "busy": 0,
        "ending": 0,
        "spent": 1,
        "replicas": 1,
    }
    (seen,) = transaction(stage.rt.engine, lambda db: scaling.pool_rows(db, namespace=stage.namespace, now=utcnow()))
    assert (seen.alive, seen.load) == (1, 0)


def test_the_claim_of_an_over_pod_waits_for_its_webhook_then_github_is_asked(stage: Stage, github: StubGitHub) -> None:
    name = pod_of(stage)
    claim = executes(stage, name)
    stage.finish(name, phase="Running", runner=137)
    github.job, github.runner = ("completed", "failure", RUNNER), "busy"
    kept(stage)
    assert (stage.see(claim).state, reasons(stage)) == ("executing", {})

    stage.rows("UPDATE runner_pods SET terminal_at = now() - interval '31 s' WHERE terminal_at IS NOT NULL")
    kept(stage)
    after = stage.see(claim)
    assert (after.state, after.end_reason, after.job_state) == ("ended", "pod_spent", "completed")

    kept(stage)
    assert reasons(stage) == {name: OVER}
    retired(stage)
    assert name not in stage.pods(), "that GitHub calls its runner busy says nothing of a Pod that is over"


@pytest.mark.parametrize("waited", [False, True])
def test_an_over_pod_without_company_is_left_to_its_kubelet_for_a_while(
    stage: Stage, github: StubGitHub, *, waited: bool
) -> None:
    del github
    name = pod_of(stage, sidecar=False)
    completes(stage, executes(stage, name))
    stage.finish(name, phase="Running")
    kept(stage)
    assert len(stage.pods()) == 2
    if waited:
        stage.rows("UPDATE runner_pods SET terminal_at = now() - interval '31 s' WHERE terminal_at IS NOT NULL")
    kept(stage)
    assert reasons(stage) == ({name: OVER} if waited else {})


def test_a_runner_that_goes_on_is_not_over(stage: Stage, github: StubGitHub) -> None:
    del github
    name = pod_of(stage)
    completes(stage, executes(stage, name))
    stage.finish(name, phase="Running", runner=None)
    kept(stage)
    assert (list(stage.pods()), reasons(stage)) == ([name], {})


def test_an_over_pod_that_never_polled_is_a_failed_start(stage: Stage) -> None:
    beats(stage)
    name = pod_of(stage, polling=False)
    stage.finish(name, phase="Running", poller=2, runner=2)
    kept(stage)
    retired(stage)
    new_tick(stage)
    assert reasons(stage) == {name: "the Pod did not start to poll: the poller exited 2 before its first poll"}
    assert the_pool(stage).failed_starts == 1


def test_an_over_pod_whose_row_is_locked_is_left_to_the_next_reconcile(stage: Stage, github: StubGitHub) -> None:
    del github
    name = pod_of(stage)
    claim = executes(stage, name)
    stage.finish(name, phase="Running")
    kept(stage)
    completes(stage, claim)
    with stage.rt.engine.connect() as other, other.begin():
        other.execute(text("SELECT 1 FROM runner_pods WHERE name = :name FOR UPDATE"), {"name": name})
        kept(stage)
        assert reasons(stage) == {}
    kept(stage)
    kept(stage)
    assert reasons(stage) == {name: OVER}
    assert len(stage.outbox.take("ostler.retire")) == 1


def test_retirement_of_an_over_pod_skips_its_locked_row_without_an_error(stage: Stage, github: StubGitHub) -> None:
    del github
    name = pod_of(stage)
    claim = executes(stage, name)
    stage.finish(name, phase="Running")
    kept(stage)
    completes(stage, claim)
    (row,) = stage.rows("SELECT id FROM runner_pods WHERE name = :name", name=name)

    def retire() -> int | None:
        return transaction(
            stage.rt.engine,
            lambda db: pod_rows.retire_over(db, row_id=row.id, due_after=10.0, now=utcnow(), who="test"),
        )

    with stage.rt.engine.connect() as other, other.begin():
        other.execute(text("SELECT 1 FROM runner_pods WHERE id = :id FOR UPDATE"), {"id": row.id})
        assert retire() is None
    stage.rows("UPDATE runner_pods SET gone_at = now() WHERE id = :id", id=row.id)
    assert retire() is None, "its deletion has been seen meanwhile"
    stage.rows("UPDATE runner_pods SET gone_at = NULL WHERE id = :id", id=row.id)
    assert retire() is not None

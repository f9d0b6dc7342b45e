"""Pods that outlive their claim: the account that they are charged to, and the wakes at their end."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from models.routing.usage import usage_of
from models.state.pod_facts import charge
from tasks.claims.retire import retire
from tests.integration.tasks.conftest import RUNNER, Stage, StubGitHub
from tests.integration.tasks.pools.fleet import kept, polls

ACME = 1


@pytest.fixture
def lingers(stage: Stage, github: StubGitHub) -> str:
    """A live Pod whose delivered claim has ended. Its account has a queued job in the same pool."""
    del github
    stage.pool(replicas=1)
    kept(stage)
    polls(stage)
    (name,) = stage.pods()
    stage.job(7, state="running")
    stage.claim(name, job_id=7, state="executing", runner=RUNNER)
    kept(stage)
    stage.rows("UPDATE claims SET state = 'ended', ended_at = now(), end_reason = 'completed'")
    stage.rows("UPDATE jobs SET state = 'completed', conclusion = 'success', completed_at = now()")
    stage.job(8, state="queued")
    stage.outbox.take("wake")
    return name


def used(stage: Stage) -> int:
    with stage.rt.engine.begin() as db:
        return usage_of(db, [ACME])[ACME].count


def pools_of_jobs(stage: Stage) -> list[dict[str, int]]:
    return [{"pool_id": row.pool_id} for row in stage.rows("SELECT pool_id FROM jobs WHERE id = 8")]


@pytest.mark.usefixtures("lingers")
def test_the_reconciler_charges_a_pod_whose_delivery_did_not(stage: Stage) -> None:
    (row,) = stage.rows("SELECT * FROM runner_pods WHERE gone_at IS NULL AND charged_account_id IS NOT NULL")
    assert (row.charged_account_id, row.charged_vcpu, row.charged_memory) == (ACME, 2000, 4096)
    assert used(stage) == 1


def test_each_pod_is_charged_to_the_account_of_its_own_latest_claim(stage: Stage) -> None:
    stage.pool(replicas=2)
    kept(stage)
    one, other = sorted(stage.pods())
    stage.claim_without_job(one, state="executing")
    later = stage.claim_without_job(other, state="executing")
    stage.rows("INSERT INTO accounts VALUES (2, 'ada', 1, 10, 100000, 100000, '[]', now())")
    stage.rows("UPDATE claims SET account_id = 2, vcpu = 500, memory = 512 WHERE id = :id", id=later)
    ids = [row.id for row in stage.rows("SELECT id FROM runner_pods")]
    with stage.rt.engine.begin() as db:
        assert charge(db, ids) == 2
    rows = stage.rows("SELECT name, charged_account_id, charged_vcpu, charged_memory FROM runner_pods ORDER BY name")
    assert [tuple(row) for row in rows] == [(one, 1, 2000, 4096), (other, 2, 500, 512)]


def test_locked_pod_row_is_charged_by_the_next_reconcile(stage: Stage, lingers: str) -> None:
    stage.rows("UPDATE runner_pods SET charged_account_id = NULL")
    with stage.rt.engine.begin() as holder:
        holder.execute(text("SELECT FROM runner_pods WHERE name = :name FOR NO KEY UPDATE"), {"name": lingers})
        kept(stage)
        assert used(stage) == 0
    kept(stage)
    assert used(stage) == 1


def test_the_end_of_a_charged_pod_wakes_where_its_account_waits(stage: Stage, lingers: str) -> None:
    stage.finish(lingers)

    kept(stage)

    assert used(stage) == 0
    assert stage.outbox.take("wake") == pools_of_jobs(stage)


def test_the_retirement_of_a_charged_pod_wakes_where_its_account_waits(
    stage: Stage, lingers: str, github: StubGitHub
) -> None:
    github.runner = None

    retire.run(claim_id=stage.retire_claim(lingers))

    assert lingers not in stage.pods()
    assert used(stage) == 0
    assert stage.outbox.take("wake") == pools_of_jobs(stage)


def test_a_charged_pod_that_vanished_wakes_where_its_account_waits(stage: Stage, lingers: str) -> None:
    path = f"/api/v1/namespaces/{stage.namespace}/pods/{lingers}"
    stage.kube.request("DELETE", path, body={"gracePeriodSeconds": 0})

    kept(stage)

    assert used(stage) == 0
    assert stage.outbox.take("wake") == pools_of_jobs(stage)


def test_pod_whose_claim_has_no_account_is_charged_to_nobody(clusterless: Stage) -> None:
    clusterless.add_pod("pod-1")
    clusterless.claim_without_job("pod-1", state="delivered")
    clusterless.rows("UPDATE claims SET account_id = NULL")
    ids = [row.id for row in clusterless.rows("SELECT id FROM runner_pods")]
    with clusterless.rt.engine.begin() as db:
        assert charge(db, ids) == 0
    (row,) = clusterless.rows("SELECT charged_account_id, charged_vcpu, charged_memory FROM runner_pods")
    assert tuple(row) == (None, None, None)

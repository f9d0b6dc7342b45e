"""Rows and events for the tests of webhooks: pools, Pods, and claims as the claim path writes them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Engine, Row, text

from models.db.engine import transaction
from models.intake import intake
from rules.claims.fairness import Budget
from rules.intake.events import WorkflowJobEvent
from tests.rows import insert_pool

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
BUDGET = Budget(count=20, vcpu_millicores=80_000, memory_mib=327_680)
ACME = 77

_numbers = itertools.count(1)

QUEUED = WorkflowJobEvent(
    action="queued",
    job_id=1,
    run_id=900,
    run_attempt=1,
    name="build",
    workflow_name="CI",
    status="queued",
    conclusion=None,
    labels=("linux",),
    runner_name=None,
    runner_id=None,
    created_at=NOW - timedelta(seconds=30),
    started_at=NOW - timedelta(seconds=30),
    completed_at=None,
    head_branch="main",
    repository="acme/app",
    repository_id=5,
    owner_id=ACME,
    owner_login="acme",
    owner_type="Organization",
    installation_id=3,
)


def queued(job_id: int, **changes: Any) -> WorkflowJobEvent:
    """Return a `queued` event."""
    return replace(QUEUED, job_id=job_id, **changes)


def in_progress(job_id: int, runner: str | None, **changes: Any) -> WorkflowJobEvent:
    """Return an `in_progress` event."""
    event = replace(
        QUEUED, job_id=job_id, action="in_progress", status="in_progress", runner_name=runner, started_at=NOW
    )
    return replace(event, **changes)


def completed(job_id: int, runner: str | None, conclusion: str = "success", **changes: Any) -> WorkflowJobEvent:
    """Return a `completed` event."""
    event = replace(
        QUEUED,
        job_id=job_id,
        action="completed",
        status="completed",
        conclusion=conclusion,
        runner_name=runner,
        started_at=NOW,
        completed_at=NOW + timedelta(seconds=9),
    )
    return replace(event, **changes)


def deliver(
    engine: Engine, *events: WorkflowJobEvent, guids: tuple[str, ...] = (), now: datetime = NOW
) -> intake.Applied:
    """Apply events in one transaction. Each event has a new GUID unless GUIDs are given."""
    names = guids or tuple(f"guid-{next(_numbers)}" for _ in events)
    batch = [intake.Received(guid, event) for guid, event in zip(names, events, strict=True)]
    return transaction(engine, lambda db: intake.apply(db, batch, budget=BUDGET, now=now))


def add_pool(engine: Engine, *labels: str, vcpu: int = 2000, memory: int = 4096) -> int:
    """Insert a pool and return its id."""
    name = f"pool-{next(_numbers)}"
    return insert_pool(
        engine,
        name,
        image="image",
        labels=list(labels),
        vcpu=vcpu,
        memory=memory,
        template_hash="hash",
        created_at=NOW,
    )


def add_claim(
    engine: Engine,
    pool_id: int,
    job_id: int | None,
    *,
    state: str = "delivered",
    runner: str | None = None,
    account_id: int = ACME,
    scope: str = "orgs/acme",
) -> int:
    """Insert a claim in `state` on a new Pod, as the claim path writes it, and return its id."""
    number = next(_numbers)
    delivered = state in {"delivered", "executing"}
    with engine.begin() as db:
        pod_id = db.execute(
            text("""
                INSERT INTO runner_pods (pool_id, namespace, name, uid, attempt_id, template_hash, created_at)
                VALUES (:pool, 'runners', :name, :name, 'a', 'hash', :now) RETURNING id
            """),
            {"pool": pool_id, "name": f"pod-{number}", "now": NOW},
        ).scalar_one()
        claim_id: int = db.execute(
            text("""
                INSERT INTO claims (purpose, job_id, runner_pod_id, pod_uid, pool_id, account_id, scope, vcpu, memory,
                                    state, runner_name, jit, created_at, changed_at, delivered_at, spare_since, due_at)
                VALUES ('job', :job, :pod_id, :pod, :pool, :account, :scope, 2000, 4096, :state, :runner, :jit,
                        :now, :now, :delivered_at, :spare_since, :due)
                RETURNING id
            """),
            {
                "job": job_id,
                "pod_id": pod_id,
                "pod": f"pod-{number}",
                "pool": pool_id,
                "account": account_id,
                "scope": scope,
                "state": state,
                "runner": None if state == "claimed" else runner,
                "jit": b"encrypted" if state in {"minted", "delivered"} else None,
                "now": NOW,
                "delivered_at": NOW if delivered else None,
                "spare_since": NOW if delivered and job_id is None else None,
                "due": None if delivered else NOW + timedelta(seconds=10),
            },
        ).scalar_one()
        if runner is not None:
            db.execute(
                text("""
                    INSERT INTO mint_attempts (claim_id, runner_name, outcome, created_at)
                    VALUES (:claim, :runner, :outcome, :now)
                """),
                {
                    "claim": claim_id,
                    "runner": runner,
                    "outcome": "open" if state == "claimed" else "minted",
                    "now": NOW,
                },
            )
        if job_id is not None:
            db.execute(text("UPDATE jobs SET state = 'claimed' WHERE id = :id AND state = 'queued'"), {"id": job_id})
    return claim_id


def job_row(engine: Engine, job_id: int) -> Row[Any]:
    """Return a job."""
    with engine.connect() as db:
        return db.execute(text("SELECT * FROM jobs WHERE id = :id"), {"id": job_id}).one()


def claim_row(engine: Engine, claim_id: int) -> Row[Any]:
    """Return a claim."""
    with engine.connect() as db:
        return db.execute(text("SELECT * FROM claims WHERE id = :id"), {"id": claim_id}).one()


def execution_row(engine: Engine, job_id: int) -> Row[Any] | None:
    """Return the execution of a job."""
    with engine.connect() as db:
        return db.execute(text("SELECT * FROM executions WHERE job_id = :id"), {"id": job_id}).one_or_none()


def count(engine: Engine, table: str) -> int:
    """Return the number of rows of a table."""
    with engine.connect() as db:
        found: int = db.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()  # noqa: S608
    return found

"""Rows of Ostler's database that tests insert and read, and the values that the mirror writes."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, Row, func, insert, text

from k8s_adapters.pools.pool_reader import read_pool
from models.pools import pool_mirror
from models.schema import metadata
from ostler.clock import utcnow
from rules.changes import Author, Via
from rules.claims.pod_view import PodView
from rules.pools.pool_spec import PoolSpec


def author(who: str = "test") -> Author:
    """Return the author of a change that is made now in a shell."""
    return Author(who, Via.SHELL, utcnow())


def run_sql(engine: Engine, statement: str, **values: Any) -> list[Row[Any]]:
    """Run one statement in a separate transaction, and return its rows if it has any."""
    with engine.begin() as db:
        result = db.execute(text(statement), values)
        return list(result.all()) if result.returns_rows else []


def insert_pool(engine: Engine, name: str = "small", **columns: Any) -> int:
    """Insert the row of a pool and return its id. `columns` replace or extend the defaults."""
    table = metadata.tables["pools"]
    row = {
        "uid": name,
        "namespace": "runners",
        "name": name,
        "image": "i",
        "labels": ["linux"],
        "runner_group_id": 1,
        "vcpu": 1000,
        "memory": 1024,
        "replicas": 1,
        "allowed_accounts": [],
        "allowed_repositories": [],
        "routing_priority": 0,
        "template_hash": "h",
        "created_at": func.now(),
        **columns,
    }
    with engine.begin() as db:
        return int(db.execute(insert(table).values(row).returning(table.c.id)).scalar_one())


def insert_account(engine: Engine, account_id: int = 7, login: str = "acme", *, count: int = 10) -> None:
    """Insert the row of an account. `count` is its budget of Pods; its budget of vCPU and memory is large."""
    run_sql(
        engine,
        "INSERT INTO accounts VALUES (:id, :login, 1, :count, 80000, 81920, '[]', now())",
        id=account_id,
        login=login,
        count=count,
    )


def insert_job(engine: Engine, job_id: int, **columns: Any) -> None:
    """Insert the row of a queued job of account 7. `columns` replace or extend the defaults."""
    row = {
        "id": job_id,
        "account_id": 7,
        "repository": "acme/shop",
        "scope": "orgs/acme",
        "run_id": 1,
        "run_attempt": 1,
        "name": "build",
        "labels": ["linux"],
        "state": "queued",
        "queued_at": func.now(),
        "changed_at": func.now(),
        **columns,
    }
    with engine.begin() as db:
        db.execute(insert(metadata.tables["jobs"]).values(row))


def pool_spec(name: str = "small", **changed: Any) -> PoolSpec:
    """Return a pool as the cluster shows it. `changed` replaces or extends the defaults."""
    metadata = {"uid": "pool-1", "namespace": "runners", "name": name}
    spec = {"image": "image", "runnerLabels": ["linux"], "replicas": 2}
    return replace(read_pool({"metadata": metadata, "spec": spec}), template_hash="hash", **changed)


def mirror_pool(db: Connection, pool: PoolSpec, *, now: datetime) -> bool:
    """Mirror a pool whose Pods have the hash `template_hash`."""
    return pool_mirror.mirror_pool(db, replace(pool, start_timeout=300.0), now=now)


def mark_problem(db: Connection, pool: PoolSpec, *, problem: str, now: datetime) -> None:
    """Record the problem of a pool whose Pods have the hash `template_hash`."""
    pool_mirror.mark_problem(db, replace(pool, start_timeout=300.0), problem=problem, now=now)


def pod_view(name: str, **changed: Any) -> PodView:
    """Return a Pod of Ostler as the cluster shows it. `changed` replaces or extends the defaults."""
    seen: dict[str, Any] = {
        "name": name,
        "uid": name,
        "namespace": "none",
        "pool": "small",
        "phase": "Running",
        "reason": None,
        "node": "node-1",
        "terminating": False,
        "owner": None,
        "stamp": None,
        "digest": "h",
        "attempt": "a",
        "created_at": utcnow(),
        "poller_exit_code": None,
        "runner_ready": False,
        "runner_exit_code": None,
        "runner_exit_signal": None,
        "runner_exit_reason": None,
        "unschedulable": False,
        "waiting_reason": None,
    }
    return PodView(**(seen | changed))


def insert_events(engine: Engine, *, job_id: int, claim_id: int) -> None:
    """Insert an event of a job that the webhook `guid-1` made, and one of its claim in the second run of `task-1`."""
    at = utcnow()
    run_sql(
        engine,
        "INSERT INTO deliveries (guid, event, action, job_id, outcome, received_at)"
        " VALUES ('guid-1', 'workflow_job', 'queued', :job, 'accepted', :at)",
        job=job_id,
        at=at,
    )
    run_sql(
        engine,
        "INSERT INTO job_events (job_id, at, transition, to_state, who, why)"
        " VALUES (:job, :at, 'job_add', 'queued', 'webhook', 'queued')",
        job=job_id,
        at=at,
    )
    run_sql(
        engine,
        "INSERT INTO claim_events (claim_id, at, transition, to_state, who, why, task_id, attempt)"
        " VALUES (:claim, :at, 'mint', 'minted', 'mint', 'minted', 'task-1', 2)",
        claim=claim_id,
        at=at,
    )

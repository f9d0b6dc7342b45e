"""Deletion of old rows. Each transaction deletes one page of rows that ended long ago.

These rows are never deleted:

- a job that is not completed or has an open execution
- a claim that is live, has a job that is not completed, or has an open execution
- an event of a live claim, and an event of a job that is not completed
- a claim whose Pod is not gone, because a delivered claim is evidence that the Pod might hold a JIT (law L3)
- a repair whose result is open, and a run of a sweep that has not ended
- a runner failure that is not cleared, while its pool exists
- a row that one of the rows above refers to

Each transaction locks the rows that it deletes. It skips rows that another session has locked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection

from models.claims import runner_failures
from models.db.sql import text
from models.routing import run_origins
from models.state import changes, claims, deliveries, executions, jobs, mint_attempts, runner_pods, stalls
from models.sweeps import repairs, sweep_runs

PAGE = 1000
"""Maximum number of rows of a kind that one transaction deletes.

Rows that depend on the deleted rows are deleted in the same transaction. They are not counted.
"""


class Kind(StrEnum):
    """Kinds of rows that are deleted, in the order of their deletion.

    A kind comes before the kinds that its rows refer to.
    """

    DELIVERIES = "deliveries"
    JOB_EVENTS = "job_events"
    CLAIM_EVENTS = "claim_events"
    CLAIMS = "claims"
    JOBS = "jobs"
    RUNNER_PODS = "runner_pods"
    REPAIRS = "repairs"
    SWEEP_RUNS = "sweep_runs"
    STALLS = "stalls"
    RUNNER_FAILURES = "runner_failures"
    CHANGES = "changes"


_OVER: Mapping[Kind, str] = {
    Kind.DELIVERIES: "SELECT guid AS id FROM deliveries WHERE received_at < :before ORDER BY received_at",
    Kind.JOB_EVENTS: """
        SELECT e.id FROM job_events e LEFT JOIN jobs j ON j.id = e.job_id
        WHERE e.at < :before AND coalesce(j.state = 'completed', true) ORDER BY e.at
    """,
    Kind.CLAIM_EVENTS: """
        SELECT e.id FROM claim_events e LEFT JOIN claims c ON c.id = e.claim_id
        WHERE e.at < :before AND (c.id IS NULL OR c.ended_at IS NOT NULL) ORDER BY e.at
    """,
    Kind.CLAIMS: """
        SELECT c.id FROM claims c JOIN runner_pods p ON p.id = c.runner_pod_id
        WHERE c.ended_at < :before AND p.gone_at IS NOT NULL
          AND NOT EXISTS (SELECT FROM jobs j WHERE j.id = c.job_id AND j.state <> 'completed')
          AND NOT EXISTS (SELECT FROM executions e JOIN jobs j ON j.id = e.job_id
                          WHERE e.claim_id = c.id AND (e.ended_at IS NULL OR j.state <> 'completed'))
        ORDER BY c.ended_at
    """,
    Kind.JOBS: """
        SELECT j.id FROM jobs j
        WHERE j.state = 'completed' AND j.completed_at < :before
          AND NOT EXISTS (SELECT FROM claims c WHERE c.job_id = j.id)
          AND NOT EXISTS (SELECT FROM executions e WHERE e.job_id = j.id AND e.ended_at IS NULL)
        ORDER BY j.completed_at
    """,
    Kind.RUNNER_PODS: """
        SELECT p.id FROM runner_pods p
        WHERE p.gone_at < :before AND NOT EXISTS (SELECT FROM claims c WHERE c.runner_pod_id = p.id)
        ORDER BY p.gone_at
    """,
    Kind.REPAIRS: "SELECT id FROM repairs WHERE at < :before AND outcome NOT IN ('begun', 'done') ORDER BY at",
    Kind.SWEEP_RUNS: "SELECT id FROM sweep_runs WHERE began_at < :before AND ended_at IS NOT NULL ORDER BY began_at",
    Kind.STALLS: "SELECT id FROM stalls WHERE served_at < :before ORDER BY served_at",
    # A failure that is not cleared still brakes its pool, however old it is.
    Kind.RUNNER_FAILURES: """
        SELECT f.claim_id AS id FROM runner_failures f
        WHERE f.at < :before AND (f.cleared_at IS NOT NULL
          OR NOT EXISTS (SELECT FROM pools p WHERE p.id = f.pool_id AND p.deleted_at IS NULL))
        ORDER BY f.at
    """,
    Kind.CHANGES: "SELECT id FROM changes WHERE at < :before ORDER BY at",
}
_LOCKED: Mapping[Kind, str] = {
    Kind.JOB_EVENTS: "e",
    Kind.CLAIM_EVENTS: "e",
    Kind.CLAIMS: "c",
    Kind.JOBS: "j",
    Kind.RUNNER_PODS: "p",
    Kind.RUNNER_FAILURES: "f",
}
_DELETE: Mapping[Kind, Callable[[Connection, Sequence[Any]], int]] = {
    Kind.DELIVERIES: deliveries.delete,
    Kind.JOB_EVENTS: jobs.delete_events,
    Kind.CLAIM_EVENTS: claims.delete_events,
    Kind.CLAIMS: claims.delete,
    Kind.JOBS: jobs.delete,
    Kind.RUNNER_PODS: runner_pods.delete,
    Kind.REPAIRS: repairs.delete,
    Kind.SWEEP_RUNS: sweep_runs.delete,
    Kind.STALLS: stalls.delete,
    Kind.RUNNER_FAILURES: runner_failures.delete,
    Kind.CHANGES: changes.delete,
}
_DELETE_WITH_THEM: Mapping[Kind, tuple[Callable[[Connection, Sequence[int]], None], ...]] = {
    # The execution of a completed job is kept as long as its job.
    Kind.CLAIMS: (mint_attempts.delete_of_claims, executions.part_from_claims),
    Kind.JOBS: (executions.delete_of_jobs, run_origins.delete_of_jobs),
}


_LOCKED_WITH_THEM: Mapping[Kind, tuple[str, ...]] = {
    Kind.CLAIMS: (
        """
        WITH free AS MATERIALIZED (
            SELECT id FROM mint_attempts WHERE claim_id = ANY(:ids) ORDER BY id FOR UPDATE SKIP LOCKED)
        SELECT claim_id FROM mint_attempts WHERE claim_id = ANY(:ids) AND id NOT IN (SELECT id FROM free)
        """,
        """
        WITH free AS MATERIALIZED (
            SELECT id FROM executions WHERE claim_id = ANY(:ids) ORDER BY id FOR UPDATE SKIP LOCKED)
        SELECT claim_id FROM executions WHERE claim_id = ANY(:ids) AND id NOT IN (SELECT id FROM free)
        """,
    ),
    Kind.JOBS: (
        """
        WITH free AS MATERIALIZED (
            SELECT id FROM executions WHERE job_id = ANY(:ids) ORDER BY id FOR UPDATE SKIP LOCKED)
        SELECT job_id FROM executions WHERE job_id = ANY(:ids) AND id NOT IN (SELECT id FROM free)
        """,
        """
        WITH free AS MATERIALIZED (
            SELECT run_id FROM run_origins WHERE run_id IN (SELECT run_id FROM jobs WHERE id = ANY(:ids))
            ORDER BY run_id FOR UPDATE SKIP LOCKED)
        SELECT j.id FROM jobs j JOIN run_origins o ON o.run_id = j.run_id
        WHERE j.id = ANY(:ids) AND o.run_id NOT IN (SELECT run_id FROM free)
        """,
    ),
}
"""Queries for the rows of a page that must not be deleted now, because another session has locked a dependent row."""


def many(db: Connection, kind: Kind, *, before: datetime) -> int:
    """Return how many rows of a kind can be deleted. Only rows that ended before `before` are counted."""
    found: int = db.execute(
        text(f"SELECT count(*) FROM ({_OVER[kind]}) o"),
        {"before": before},
    ).scalar_one()
    return found


def some(db: Connection, kind: Kind, *, before: datetime) -> bool:
    """Return True if at least one row of a kind ended before `before` and can be deleted."""
    found: bool = db.execute(
        text(f"SELECT EXISTS ({_OVER[kind]})"),
        {"before": before},
    ).scalar_one()
    return found


def prune_page(db: Connection, kind: Kind, *, before: datetime) -> int:
    """Delete one page of rows of a kind that ended before `before`, oldest first. Return how many rows were deleted."""
    of = f" OF {_LOCKED[kind]}" if kind in _LOCKED else ""
    ids = list(
        db.execute(
            text(f"{_OVER[kind]} LIMIT :page FOR UPDATE{of} SKIP LOCKED"), {"before": before, "page": PAGE}
        ).scalars()
    )
    for statement in _LOCKED_WITH_THEM.get(kind, ()) if ids else ():
        stay = set(db.execute(text(statement), {"ids": ids}).scalars())
        ids = [each for each in ids if each not in stay]
    if not ids:
        return 0
    for delete in _DELETE_WITH_THEM.get(kind, ()):
        delete(db, ids)
    return _DELETE[kind](db, ids)

"""Queries for a draining pool: its open Pod rows, the recorded exits of its Pods, and its oldest running job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from models.db.sql import text
from models.pools.pool_mirror import MADE_WITHIN
from models.state import changes
from rules.changes import Author, ChangeKind, Via
from rules.pools.spec_writers import UNKNOWN


@dataclass(frozen=True, slots=True)
class DrainRow:
    """A pool whose object has a deletion timestamp and is not known to be gone.

    `since` is the time of the deletion request. `open_rows` counts the Pod rows that are neither gone nor terminal, and
    the given-up rows whose Pod another reconciler might still create.
    `recorded` contains the UIDs of the terminal Pods whose rows record their exit.
    """

    uid: str
    namespace: str
    name: str
    since: datetime | None
    open_rows: int
    recorded: frozenset[str]


def draining_pool(db: Connection, pool_id: int, *, over: Sequence[str], listed_at: datetime) -> DrainRow | None:
    """Return a draining pool with the number of its open Pod rows and the recorded exits of its Pods.

    `over` contains the UIDs of the Pods that a list showed as terminal. Recorded exits are read only for these Pods.
    `listed_at` is the time at which this list began. A row that was given up less than `MADE_WITHIN` before is open:
    a reconciler that read the row earlier might create its Pod after the list.
    Return None if the pool is not draining, or if the pool's object is known to be gone.
    """
    row = (
        db.execute(
            text("""
            SELECT uid, namespace, name, draining_since AS since,
                   (SELECT count(*) FROM runner_pods r
                    WHERE r.pool_id = p.id
                      AND ((r.gone_at IS NULL AND r.terminal_at IS NULL)
                           OR (r.uid IS NULL AND r.gone_at > :gone_after))) AS open_rows
            FROM pools p WHERE id = :id AND draining AND deleted_at IS NULL
        """),
            {"id": pool_id, "gone_after": listed_at - MADE_WITHIN},
        )
        .mappings()
        .one_or_none()
    )
    if row is None:
        return None
    recorded = db.execute(
        text("SELECT uid FROM runner_pods WHERE uid = ANY(:uids) AND terminal_at IS NOT NULL"), {"uids": list(over)}
    )
    return DrainRow(**row, recorded=frozenset(recorded.scalars()))


def record_draining(db: Connection, *, uid: str, since: datetime | None, now: datetime) -> bool:
    """Mark a pool as draining. Callers use this function if they cannot mirror the rest of the pool's object.

    `since` is the time of the deletion request. If `since` is None, `now` is recorded. Return True if this call marked
    the pool. The mark might change the routing of jobs. Return False if the pool has no live row or is already
    draining.
    """
    row = db.execute(
        text("SELECT id, name FROM pools WHERE uid = :uid AND NOT draining AND deleted_at IS NULL"), {"uid": uid}
    ).one_or_none()
    if row is None:
        return False  # a pool that never had a row never had a Pod, so it needs no drain
    # The lock order is the advisory lock of the pool, then its row.
    db.execute(text("SELECT pg_advisory_xact_lock(:id)"), {"id": row.id})
    # `rerouting_since` makes the next reconcile take the queued jobs out of the pool (`tasks.routing.rerouting`).
    db.execute(
        text("""
            UPDATE pools SET draining = true, draining_since = :since, routed_at = :now, rerouting_since = :now
            WHERE id = :id
        """),
        {"id": row.id, "since": since or now, "now": now},
    )
    changes.record(
        db,
        ChangeKind.POOL,
        row.name,
        object_id=row.id,
        before={"draining": False},
        after={"draining": True},
        by=Author(UNKNOWN, Via.CLUSTER, now),
    )
    return True


@dataclass(frozen=True, slots=True)
class OldestJob:
    """A running job of a pool, and the time at which its JIT was delivered (`since`).

    For a job on a persistent runner, `since` is the start of the job.
    """

    id: int
    since: datetime


def oldest_job(db: Connection, pool_id: int) -> OldestJob | None:
    """Return the oldest running job of a pool, or None if no Pod of the pool has a job."""
    row = db.execute(
        text("""
            SELECT c.job_id AS id, c.delivered_at AS since FROM claims c
            WHERE c.pool_id = :id AND c.ended_at IS NULL AND c.purpose = 'job' AND c.delivered_at IS NOT NULL
              AND c.job_id IS NOT NULL
            UNION ALL
            SELECT e.job_id, e.started_at FROM claims c JOIN executions e ON e.claim_id = c.id AND e.ended_at IS NULL
            WHERE c.pool_id = :id AND c.ended_at IS NULL AND c.purpose = 'register'
            ORDER BY since, id LIMIT 1
        """),
        {"id": pool_id},
    ).one_or_none()
    return None if row is None else OldestJob(*row)

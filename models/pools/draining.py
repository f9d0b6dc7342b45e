"""Rows of a draining pool: open Pod rows, recorded exits, and the oldest running job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from models.db.sql import text


@dataclass(frozen=True, slots=True)
class DrainRow:
    """A pool whose object has a deletion timestamp and is not known to be gone.

    `since` is the time of the deletion request. `open_rows` counts the Pod rows that are neither gone nor terminal.
    `recorded` holds the UIDs of the Pods whose exit is recorded in their row.
    """

    uid: str
    namespace: str
    name: str
    since: datetime | None
    open_rows: int
    recorded: frozenset[str]


def draining_pool(db: Connection, pool_id: int, *, over: Sequence[str]) -> DrainRow | None:
    """Return the open rows of a draining pool and its recorded exits.

    `over` are the UIDs of the Pods that a list showed as terminal. Return None if the pool does not drain, or if its
    object is known to be gone.
    """
    row = (
        db.execute(
            text("""
            SELECT uid, namespace, name, draining_since AS since,
                   (SELECT count(*) FROM runner_pods r
                    WHERE r.pool_id = p.id AND r.gone_at IS NULL AND r.terminal_at IS NULL) AS open_rows
            FROM pools p WHERE id = :id AND draining AND deleted_at IS NULL
        """),
            {"id": pool_id},
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
    """Mark a pool as draining when the rest of its object cannot be mirrored.

    `since` is the time of the deletion request. If it is None, `now` is recorded. Return True if the pool was marked,
    which might change the routing of jobs. Return False if the pool has no live row or drains already. A pool without a
    row never had a Pod.

    The advisory lock of the pool is taken before its row changes, as for every writer of pools. The pool's reconcile
    moves the jobs later (`tasks.routing.rerouting`).
    """
    row = db.execute(
        text("SELECT id FROM pools WHERE uid = :uid AND NOT draining AND deleted_at IS NULL"), {"uid": uid}
    ).one_or_none()
    if row is None:
        return False
    db.execute(text("SELECT pg_advisory_xact_lock(:id)"), {"id": row.id})
    db.execute(
        text("""
            UPDATE pools SET draining = true, draining_since = :since, routed_at = :now, rerouting_since = :now
            WHERE id = :id
        """),
        {"id": row.id, "since": since or now, "now": now},
    )
    return True


@dataclass(frozen=True, slots=True)
class OldestJob:
    """A running job of a pool, and the time at which its JIT was delivered (`since`)."""

    id: int
    since: datetime


def oldest_job(db: Connection, pool_id: int) -> OldestJob | None:
    """Return the job of a pool whose JIT was delivered first, or None if no Pod of the pool has a job."""
    row = db.execute(
        text("""
            SELECT c.job_id AS id, c.delivered_at AS since FROM claims c
            WHERE c.pool_id = :id AND c.ended_at IS NULL AND c.purpose = 'job' AND c.delivered_at IS NOT NULL
              AND c.job_id IS NOT NULL
            ORDER BY c.delivered_at, c.id LIMIT 1
        """),
        {"id": pool_id},
    ).one_or_none()
    return None if row is None else OldestJob(*row)

"""Rows of a draining pool: what might be alive, how many Pods are busy, and the oldest job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from models.db.sql import text


@dataclass(frozen=True, slots=True)
class DrainRow:
    """A pool whose deletion was asked for, and whose object may still be there."""

    uid: str
    namespace: str
    name: str
    since: datetime | None
    open_rows: int
    recorded: frozenset[str]


def draining_pool(db: Connection, pool_id: int, *, over: Sequence[str]) -> DrainRow | None:
    """Return what is left of a pool that drains; None when it does not, or its object is known to be gone.

    `over` are the UIDs of Pods that a list showed as terminal; those are `recorded` whose exit is in their row.
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
    """Record that a pool drains of which nothing else can be mirrored; return whether jobs may find another now.

    The pool's lock comes first, as everywhere. A pool that has no row never had a Pod. Its jobs are moved later, by
    its reconcile (`tasks.routing.rerouting`).
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
    """The job that has been with its Pod for longest."""

    id: int
    since: datetime


def oldest_job(db: Connection, pool_id: int) -> OldestJob | None:
    """Return the oldest job on a busy Pod of a pool, by the time at which its Pod was given its runner."""
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

"""Creation of runner Pods: their rows, which are committed before the Pod is created, and the recording of their UIDs.

This module writes `uid`, `attempt_id` and `template_hash`. A first poll can also write the UID, in the same statement
as its offer (`models.tables.offers`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection

from models.db.sql import text

POOL_OF_NAME = """
    coalesce((SELECT r.pool_id FROM runner_pods r WHERE r.namespace = :namespace AND r.name = :name
              ORDER BY r.id DESC LIMIT 1), {pool})
"""
"""SQL expression for the pool of a Pod: the pool of the newest row with the Pod's name, or else `{pool}`.

A late creation can make a second Pod for a row whose first Pod has run and is gone. The pool of that row might be gone,
too.
"""


def insert_planned(
    db: Connection,
    *,
    pool_id: int,
    namespace: str,
    name: str,
    attempt_id: str,
    template_hash: str,
    now: datetime,
) -> None:
    """Insert the row of a Pod that will be created."""
    db.execute(
        text("""
            INSERT INTO runner_pods (pool_id, namespace, name, attempt_id, template_hash, created_at)
            VALUES (:pool_id, :namespace, :name, :attempt, :hash, :now)
        """),
        {
            "pool_id": pool_id,
            "namespace": namespace,
            "name": name,
            "attempt": attempt_id,
            "hash": template_hash,
            "now": now,
        },
    )


def insert_seen(
    db: Connection,
    *,
    pool_id: int,
    namespace: str,
    name: str,
    uid: str,
    attempt_id: str,
    template_hash: str,
    stamp_value: str,
    created_at: datetime,
) -> None:
    """Insert the row of a listed Pod that has no row."""
    db.execute(
        text(f"""
            INSERT INTO runner_pods (pool_id, namespace, name, uid, attempt_id, template_hash, stamp_value, created_at)
            VALUES ({POOL_OF_NAME.format(pool=":pool_id")}, :namespace, :name, :uid, :attempt, :hash, :stamp, :created)
            ON CONFLICT DO NOTHING
        """),
        {
            "pool_id": pool_id,
            "namespace": namespace,
            "name": name,
            "uid": uid,
            "attempt": attempt_id,
            "hash": template_hash,
            "stamp": stamp_value,
            "created": created_at,
        },
    )


def adopt_pod(
    db: Connection,
    *,
    namespace: str,
    name: str,
    uid: str,
    pool: str,
    attempt_id: str,
    template_hash: str,
    stamp_value: str | None,
    now: datetime,
) -> bool | None:
    """Insert the row of a Pod that belongs to `pool` in the cluster.

    Return True if a row has this UID now, and False if the row of another Pod still has this name. Return None if there
    is no such pool.
    """
    row = db.execute(
        text(f"""
            WITH pool AS (
                SELECT id FROM pools WHERE namespace = :namespace AND name = :pool
                ORDER BY deleted_at DESC NULLS FIRST, id DESC LIMIT 1
            ), adopted AS (
                INSERT INTO runner_pods
                    (pool_id, namespace, name, uid, attempt_id, template_hash, stamp_value, created_at)
                SELECT {POOL_OF_NAME.format(pool="id")}, :namespace, :name, :uid, :attempt_id, :template_hash,
                       coalesce(:stamp_value, '0.0'), :now
                FROM pool
                ON CONFLICT DO NOTHING
                RETURNING uid
            )
            SELECT (SELECT count(*) FROM pool) AS pools,
                   EXISTS (SELECT FROM adopted) OR EXISTS (SELECT FROM runner_pods WHERE uid = :uid) AS adopted
        """),
        {
            "namespace": namespace,
            "name": name,
            "uid": uid,
            "pool": pool,
            "attempt_id": attempt_id,
            "template_hash": template_hash,
            "stamp_value": stamp_value,
            "now": now,
        },
    ).one()
    return bool(row.adopted) if row.pools else None


def take_up(db: Connection, *, pool_id: int, name: str, uid: str, template_hash: str) -> None:
    """Record the UID of a Pod that was found after the response to its creation was lost.

    A row that was given up is reopened.
    """
    db.execute(
        text("""
            UPDATE runner_pods SET uid = :uid, template_hash = :hash, gone_at = NULL
            WHERE name = :name AND pool_id = :pool_id AND uid IS NULL
        """),
        {"uid": uid, "hash": template_hash, "name": name, "pool_id": pool_id},
    )


def record_created(db: Connection, *, row_id: int, uid: str, template_hash: str) -> None:
    """Record the UID and the template of a created Pod. A poll might have recorded the UID before.

    A row that was given up during the creation is reopened, because the Pod exists.
    """
    db.execute(
        text("UPDATE runner_pods SET uid = :uid, gone_at = NULL WHERE id = :id AND uid IS NULL"),
        {"id": row_id, "uid": uid},
    )
    db.execute(
        text("UPDATE runner_pods SET template_hash = :hash WHERE id = :id AND template_hash <> :hash"),
        {"id": row_id, "hash": template_hash},
    )


def give_up(db: Connection, rows: Sequence[int], *, now: datetime) -> None:
    """Give up rows whose Pod was never found. If the Pod appears later, its attempt id reopens the row."""
    if rows:
        db.execute(
            text("""
                UPDATE runner_pods SET gone_at = :now WHERE id IN (
                    SELECT id FROM runner_pods WHERE id = ANY(:ids) AND uid IS NULL AND gone_at IS NULL
                    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)
            """),
            {"ids": list(rows), "now": now},
        )


def give_up_row(db: Connection, *, row_id: int, now: datetime) -> None:
    """Give up a row whose Pod was not created, because a foreign object has its name."""
    db.execute(text("UPDATE runner_pods SET gone_at = :now WHERE id = :id AND uid IS NULL"), {"id": row_id, "now": now})

"""Births of runner Pods: their rows, which stand before the Pod is created, and the UID that makes them one.

`uid`, `attempt_id` and `template_hash` are written here. A first poll might write the UID too: it is one statement with
its offer (`models.tables.offers`).
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
"""The pool of a Pod: that of the row whose name it has, where there is one.

A creation that came late can make a second Pod for a row whose Pod has run and gone, and whose pool may have gone too.
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
    """Insert the row of a Pod that is about to be created."""
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
    """Insert the row of a Pod that was seen without one."""
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
    """Give a Pod that the cluster shows to be of `pool` its row.

    Return whether the row now carries this UID, or None when there is no row of that pool. False: another
    Pod's row still has the name.
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
    """Give a row its Pod, which was seen; also one that was given up. The answer to its creation was lost."""
    db.execute(
        text("""
            UPDATE runner_pods SET uid = :uid, template_hash = :hash, gone_at = NULL
            WHERE name = :name AND pool_id = :pool_id AND uid IS NULL
        """),
        {"uid": uid, "hash": template_hash, "name": name, "pool_id": pool_id},
    )


def record_created(db: Connection, *, row_id: int, uid: str, template_hash: str) -> None:
    """Write the UID down that the cluster gave, and by which template; a poll may have brought the UID before.

    A row that was given up while its Pod was being created is taken up again: the Pod exists.
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
    """Give up rows whose Pod was never seen; one that turns up after all is taken up again by its attempt."""
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
    """Give up a row whose Pod was never created (its name is taken by something that is not ours)."""
    db.execute(text("UPDATE runner_pods SET gone_at = :now WHERE id = :id AND uid IS NULL"), {"id": row_id, "now": now})

"""Creation of runner Pods: the rows that are committed before the creation, and the UIDs that are recorded after it.

This module writes `uid`, `attempt_id` and `template_hash`. `models.state.offers` also writes `uid`: if the first poll
of a Pod comes before its UID is recorded, the statement that writes the offer records the UID.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection

from models.db.sql import text
from rules.claims.pod_view import PodView
from rules.claims.stamps import INITIAL

POOL_OF_NAME = """
    coalesce((SELECT r.pool_id FROM runner_pods r WHERE r.namespace = :namespace AND r.name = :name
              ORDER BY r.id DESC LIMIT 1), {pool})
"""
"""SQL expression for the pool of a Pod. The result is the pool of the newest row with the Pod's name.

If there is no such row, the result is the SQL expression that the caller inserts for `{pool}`.

If a request to create a Pod takes effect late, it can create a second Pod with the same name after the first Pod is
gone. The second Pod belongs to the pool of the first Pod, although this pool might be gone.
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


def insert_seen(db: Connection, pod: PodView, *, pool_id: int) -> None:
    """Insert the row of a listed Pod that has no row."""
    db.execute(
        text(f"""
            INSERT INTO runner_pods (pool_id, namespace, name, uid, attempt_id, template_hash, stamp_value, created_at)
            VALUES ({POOL_OF_NAME.format(pool=":pool_id")}, :namespace, :name, :uid, :attempt, :hash, :stamp, :created)
            ON CONFLICT DO NOTHING
        """),
        {**_columns(pod), "pool_id": pool_id, "created": pod.created_at},
    )


def _columns(pod: PodView) -> dict[str, str]:
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "uid": pod.uid,
        "attempt": pod.attempt or "",
        "hash": pod.digest or "",
        "stamp": pod.stamp or INITIAL,
    }


def adopt_pod(db: Connection, pod: PodView, *, now: datetime) -> bool | None:
    """Insert the row of a Pod that exists in the cluster, in the pool of its label.

    Return True if there is a row with this UID now. Return False if no row was inserted, because the row of another Pod
    still has this name. Return None if there is no such pool.
    """
    row = db.execute(
        text(f"""
            WITH pool AS (
                SELECT id FROM pools WHERE namespace = :namespace AND name = :pool
                ORDER BY deleted_at DESC NULLS FIRST, id DESC LIMIT 1
            ), adopted AS (
                INSERT INTO runner_pods
                    (pool_id, namespace, name, uid, attempt_id, template_hash, stamp_value, created_at)
                SELECT {POOL_OF_NAME.format(pool="id")}, :namespace, :name, :uid, :attempt, :hash, :stamp, :now
                FROM pool
                ON CONFLICT DO NOTHING
                RETURNING uid
            )
            SELECT (SELECT count(*) FROM pool) AS pools,
                   EXISTS (SELECT FROM adopted) OR EXISTS (SELECT FROM runner_pods WHERE uid = :uid) AS adopted
        """),
        {**_columns(pod), "pool": pod.pool, "now": now},
    ).one()
    return bool(row.adopted) if row.pools else None


def adopt(db: Connection, *, pool_id: int, name: str, uid: str, template_hash: str) -> None:
    """Record the UID of a Pod that a list shows although the response to its creation was lost.

    If `give_up` has marked the row as gone in the meantime, this function removes the mark.
    """
    db.execute(
        text("""
            UPDATE runner_pods SET uid = :uid, template_hash = :hash, gone_at = NULL
            WHERE name = :name AND pool_id = :pool_id AND uid IS NULL
        """),
        {"uid": uid, "hash": template_hash, "name": name, "pool_id": pool_id},
    )


def record_created(db: Connection, *, row_id: int, uid: str, template_hash: str) -> None:
    """Record the UID and the template of a created Pod. The first poll might have recorded the UID already.

    If `give_up` has marked the row as gone during the creation, this function removes the mark, because the Pod exists.
    """
    db.execute(
        text("""
            UPDATE runner_pods SET uid = coalesce(uid, :uid), template_hash = :hash,
                                   gone_at = CASE WHEN uid IS NOT NULL THEN gone_at END
            WHERE id = :id AND (uid IS NULL OR template_hash <> :hash)
        """),
        {"id": row_id, "uid": uid, "hash": template_hash},
    )


def give_up(db: Connection, rows: Sequence[int], *, now: datetime) -> None:
    """Mark rows as gone, because their Pods were never found.

    If the Pod of such a row appears later, Ostler recognises the Pod by its attempt id and removes the mark.
    """
    if rows:
        db.execute(
            text("""
                UPDATE runner_pods SET gone_at = :now WHERE id IN (
                    SELECT id FROM runner_pods WHERE id = ANY(:ids) AND uid IS NULL AND gone_at IS NULL
                    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)
            """),
            {"ids": list(rows), "now": now},
        )


def drop_given_up(db: Connection, *, row_id: int) -> bool:
    """Delete a given-up row. Return True if the row was deleted.

    The caller has proven that no object with the name of its Pod exists. If the Pod appears nevertheless, a list gives
    it a new row.
    """
    deleted = db.execute(
        text("DELETE FROM runner_pods WHERE id = :id AND uid IS NULL AND gone_at IS NOT NULL"), {"id": row_id}
    )
    return deleted.rowcount > 0


def give_up_row(db: Connection, *, row_id: int, older_than: timedelta, now: datetime) -> None:
    """Mark a row as gone if it is at least as old as `older_than`, because its Pod cannot be created.

    Another object has the name of the Pod.
    """
    db.execute(
        text("UPDATE runner_pods SET gone_at = :now WHERE id = :id AND uid IS NULL AND created_at <= :created"),
        {"id": row_id, "now": now, "created": now - older_than},
    )


def drop_hiding(db: Connection, *, pods: Sequence[tuple[str, str, str]], listed_at: datetime) -> None:
    """Delete rows without a UID that were written before a list began, if the list shows a Pod of another attempt.

    `pods` contains the namespace, the name and the attempt of each listed Pod. Such a row would hide the Pod, because a
    name has at most one row that has or awaits a Pod. If the Pod of a deleted row appears nevertheless, a list gives it
    a new row. Locked rows are skipped.
    """
    db.execute(
        text("""
            DELETE FROM runner_pods WHERE id IN (
                SELECT r.id FROM runner_pods r
                JOIN unnest(CAST(:namespaces AS text[]), CAST(:names AS text[]), CAST(:attempts AS text[]))
                     AS l (namespace, name, attempt) ON l.namespace = r.namespace AND l.name = r.name
                WHERE r.uid IS NULL AND r.attempt_id <> l.attempt AND r.created_at < :listed_at
                ORDER BY r.id FOR UPDATE OF r SKIP LOCKED)
        """),
        {
            "namespaces": [namespace for namespace, _, _ in pods],
            "names": [name for _, name, _ in pods],
            "attempts": [attempt for _, _, attempt in pods],
            "listed_at": listed_at,
        },
    )

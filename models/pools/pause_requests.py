"""Requests of people to pause or resume a pool, made over the API or the dashboard.

`web` has no right to change a RunnerPool. It writes the request into the row of the pool, and a worker carries it out
(`tasks.pools.pause_requests`). A pool has at most one request. A later request replaces it.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, Row

from models.db.sql import text
from models.state import changes
from rules.changes import Author, ChangeKind, Via


@dataclass(frozen=True, slots=True)
class PauseRequest:
    """A request to pause a pool, or to resume it if `paused` is False.

    `id` is random. The worker writes it to the object together with `spec.paused`, as proof that it carried out this
    request.
    """

    id: str
    paused: bool
    who: str
    via: Via


@dataclass(frozen=True, slots=True)
class Asked:
    """The pool of a request. `refused` is True if the pool drains, so that it cannot be paused."""

    namespace: str
    name: str
    refused: bool


def ask(db: Connection, pool_id: int, *, paused: bool, by: Author) -> Asked | None:
    """Write a request into the row of a pool. Return None if there is no such pool, or if its object is gone.

    The row might be older than the object, so the request is also written if the row has the requested value already.
    """
    pool = db.execute(
        text("""
            SELECT namespace, name, draining, CAST(pause_request -> 'paused' AS boolean) AS asked FROM pools
            WHERE id = :id AND deleted_at IS NULL FOR NO KEY UPDATE
        """),
        {"id": pool_id},
    ).one_or_none()
    if pool is None:
        return None
    if pool.draining and paused:
        return Asked(pool.namespace, pool.name, refused=True)
    request = asdict(PauseRequest(secrets.token_hex(8), paused, by.who, by.via)) | {"at": by.at.isoformat()}
    db.execute(
        text("UPDATE pools SET pause_request = CAST(:request AS jsonb) WHERE id = :id"),
        {"id": pool_id, "request": json.dumps(request)},
    )
    changes.record(
        db,
        ChangeKind.POOL,
        pool.name,
        object_id=pool_id,
        before={"asked_paused": pool.asked},
        after={"asked_paused": paused},
        by=by,
    )
    return Asked(pool.namespace, pool.name, refused=False)


def pools_with_requests(db: Connection, *, namespace: str) -> list[Row[tuple[str, str]]]:
    """Return (uid, name) of the pools in a namespace that have a request, in the order of their ids."""
    return list(
        db.execute(
            text("""
                SELECT uid, name FROM pools
                WHERE namespace = :namespace AND deleted_at IS NULL AND pause_request IS NOT NULL ORDER BY id
            """),
            {"namespace": namespace},
        ).all()
    )


def open_request(db: Connection, *, uid: str) -> PauseRequest | None:
    """Return the request of a pool, or None if it has none."""
    row = db.execute(
        text("SELECT pause_request FROM pools WHERE uid = :uid AND deleted_at IS NULL"), {"uid": uid}
    ).one_or_none()
    if row is None or row.pause_request is None:
        return None
    found = row.pause_request
    return PauseRequest(found["id"], found["paused"], found["who"], Via(found["via"]))


def end(db: Connection, *, uid: str, request: str) -> None:
    """Remove a request that was carried out, unless a later request has replaced it."""
    db.execute(
        text("UPDATE pools SET pause_request = NULL WHERE uid = :uid AND pause_request ->> 'id' = :request"),
        {"uid": uid, "request": request},
    )

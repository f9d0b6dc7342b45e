"""Runner versions that the Pods of each pool start, and the time from which GitHub refuses them.

What is recorded is what GitHub's runner lists showed; it says nothing of a pool whose runners no list has shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection
from sqlalchemy.orm import Mapped, mapped_column

from models.db.base import Base
from models.db.sql import text

ASKED_EVERY = timedelta(days=1)
"""GitHub is asked for the end of a version once in this time."""


class RunnerVersion(Base):
    """A version that runners of a pool had, and the template of their Pods."""

    __tablename__ = "runner_versions"

    pool_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    version: Mapped[str] = mapped_column(primary_key=True)
    template_hash: Mapped[str]
    seen_at: Mapped[datetime]
    ends_at: Mapped[datetime | None] = mapped_column(comment="when GitHub begins to refuse it")
    asked_at: Mapped[datetime | None] = mapped_column(comment="when GitHub was asked for that")


@dataclass(frozen=True, slots=True)
class PoolVersion:
    """The version that a pool was seen to start under its present template; `ends_at` None: not known."""

    pool_id: int
    namespace: str
    pool: str
    version: str
    ends_at: datetime | None


def record(db: Connection, versions: Mapping[str, str], *, now: datetime) -> None:
    """Record the versions of runners, by runner name, for the pools of their live claims.

    A row that another session has locked is left to the next list.
    """
    found = db.execute(
        text("""
            SELECT DISTINCT c.pool_id, p.template_hash, v.version
            FROM unnest(CAST(:names AS text[]), CAST(:versions AS text[])) AS v (name, version)
            JOIN claims c ON c.runner_name = v.name AND c.ended_at IS NULL
            JOIN runner_pods p ON p.id = c.runner_pod_id
            JOIN pools l ON l.id = c.pool_id AND l.template_hash = p.template_hash
            ORDER BY 1, 3
        """),
        {"names": list(versions), "versions": list(versions.values())},
    ).all()
    for row in found:
        values = {"pool": row.pool_id, "hash": row.template_hash, "version": row.version, "now": now}
        locked = db.execute(
            text("""
                SELECT 1 FROM runner_versions WHERE pool_id = :pool AND version = :version
                FOR NO KEY UPDATE SKIP LOCKED
            """),
            values,
        ).one_or_none()
        if locked is not None:
            db.execute(
                text("""
                    UPDATE runner_versions SET seen_at = :now, template_hash = :hash
                    WHERE pool_id = :pool AND version = :version
                """),
                values,
            )
        else:
            db.execute(
                text("""
                    INSERT INTO runner_versions (pool_id, template_hash, version, seen_at)
                    VALUES (:pool, :hash, :version, :now) ON CONFLICT DO NOTHING
                """),
                values,
            )


def to_ask(db: Connection, *, now: datetime) -> str | None:
    """Return a version of which GitHub is to be asked how long it takes it, and note that it is; None: nothing is due.

    Two processes may ask for the same version at once, which costs a call.
    """
    version: str | None = db.execute(
        text("""
            SELECT v.version FROM runner_versions v
            JOIN pools l ON l.id = v.pool_id AND l.template_hash = v.template_hash
            WHERE l.deleted_at IS NULL AND (v.asked_at IS NULL OR v.asked_at < :before) ORDER BY v.version LIMIT 1
        """),
        {"before": now - ASKED_EVERY},
    ).scalar()
    if version is not None:
        _write(db, version, "asked_at = :now", now=now)
    return version


def record_end(db: Connection, version: str, ends_at: datetime | None) -> None:
    """Record until when GitHub takes a version; None: it does not say."""
    _write(db, version, "ends_at = :ends", ends=ends_at)


def _write(db: Connection, version: str, what: str, **values: object) -> None:
    db.execute(
        text(f"""
            UPDATE runner_versions SET {what} WHERE (pool_id, version) IN (
                SELECT pool_id, version FROM runner_versions WHERE version = :version
                ORDER BY pool_id FOR NO KEY UPDATE SKIP LOCKED)
        """),
        {"version": version, **values},
    )


def read(db: Connection, pool_id: int | None = None) -> Sequence[PoolVersion]:
    """Return the version that each pool started last under its present template, or that of one pool."""
    rows = db.execute(
        text("""
            SELECT DISTINCT ON (l.id) l.id, l.namespace, l.name, v.version, v.ends_at
            FROM runner_versions v JOIN pools l ON l.id = v.pool_id AND l.template_hash = v.template_hash
            WHERE l.deleted_at IS NULL AND (CAST(:pool AS bigint) IS NULL OR l.id = :pool)
            ORDER BY l.id, v.seen_at DESC, v.version
        """),
        {"pool": pool_id},
    )
    return [PoolVersion(*row) for row in rows]

"""Runner versions of each pool, and the time at which GitHub begins to refuse each version.

The versions come from GitHub's runner lists. If the runners of a pool appeared in no list, the pool has no version.
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
"""Minimum time between two answers of GitHub about the end of the same version."""

ASKED_AGAIN = timedelta(minutes=10)
"""Time after a question that got no answer at which GitHub is asked again."""


class RunnerVersion(Base):
    """A version that runners of a pool reported, with the template of their Pods."""

    __tablename__ = "runner_versions"

    pool_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    version: Mapped[str] = mapped_column(primary_key=True)
    template_hash: Mapped[str]
    seen_at: Mapped[datetime]
    ends_at: Mapped[datetime | None] = mapped_column(
        comment="time at which GitHub begins to refuse the version; NULL: unknown"
    )
    asked_at: Mapped[datetime | None] = mapped_column(
        comment="time of the last answer about `ends_at`; earlier while an answer is missing, to ask again soon"
    )


@dataclass(frozen=True, slots=True)
class PoolVersion:
    """The runner version that was reported last for a pool, by a Pod of the present template.

    GitHub refuses the version from `ends_at` on. `ends_at` is None if this time is not known.
    """

    pool_id: int
    namespace: str
    pool: str
    version: str
    ends_at: datetime | None


def record(db: Connection, versions: Mapping[str, str], *, now: datetime) -> None:
    """Record the versions of runners for their pools. `versions` maps the name of a runner to its version.

    The pool of a runner is the pool of its live claim. A runner in a Pod of an older template is ignored. If another
    session has locked the row of a version, the row is updated after the next list of runners.
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
    """Return a version whose end must be requested from GitHub, and mark it as asked. Return None if there is none.

    The end of a version is the time at which GitHub begins to refuse the version. If two processes ask about the same
    version at once, Ostler makes one extra call and nothing else happens. Without an answer (`record_end`), GitHub is
    asked again after `ASKED_AGAIN`.
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
        _write(db, version, "asked_at = :at", at=now - ASKED_EVERY + ASKED_AGAIN)
    return version


def record_end(db: Connection, version: str, ends_at: datetime | None, *, now: datetime) -> None:
    """Record when GitHub begins to refuse a version. None means that GitHub names no time."""
    _write(db, version, "ends_at = :ends, asked_at = :now", ends=ends_at, now=now)


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
    """Return for each pool the version that was seen last under the pool's present template.

    If `pool_id` is given, only that pool is read. A pool without a known version is left out.
    """
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

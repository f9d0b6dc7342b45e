"""Backoffs of installations, accounts and repositories, persisted so that no restart forgets them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import CheckConstraint, Connection, text
from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base
from rules.holds import HoldReason

BASE = {"installation": 10.0, "account": 60.0, "repository": 60.0}
CAP = {"installation": 300.0, "account": 3600.0, "repository": 3600.0}
"""Seconds of the first wait and of the longest; each further failure doubles it."""


class Backoff(Base):
    """Until `not_before` the jobs of this key are held; each further failure doubles the wait."""

    __tablename__ = "backoffs"
    __table_args__ = (CheckConstraint("kind IN ('installation', 'account', 'repository')", name="kind_known"),)

    kind: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True, comment="an id, or a repository's full name")
    not_before: Mapped[datetime]
    failures: Mapped[int]
    reason: Mapped[str]
    changed_at: Mapped[datetime]


def record_failure(db: Connection, *, kind: str, key: str, reason: str, now: datetime) -> datetime:
    """Double the wait of this key and hold its queued jobs; return the time before which nothing is tried."""
    failures: int = db.execute(
        text("""
            INSERT INTO backoffs (kind, key, not_before, failures, reason, changed_at)
            VALUES (:kind, :key, :now, 1, :reason, :now)
            ON CONFLICT (kind, key) DO UPDATE SET
                failures = least(backoffs.failures + 1, 30), reason = :reason, changed_at = :now
            RETURNING failures
        """),
        {"kind": kind, "key": key, "reason": reason, "now": now},
    ).scalar_one()
    not_before = now + timedelta(seconds=min(CAP[kind], BASE[kind] * 2 ** (failures - 1)))
    wait_until(db, kind=kind, key=key, reason=reason, not_before=not_before, now=now)
    return not_before


def wait_until(db: Connection, *, kind: str, key: str, reason: str, not_before: datetime, now: datetime) -> None:
    """Try nothing for this key before a time that GitHub named, and hold its queued jobs until then."""
    db.execute(
        text("""
            INSERT INTO backoffs (kind, key, not_before, failures, reason, changed_at)
            VALUES (:kind, :key, :not_before, 0, :reason, :now)
            ON CONFLICT (kind, key) DO UPDATE SET
                not_before = greatest(backoffs.not_before, :not_before), reason = :reason, changed_at = :now
        """),
        {"kind": kind, "key": key, "not_before": not_before, "reason": reason, "now": now},
    )
    column = {"installation": "installation_id::text", "account": "account_id::text", "repository": "repository"}[kind]
    db.execute(
        text(f"""
            UPDATE jobs SET hold_reason = :hold, hold_detail = :detail, not_before = :not_before, changed_at = :now
            WHERE id IN (SELECT id FROM jobs WHERE state = 'queued' AND hold_reason IS NULL AND {column} = :key
                         ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)
        """),  # noqa: S608  the column is one of three literals above
        {"hold": HoldReason.BACKOFF, "detail": f"{kind} {key}: {reason}", "not_before": not_before, "key": key,
         "now": now},
    )  # fmt: skip


def forget(db: Connection, keys: Sequence[tuple[str, str]]) -> None:
    """End the backoffs of these (kind, key) pairs: a call for them went through."""
    db.execute(
        text("""
            DELETE FROM backoffs
            WHERE (kind, key) IN (SELECT * FROM unnest(CAST(:kinds AS text[]), CAST(:keys AS text[])))
        """),
        {"kinds": [kind for kind, _ in keys], "keys": [key for _, key in keys]},
    )


def hold_job(
    db: Connection, job_id: int, *, hold: HoldReason, detail: str, not_before: datetime | None, now: datetime
) -> None:
    """Set a job aside; it keeps its age. `rematch` lifts the hold when `not_before` has passed."""
    db.execute(
        text("""
            UPDATE jobs SET hold_reason = :hold, hold_detail = :detail, not_before = :not_before,
                   failures = failures + 1, changed_at = :now
            WHERE id = :id AND state IN ('queued', 'claimed')
        """),
        {"id": job_id, "hold": hold, "detail": detail, "not_before": not_before, "now": now},
    )

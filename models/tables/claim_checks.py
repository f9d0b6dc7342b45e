"""Findings about live claims, as sweeps and a restore write them: absent or idle runners, Pods to force, stamps."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection

from models.db.sql import text
from rules.claims.machines import Stamp


def set_absent(db: Connection, claim_id: int, *, absent: bool, now: datetime) -> None:
    """Remember the first of two checks that did not find a runner, or forget it when it was seen."""
    db.execute(
        text("""
            UPDATE claims SET runner_absent_at = CASE WHEN :absent THEN coalesce(runner_absent_at, :now) END
            WHERE id = :id AND ended_at IS NULL
        """),
        {"id": claim_id, "absent": absent, "now": now},
    )


def set_free(db: Connection, claim_id: int, *, free: bool, absent: bool | None, since: datetime, at: datetime) -> None:
    """Remember the first check since a time that found a runner absent or idle, or forget it when it was seen busy.

    `absent`: the same for a runner that was not there at all; None leaves that alone.
    """
    db.execute(
        text("""
            UPDATE claims SET runner_idle_at = CASE WHEN NOT :free THEN NULL
                                               WHEN runner_idle_at >= :since THEN runner_idle_at ELSE :at END,
                   runner_absent_at = CASE WHEN CAST(:absent AS boolean) IS NULL THEN runner_absent_at
                                           WHEN NOT :absent THEN NULL
                                           WHEN runner_absent_at >= :since THEN runner_absent_at ELSE :at END
            WHERE id = :id
        """),
        {"id": claim_id, "free": free, "absent": absent, "since": since, "at": at},
    )


def allow_force(db: Connection, claim_id: int | None, *, now: datetime) -> bool:
    """Allow a retirement to delete its Pod without its kubelet; False when it has ended, or there is none."""
    allowed = db.execute(
        text("UPDATE claims SET force_deleted_at = :now WHERE id = :id AND ended_at IS NULL RETURNING id"),
        {"id": claim_id, "now": now},
    ).one_or_none()
    return allowed is not None


def show_stamp(db: Connection, claim_id: int, stamp: Stamp) -> None:
    """Let a claim that was losing its stamp have the one that its Pod shows: it keeps that Pod."""
    db.execute(
        text("UPDATE claims SET stamp = :stamp WHERE id = :id AND stamp = :removing"),
        {"id": claim_id, "stamp": stamp, "removing": Stamp.REMOVING},
    )

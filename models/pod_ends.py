"""How runner Pods ended, as the watch saw it last: recorded for people to read, and read for them.

It comes with a message, so nothing may be decided by it (law L6).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row

from models.sql import text
from rules.pod_ends import PodEnd

LONGEST_REASON = 200
"""Characters of a reason that are kept."""

COLUMNS = """
    p.deletion_at, p.exit_reason, p.poller_exit_code, p.runner_exit_code, p.terminal_at IS NOT NULL AS pod_over,
    p.gone_at IS NOT NULL AS pod_gone,
    EXISTS (SELECT FROM claims r WHERE r.pod_uid = p.uid AND r.purpose = 'retire'
            AND (p.deletion_at IS NULL OR r.created_at <= p.deletion_at + interval '1 second')) AS pod_retired
"""
"""What `end_of` reads, of a row of `runner_pods` called `p`. Times of the API server are whole seconds."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The last sight of a Pod that is gone."""

    deletion_at: datetime | None
    reason: str | None
    runner_exit_code: int | None


def record(db: Connection, endings: Mapping[str, Ending]) -> int:
    """Record how these Pods ended, by UID, where nothing better is known; return how many rows were there and free.

    A row that another session has locked is left out (law L14).
    """
    free = db.execute(
        text("SELECT uid FROM runner_pods WHERE uid = ANY(:uids) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED"),
        {"uids": list(endings)},
    ).scalars().all()  # fmt: skip
    for uid in free:
        found = endings[uid]
        db.execute(
            text("""
                UPDATE runner_pods SET deletion_at = coalesce(deletion_at, :at),
                       exit_reason = coalesce(exit_reason, :reason),
                       runner_exit_code = coalesce(runner_exit_code, :code)
                WHERE uid = :uid
            """),
            {"uid": uid, "at": found.deletion_at, "reason": found.reason, "code": found.runner_exit_code},
        )
    return len(free)


def read(db: Connection, pod_uid: str) -> PodEnd:
    """Return what is known of the end of a Pod."""
    row = db.execute(text(f"SELECT {COLUMNS} FROM runner_pods p WHERE p.uid = :uid"), {"uid": pod_uid}).one_or_none()  # noqa: S608
    return PodEnd() if row is None else end_of(row)


def end_of(row: Row[Any]) -> PodEnd:
    """Return the end of the Pod of a row that has `COLUMNS`."""
    return PodEnd(
        deletion_at=row.deletion_at,
        reason=row.exit_reason,
        poller_exit_code=row.poller_exit_code,
        runner_exit_code=row.runner_exit_code,
        over=row.pod_over,
        gone=row.pod_gone,
        ours=row.pod_retired,
    )

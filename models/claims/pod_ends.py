"""Ends of runner Pods, as the watch saw them last: recorded for people, and read for them.

It comes with a message, so nothing may be decided by it (law L6).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row

from models.db.sql import text
from models.tables import pod_facts
from rules.claims.pod_ends import PodEnd
from rules.claims.pod_events import PodEvent

LONGEST_REASON = 200
"""Characters of a reason that are kept."""

COLUMNS = """
    p.deletion_at, p.exit_reason, p.poller_exit_code, p.runner_exit_code, p.terminal_at IS NOT NULL AS pod_over,
    p.gone_at IS NOT NULL AS pod_gone, p.event_reason, p.event_by, p.event_message,
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


SEEN = f"""
    LEFT JOIN LATERAL (
        SELECT {COLUMNS}
        WHERE CAST(:seen AS bigint[]) IS NULL OR NOT EXISTS (
            SELECT FROM claims o WHERE o.pod_uid = p.uid AND o.delivered_at IS NOT NULL
                                   AND o.account_id <> ALL (CAST(:seen AS bigint[])))) pod_end ON true
"""
"""Joins `COLUMNS` as `pod_end` for a caller who may see the accounts `:seen` alone (NULL: all).

They are NULL where a job of another account had the Pod: how it ended is part of how that job went.
"""


def record(db: Connection, endings: Mapping[str, Ending]) -> int:
    """Record how these Pods ended, by UID, where nothing better is known; return how many rows were there and free.

    A row that another session has locked is left out (law L14).
    """
    free = (
        db.execute(
            text("SELECT uid FROM runner_pods WHERE uid = ANY(:uids) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED"),
            {"uids": list(endings)},
        )
        .scalars()
        .all()
    )
    for uid in free:
        found = endings[uid]
        pod_facts.record_ending(
            db, uid, deletion_at=found.deletion_at, reason=found.reason, runner_exit_code=found.runner_exit_code
        )
    return len(free)


_LOST = """
    p.events_read_at IS NULL AND p.exit_reason IS DISTINCT FROM 'Completed'
    AND NOT EXISTS (SELECT FROM claims r WHERE r.pod_uid = p.uid AND r.purpose = 'retire'
                    AND (p.deletion_at IS NULL OR r.created_at <= p.deletion_at + interval '1 second'))
    AND EXISTS (SELECT FROM claims c WHERE c.pod_uid = p.uid AND c.purpose = 'job'
                AND (c.end_reason IN ('pod_gone', 'pod_spent') OR (:live AND c.ended_at IS NULL)
                     OR (c.delivered_at IS NOT NULL AND c.ended_at >= p.deletion_at + interval '1 second')))
"""
"""Of a row of `runner_pods` called `p`: a job lost the Pod, not by Ostler, and nobody has read the Events about it.

GitHub's `completed` might end the claim first. Times of the API server are whole seconds: a Pod that is deleted within
a second after the end of its claim is not lost.
"""


def lost(db: Connection, uids: Sequence[str], *, live: bool) -> list[str]:
    """Return the UIDs of those of these Pods that a job lost; `live`: also of those with a live job claim."""
    rows = db.execute(
        text(f"SELECT p.uid FROM runner_pods p WHERE p.uid = ANY(:uids) AND {_LOST} ORDER BY p.id"),
        {"uids": list(uids), "live": live},
    )
    return list(rows.scalars())


@dataclass(frozen=True, slots=True)
class Named:
    """Namespace and name of a Pod."""

    namespace: str
    name: str


def unread(db: Connection, pod_uid: str, *, most: int, since: datetime) -> Named | None:
    """Return a Pod that a job lost; None when its Events were read, or since then those of `most` Pods."""
    row = db.execute(
        text(f"""
            SELECT p.namespace, p.name FROM runner_pods p
            WHERE p.uid = :uid AND {_LOST}
              AND (SELECT count(*) FROM (SELECT FROM runner_pods WHERE events_read_at > :since LIMIT :most) r) < :most
        """),
        {"uid": pod_uid, "live": True, "most": most, "since": since},
    ).one_or_none()
    return None if row is None else Named(row.namespace, row.name)


def record_event(db: Connection, pod_uid: str, event: PodEvent | None, *, now: datetime) -> bool:
    """Record that the Events about a Pod were read, and the one that says best who ended it.

    False when they were read before, or when another session has locked the row (law L14).
    """
    free = db.execute(
        text("SELECT 1 FROM runner_pods WHERE uid = :uid AND events_read_at IS NULL FOR NO KEY UPDATE SKIP LOCKED"),
        {"uid": pod_uid},
    ).one_or_none()
    if free is None:
        return False
    pod_facts.record_event(
        db,
        pod_uid,
        reason=None if event is None else event.kind,
        by=None if event is None else event.component,
        message=None if event is None else event.note,
        now=now,
    )
    return True


def read(db: Connection, pod_uid: str) -> PodEnd:
    """Return what is known of the end of a Pod."""
    row = db.execute(text(f"SELECT {COLUMNS} FROM runner_pods p WHERE p.uid = :uid"), {"uid": pod_uid}).one_or_none()
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
        event=None
        if row.event_reason is None
        else PodEvent(reason=row.event_reason, component=row.event_by or "", note=row.event_message or ""),
    )

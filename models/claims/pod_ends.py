"""Records of how runner Pods ended. The watch on Pods reports the ends, and operators read the records.

A message of the watch is only a hint. Ostler therefore ends no claim and deletes no Pod because of these records (law
L6). `models.claims.runner_failures` uses the records to find out whether the runner caused the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row

from models.db.sql import text
from models.state import pod_facts
from rules.claims.pod_ends import PodEnd
from rules.claims.pod_events import PodEvent

LONGEST_REASON = 200
"""Greatest length of a stored reason, in characters."""

LONGEST_NODE = 253
"""Greatest length of the name of a node, in characters. Source: "Object Names and IDs", DNS subdomain names."""

_OURS = """
    (p.deletion_sent_at IS NOT NULL
     OR EXISTS (SELECT FROM claims r WHERE r.pod_uid = p.uid AND r.purpose = 'retire'
                AND (p.deletion_at IS NULL OR r.created_at <= p.deletion_at + interval '1 second')))
"""
"""SQL condition on a row `p` of `runner_pods`: Ostler deleted the Pod.

The retire claim is evidence for Pods that an earlier version deleted, and for rows that were locked when the request
should have been recorded. One second is added because the API server reports times in whole seconds.
"""

COLUMNS = f"""
    p.deletion_at, p.deleted_first, p.exit_reason, p.poller_exit_code, p.runner_exit_code,
    p.terminal_at IS NOT NULL AS pod_over, p.gone_at IS NOT NULL AS pod_gone, p.event_reason, p.event_by,
    p.event_message, {_OURS} AS deleted_by_ostler,
    EXISTS (SELECT FROM pools l
            WHERE l.id = p.pool_id AND coalesce(l.draining_since, l.deleted_at) <= p.deletion_at) AS pool_deleted_first
"""
"""SQL columns that `end_of` reads, from a row `p` of `runner_pods`."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The last observation of a Pod by the watch before the Pod was gone."""

    deletion_at: datetime | None
    reason: str | None
    runner_exit_code: int | None
    deleted_first: bool | None = None
    node: str | None = None


SEEN = f"""
    LEFT JOIN LATERAL (
        SELECT {COLUMNS}
        WHERE CAST(:seen AS bigint[]) IS NULL OR NOT EXISTS (
            SELECT FROM claims o WHERE o.pod_uid = p.uid AND o.delivered_at IS NOT NULL
                                   AND o.account_id <> ALL (CAST(:seen AS bigint[])))) pod_end ON true
"""
"""SQL join that adds `COLUMNS` as `pod_end`, for a caller who may see only the accounts `:seen` (NULL: all accounts).

The columns are NULL if a claim of any other account was delivered to the Pod, because the end of the Pod reveals how
the job of that account ended.
"""


def record(db: Connection, endings: Mapping[str, Ending]) -> int:
    """Record how these Pods ended. `endings` is keyed by the UID of the Pod.

    A value that is already recorded is not replaced. Returns how many of these Pods have a row that was not locked. A
    row that another session has locked is skipped (law L14).
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
            db,
            uid,
            deletion_at=found.deletion_at,
            deleted_first=found.deleted_first,
            reason=found.reason,
            runner_exit_code=found.runner_exit_code,
            node=found.node,
        )
    return len(free)


def record_request(db: Connection, pod_uid: str, *, now: datetime) -> None:
    """Record that Ostler is about to request the deletion of a Pod. A row that another session has locked is skipped.

    The caller has seen that no other client requested the deletion before.
    """
    pod_facts.record_deletion_sent(db, pod_uid, now=now)


_LOST = f"""
    p.events_read_at IS NULL AND p.exit_reason IS DISTINCT FROM 'Completed' AND NOT {_OURS}
    AND EXISTS (SELECT FROM claims c WHERE c.pod_uid = p.uid AND c.purpose = 'job'
                AND (c.end_reason IN ('pod_gone', 'pod_spent') OR (:live AND c.ended_at IS NULL)
                     OR (c.delivered_at IS NOT NULL AND p.deleted_first IS NOT FALSE
                         AND c.ended_at >= p.deletion_at + interval '1 second')))
"""
"""SQL condition on a row `p` of `runner_pods`: the Pod ended before its job, and its Events are unread.

The condition is false if Ostler deleted the Pod. A Pod also ended before its job if its deletion was requested before
its delivered claim ended, even if the webhook `completed` ended the claim. The API server reports times in whole
seconds, so the claim must have ended at least one second after the recorded deletion.
"""


def lost(db: Connection, uids: Sequence[str], *, live: bool) -> list[str]:
    """Return the UIDs of the given Pods that ended before their job and whose Events were not read yet.

    If `live` is True, a Pod that still has a live job claim is also returned.
    """
    rows = db.execute(
        text(f"SELECT p.uid FROM runner_pods p WHERE p.uid = ANY(:uids) AND {_LOST} ORDER BY p.id"),
        {"uids": list(uids), "live": live},
    )
    return list(rows.scalars())


@dataclass(frozen=True, slots=True)
class Named:
    """The namespace and the name of a Pod."""

    namespace: str
    name: str


def unread(db: Connection, pod_uid: str, *, most: int, since: datetime) -> Named | None:
    """Return the name of a Pod if the Pod ended before its job and the Events of the Pod must still be read.

    Returns None otherwise. The result is also None if the Events of `most` Pods were already read after `since`.
    """
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
    """Record that the Events of a Pod were read, with the Event that best explains the end of the Pod.

    `event` is None if no Event explains the end. Returns False if an earlier call has recorded that the Events were
    read, if the Pod has no row, or if another session has locked the row (law L14).
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
    """Return the recorded end of a Pod. Return an empty `PodEnd` if the Pod has no row."""
    row = db.execute(text(f"SELECT {COLUMNS} FROM runner_pods p WHERE p.uid = :uid"), {"uid": pod_uid}).one_or_none()
    return PodEnd() if row is None else end_of(row)


def end_of(row: Row[Any]) -> PodEnd:
    """Return the end of a Pod from a row that has `COLUMNS`."""
    return PodEnd(
        deletion_at=row.deletion_at,
        deleted_first=row.deleted_first,
        reason=row.exit_reason,
        poller_exit_code=row.poller_exit_code,
        runner_exit_code=row.runner_exit_code,
        over=row.pod_over,
        gone=row.pod_gone,
        ours=row.deleted_by_ostler,
        event=None
        if row.event_reason is None
        else PodEvent(reason=row.event_reason, component=row.event_by or "", note=row.event_message or ""),
        of_deleted_pool=row.pool_deleted_first,
    )

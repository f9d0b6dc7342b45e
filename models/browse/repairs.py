"""Queries for the ledger of repairs: pages of repairs, newest first, and numbers of recent repairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from models.browse.page import Order, Page, read
from models.db.sql import text
from rules.sweeps.limits import Repaired

_COLUMNS = """
    t.id, t.sweep, t.run_id, t.at, t.what, t.why, t.witnesses, t.kills, t.dry, t.pod_uid,
    (SELECT name FROM runner_pods WHERE uid = t.pod_uid) AS pod, t.claim_id, t.job_id, t.runner_name, t.subject,
    t.before, t.after, t.expects, t.outcome, t.verified_at, t.note
"""


@dataclass(frozen=True, slots=True)
class RepairFilter:
    """Filter for repairs. None in a field selects all values of that field."""

    sweep: str | None = None
    outcome: Repaired | None = None
    dry: bool | None = None
    claim_id: int | None = None
    job_id: int | None = None
    pod_uid: str | None = None
    run_id: int | None = None
    since: datetime | None = None
    kills: bool | None = None
    failed: bool | None = None


def list_repairs(
    db: Connection, wanted: RepairFilter, *, order: Order = Order.NEWEST, after: int | None = None, limit: int
) -> Page:
    """Return one page of repairs in the order of their times."""
    conditions: dict[str, Any] = {
        "t.sweep = :value": wanted.sweep,
        "t.outcome = 'failed'": wanted.failed or None,
        "t.outcome <> 'failed'": wanted.failed is False or None,
        "t.outcome = :value": wanted.outcome,
        "t.dry": wanted.dry or None,
        "NOT t.dry": wanted.dry is False or None,
        "t.claim_id = :value": wanted.claim_id,
        "t.job_id = :value": wanted.job_id,
        "t.pod_uid = :value": wanted.pod_uid,
        "t.run_id = :value": wanted.run_id,
        "t.at >= :value": wanted.since,
        "t.kills": wanted.kills or None,
        "NOT t.kills": wanted.kills is False or None,
    }
    return read(db, _COLUMNS, source="repairs t", conditions=conditions, order=order, after=after, limit=limit)


@dataclass(frozen=True, slots=True)
class RepairCount:
    """The number of repairs of one sweep with one outcome."""

    sweep: str
    outcome: str
    repairs: int


def count_repairs(db: Connection, *, since: datetime) -> Sequence[RepairCount]:
    """Return how many repairs were made since a time, by sweep and outcome. Repairs of dry runs are not counted."""
    rows = db.execute(
        text("""
            SELECT sweep, outcome, count(*) FROM repairs
            WHERE at >= :since AND NOT dry GROUP BY sweep, outcome ORDER BY sweep, outcome
        """),
        {"since": since},
    )
    return [RepairCount(*row) for row in rows]


@dataclass(frozen=True, slots=True)
class DailyChanges:
    """The number of changes of one kind on one UTC day. `kills` is True if they deleted Pods or removed runners."""

    day: str
    who: str
    what: str
    outcome: str
    kills: bool
    changes: int


def summary(db: Connection, *, since: datetime) -> Sequence[DailyChanges]:
    """Return what sweeps and reconcilers changed since a time: for each UTC day, actor, action and outcome the number.

    The latest day comes first. Retirements of Pods that are in the ledger of repairs are left out, so each is counted
    once. The actor of another retirement is the process that began it, its action is the reason without the detail, and
    its outcome says whether the Pod is gone. Repairs of dry runs are not counted.
    """
    rows = db.execute(
        text("""
            SELECT to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD'), sweep, what, outcome, kills, count(*)
            FROM repairs WHERE at >= :since AND NOT dry GROUP BY 1, 2, 3, 4, 5
            UNION ALL
            SELECT to_char(c.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD'), coalesce(e.who, '-'),
                   'retire: ' || coalesce(split_part(c.release_reason, ': ', 1), '-'),
                   CASE WHEN c.ended_at IS NULL THEN 'open' ELSE 'verified' END, true, count(*)
            FROM claims c
            LEFT JOIN LATERAL (SELECT who FROM claim_events WHERE claim_id = c.id ORDER BY id LIMIT 1) e ON true
            WHERE c.purpose = 'retire' AND c.created_at >= :since
              AND NOT EXISTS (SELECT FROM repairs r WHERE r.pod_uid = c.pod_uid AND r.kills AND NOT r.dry)
            GROUP BY 1, 2, 3, 4, 5
            ORDER BY 1 DESC, 2, 3, 4
        """),
        {"since": since},
    )
    return [DailyChanges(*row) for row in rows]

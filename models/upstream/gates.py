"""Gates of GitHub and Kubernetes, and the counts of calls that decide whether a gate trips.

Every process counts its calls to each upstream. Every five seconds, the process adds its counts to the current row of
the upstream. One row covers five seconds. The sweep `gates` evaluates the counts that all processes made within the
setting `gate_window`. Gates and counts are stored in Postgres and not in Redis, because a flush of Redis during an
outage would reset a tripped gate. The columns keep their older names: `closed_at` is the time of the trip, and
`opened_at` the time of the last recovery.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import CheckConstraint, Connection, Row, text
from sqlalchemy.orm import Mapped, mapped_column

from models.db.base import Base
from models.state import changes
from ostler.upstreams import Counts, Upstream
from rules.changes import Author, ChangeKind, Via
from rules.upstream.gates import CallCounts, Gate, GateRule, judge, why_closed

BUCKET = 5
"""Seconds that one row of counts covers."""

KEPT = timedelta(hours=1)
"""Time after which counts are deleted. Until then, operators can read them."""


class UpstreamCalls(Base):
    """Numbers of calls and of failed calls that all processes made to an upstream within `BUCKET` seconds."""

    __tablename__ = "upstream_calls"
    __table_args__ = (CheckConstraint("errors <= calls", name="errors_are_calls"),)

    upstream: Mapped[str] = mapped_column(primary_key=True)
    since: Mapped[datetime] = mapped_column(primary_key=True)
    calls: Mapped[int]
    errors: Mapped[int]


class GateRow(Base):
    """The gate of one upstream. `calls` and `errors` are the counts of its last evaluation."""

    __tablename__ = "gates"

    upstream: Mapped[str] = mapped_column(primary_key=True)
    closed_at: Mapped[datetime | None] = mapped_column(comment="time at which the gate tripped; NULL: the gate is ok")
    opened_at: Mapped[datetime | None] = mapped_column(comment="time of the last recovery of the gate")
    why: Mapped[str | None] = mapped_column(comment="reason of the last trip")
    healthy_checks: Mapped[int] = mapped_column(server_default="0")
    needs: Mapped[int] = mapped_column(
        server_default="0", comment="healthy evaluations in a row until the recovery, chosen when the gate trips"
    )
    checked_at: Mapped[datetime | None]
    calls: Mapped[int] = mapped_column(server_default="0")
    errors: Mapped[int] = mapped_column(server_default="0")


@dataclass(frozen=True, slots=True)
class Shut:
    """A tripped gate, with the time and the reason of its trip."""

    upstream: Upstream
    since: datetime
    why: str

    def __str__(self) -> str:
        return f"the gate of {self.upstream} has been tripped since {self.since:%H:%M:%S} UTC: {self.why}"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of an evaluation.

    `before` and `after` are the states of the gate before and after the evaluation. `since` is the time at which the
    gate tripped. `since` is None if the gate was ok and stays ok.
    """

    upstream: Upstream
    before: Gate
    after: Gate
    counts: CallCounts
    since: datetime | None


def report(db: Connection, counts: Mapping[Upstream, Counts], *, now: datetime) -> None:
    """Add the counts of one process to the current rows. These rows contain the sums over all processes."""
    since = datetime.fromtimestamp(now.timestamp() // BUCKET * BUCKET, UTC)
    rows = [
        {"upstream": upstream, "since": since, "calls": each.calls, "errors": each.errors}
        for upstream, each in sorted(counts.items())  # one lock order for all processes
    ]
    if rows:
        db.execute(
            text("""
                INSERT INTO upstream_calls AS c (upstream, since, calls, errors)
                VALUES (:upstream, :since, :calls, :errors)
                ON CONFLICT (upstream, since) DO UPDATE SET calls = c.calls + excluded.calls,
                                                            errors = c.errors + excluded.errors
            """),
            rows,
        )


def evaluate(
    db: Connection, upstream: Upstream, *, rule: GateRule, window: float, apart: float, roll: float, now: datetime
) -> Evaluation | None:
    """Evaluate an upstream's calls of the last `window` seconds. If necessary, trip or reset the upstream's gate.

    If the last evaluation was less than `apart` seconds ago, nothing is evaluated and the result is None. Otherwise a
    tick that runs twice could count as two healthy evaluations. `roll` is a random number in [0, 1). If the gate trips
    now, `roll` determines how many extra healthy evaluations the gate needs before it recovers.
    """
    db.execute(text("INSERT INTO gates (upstream) VALUES (:upstream) ON CONFLICT DO NOTHING"), {"upstream": upstream})
    row = db.execute(
        text("""
            SELECT * FROM gates WHERE upstream = :upstream AND (checked_at IS NULL OR checked_at <= :before)
            FOR NO KEY UPDATE
        """),
        {"upstream": upstream, "before": now - timedelta(seconds=apart)},
    ).one_or_none()
    if row is None:
        return None
    found = db.execute(
        text("""
            SELECT coalesce(sum(calls), 0) AS calls, coalesce(sum(errors), 0) AS errors FROM upstream_calls
            WHERE upstream = :upstream AND since > :after
        """),
        {"upstream": upstream, "after": now - timedelta(seconds=window)},
    ).one()
    seen = CallCounts(int(found.calls), int(found.errors))
    before = Gate(closed=row.closed_at is not None, healthy_checks=row.healthy_checks, needs=row.needs)
    after = judge(before, seen, rule=rule, roll=roll)
    closes, opens = after.closed and not before.closed, before.closed and not after.closed
    closed_at = now if closes else None if opens else row.closed_at
    db.execute(
        text("""
            UPDATE gates SET closed_at = CAST(:closed_at AS timestamptz), healthy_checks = :good, needs = :needs,
                   checked_at = :now, calls = :calls, errors = :errors,
                   opened_at = CASE WHEN :opens THEN CAST(:now AS timestamptz) ELSE opened_at END,
                   why = CASE WHEN :closes THEN :why ELSE why END
            WHERE upstream = :upstream
        """),
        {
            "upstream": upstream,
            "now": now,
            "closed_at": closed_at,
            "closes": closes,
            "opens": opens,
            "good": after.healthy_checks,
            "needs": after.needs,
            "calls": seen.calls,
            "errors": seen.errors,
            "why": why_closed(seen),
        },
    )
    changes.record(
        db,
        ChangeKind.GATE,
        upstream,
        before={"state": before.state},
        after={"state": after.state},
        by=Author("sweep gates", Via.OSTLER, now),
        why=why_closed(seen) if closes else None,
    )
    return Evaluation(upstream, before, after, seen, row.closed_at if opens else closed_at)


def shut(db: Connection, *upstreams: Upstream) -> list[Shut]:
    """Return the tripped gates of these upstreams, or of all upstreams if none is given.

    Sweeps check the gates before they delete an object of the cluster or a runner. The reconciler checks the gate of
    Kubernetes before it retires Pods. The autoscaler checks all gates before it changes a pool. Dispatch never checks a
    gate.
    """
    rows = db.execute(
        text("""
            SELECT upstream, closed_at, why FROM gates
            WHERE closed_at IS NOT NULL AND upstream = ANY(:upstreams) ORDER BY upstream
        """),
        {"upstreams": [str(each) for each in upstreams or Upstream]},
    )
    return [Shut(Upstream(row.upstream), row.closed_at, row.why or "") for row in rows]


def is_open(db: Connection, upstream: Upstream) -> bool:
    """Return True if the gate of an upstream is ok. A gate is ok until its first evaluation."""
    return not shut(db, upstream)


def read(db: Connection) -> Sequence[Row[Any]]:
    """Return every gate, in the order of the upstreams' names. A gate that was never evaluated is ok.

    `open` is the older form of `state`: True for `ok`, False for `tripped`.
    """
    return db.execute(
        text("""
            SELECT u.upstream, CASE WHEN g.closed_at IS NULL THEN 'ok' ELSE 'tripped' END AS state,
                   g.closed_at IS NULL AS open, g.closed_at, g.opened_at,
                   CASE WHEN g.closed_at IS NOT NULL THEN g.why END AS why, coalesce(g.healthy_checks, 0) AS
                   healthy_checks, coalesce(g.needs, 0) AS needs, g.checked_at, coalesce(g.calls, 0) AS calls,
                   coalesce(g.errors, 0) AS errors
            FROM unnest(CAST(:upstreams AS text[])) AS u (upstream) LEFT JOIN gates g ON g.upstream = u.upstream
            ORDER BY u.upstream
        """),
        {"upstreams": [str(each) for each in Upstream]},
    ).all()


def delete_old(db: Connection, *, now: datetime) -> None:
    """Delete counts that are older than `KEPT`."""
    db.execute(
        text("""
            DELETE FROM upstream_calls WHERE (upstream, since) IN (
                SELECT upstream, since FROM upstream_calls WHERE since < :before
                ORDER BY upstream, since FOR UPDATE SKIP LOCKED)
        """),
        {"before": now - KEPT},
    )

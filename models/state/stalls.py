"""Present stalls, and the durations of past stalls. `rules.claims.stalls` defines the kinds of stalls.

A stalled claim is marked in the claim's row. The transition that ends the stall removes the mark and inserts a row into
the table `stalls`. A lost webhook is a stall without a claim. The component that found the lost webhook inserts the row
of this stall. When the row is committed, the process also adds the duration to its histogram. The histogram is lost
when the process ends, but the table stays. A report over this table therefore covers all processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import CheckConstraint, Connection, Index
from sqlalchemy.orm import Mapped

from models.db.base import Base, Serial
from models.db.engine import after_commit
from models.db.sql import text
from models.state.claims import Claim
from ostler import telemetry
from rules.claims.machines import allowed
from rules.claims.stalls import PATHS, After, Cause, FoundBy, after

for _cause, _found_by in PATHS:
    telemetry.STALL_SECONDS.labels(_cause, _found_by)

OVERDUE = """
    c.purpose = 'job' AND c.state IN ('claimed', 'minted', 'releasing') AND c.due_at < :now
    AND (c.leased_until < :now OR (c.leased_until IS NULL AND c.last_error IS NULL))
"""
"""SQL condition on a claim `c`: the process or the message of the claim's current step was lost.

If a step was postponed on purpose, the claim has a `last_error` and does not satisfy the condition.
"""

OVERDUE_SINCE = f"""
    greatest(c.changed_at, c.due_at - make_interval(secs =>
        CASE WHEN c.state = 'releasing' AND c.leased_until IS NOT NULL
             THEN {allowed("lease_release").seconds:g} ELSE {allowed("lease_mint").seconds:g} END))
"""
"""SQL expression on a claim `c`: the start of the claim's stall.

The stall starts at the last transition or at the start of the lost step, whichever is later. The lost step started one
lease duration before `due_at`.
"""


class Stall(Base):
    """One past stall. Ids of other tables are stored without foreign keys."""

    __tablename__ = "stalls"
    __table_args__ = (
        CheckConstraint("cause IN (" + ", ".join(f"'{each}'" for each in Cause) + ")", name="cause_known"),
        CheckConstraint("found_by IN (" + ", ".join(f"'{each}'" for each in FoundBy) + ")", name="found_by_known"),
        Index("ix_stalls_served_at", "served_at"),
    )

    id: Mapped[Serial]
    cause: Mapped[str]
    found_by: Mapped[str]
    claim_id: Mapped[int | None]
    job_id: Mapped[int | None]
    since: Mapped[datetime]
    served_at: Mapped[datetime]


_SINCE = {
    (Cause.POD_GONE, FoundBy.WATCH): "NULL",
    # The time of the last list whose missing Pods were all handled or marked as stalled.
    (Cause.POD_GONE, FoundBy.LISTS): "(SELECT p.listed_at FROM pools p WHERE p.id = c.pool_id)",
    (Cause.POD_SPENT, FoundBy.LISTS): "(SELECT p.terminal_at FROM runner_pods p WHERE p.id = c.runner_pod_id)",
    (Cause.RUNNER_UNUSED, FoundBy.UNUSED_RUNNERS): "coalesce(c.spare_since, c.delivered_at)",
}


def mark(db: Connection, claim_id: int, cause: Cause, found_by: FoundBy, *, now: datetime) -> None:
    """Mark a live claim as stalled, with the start of the stall.

    If the claim is already marked with the same cause, the first mark is kept.
    """
    db.execute(
        text(f"""
            UPDATE claims c SET stalled_cause = :cause, stalled_found_by = :found_by,
                   stalled_at = least(:now, greatest(c.created_at, coalesce({_SINCE[cause, found_by]}, :now)))
            WHERE c.id = :id AND c.ended_at IS NULL AND c.stalled_cause IS DISTINCT FROM :cause
        """),
        {"id": claim_id, "cause": cause, "found_by": found_by, "now": now},
    )


def moved(db: Connection, name: str, rows: Sequence[Claim], *, now: datetime) -> None:
    """Remove the marks of stalls that a transition has ended, and record these stalls.

    `name` is the name of the transition, and `rows` are the moved claims.
    """
    for row in rows:
        if row.stalled_at is None or row.stalled_cause is None or row.stalled_found_by is None:
            continue
        cause = Cause(row.stalled_cause)
        left = after(cause, name)
        if left is After.STALLED:
            continue
        db.execute(
            text("""
                UPDATE claims SET stalled_at = NULL, stalled_cause = NULL, stalled_found_by = NULL WHERE id = :id
            """),
            {"id": row.id},
        )
        if left is After.SERVED:
            served(
                db,
                cause,
                FoundBy(row.stalled_found_by),
                since=row.stalled_at,
                claim_id=row.id,
                job_id=row.job_id,
                now=now,
            )


def served(
    db: Connection,
    cause: Cause,
    found_by: FoundBy,
    *,
    since: datetime,
    now: datetime,
    claim_id: int | None = None,
    job_id: int | None = None,
) -> None:
    """Record a stall that began at `since` and has ended.

    The metric counts the stall when this transaction commits.
    """
    db.execute(
        text("""
            INSERT INTO stalls (cause, found_by, claim_id, job_id, since, served_at)
            VALUES (:cause, :found_by, :claim_id, :job_id, least(:since, :now), :now)
        """),
        {
            "cause": cause,
            "found_by": found_by,
            "claim_id": claim_id,
            "job_id": job_id,
            "since": since,
            "now": now,
        },
    )
    seconds = max(0.0, (now - since).total_seconds())
    after_commit(db, lambda: telemetry.STALL_SECONDS.labels(cause, found_by).observe(seconds))


def oldest(db: Connection, *, now: datetime) -> Mapping[Cause, float]:
    """Return the age in seconds of the oldest known stall, by cause. The age is 0 for a cause without a stall.

    A lost Pod or a lost webhook is not included until a component has detected the loss.
    """
    row = db.execute(
        text(f"""
            SELECT min(CASE WHEN c.stalled_cause = 'message_lost' THEN c.stalled_at
                            WHEN {OVERDUE} THEN {OVERDUE_SINCE} END) AS message_lost,
                   min(c.stalled_at) FILTER (WHERE c.stalled_cause = 'pod_gone') AS pod_gone,
                   min(p.terminal_at) AS pod_spent,
                   min(coalesce(c.spare_since, c.delivered_at))
                       FILTER (WHERE c.state = 'delivered' OR c.stalled_cause = 'runner_unused') AS runner_unused,
                   (SELECT min(r.first_failed_at) FROM redeliveries r
                    WHERE NOT r.malformed
                      AND NOT EXISTS (SELECT FROM deliveries d WHERE d.guid = r.guid)) AS webhook_lost
            FROM claims c JOIN runner_pods p ON p.id = c.runner_pod_id
            WHERE c.ended_at IS NULL AND c.purpose = 'job'
        """),
        {"now": now},
    ).one()
    since: dict[Cause, datetime | None] = {cause: getattr(row, cause) for cause in Cause}
    return {cause: 0.0 if at is None else max(0.0, (now - at).total_seconds()) for cause, at in since.items()}


@dataclass(frozen=True, slots=True)
class Served:
    """The number of stalls that one path ended, and the durations of these stalls in seconds.

    A path is a cause together with the component that found the stall. The durations are the median (`p50`), the 99th
    percentile (`p99`) and the maximum (`most`).
    """

    cause: Cause
    found_by: FoundBy
    many: int
    p50: float
    p99: float
    most: float


def summary(db: Connection, *, since: datetime) -> list[Served]:
    """Return how many stalls each path ended after `since`, and the durations of these stalls.

    The stalls of all processes are counted. If a path ended no stall, its numbers are 0.
    """
    rows = db.execute(
        text("""
            SELECT cause, found_by, count(*) AS many, max(seconds) AS most,
                   percentile_cont(0.5) WITHIN GROUP (ORDER BY seconds) AS p50,
                   percentile_disc(0.99) WITHIN GROUP (ORDER BY seconds) AS p99
            FROM (SELECT cause, found_by, extract(epoch FROM served_at - since)::float AS seconds FROM stalls
                  WHERE served_at >= :since) s
            GROUP BY cause, found_by
        """),
        {"since": since},
    )
    found = {(row.cause, row.found_by): row for row in rows}
    return [
        Served(cause, found_by, row.many, row.p50, row.p99, row.most)
        if (row := found.get((cause, found_by)))
        else Served(cause, found_by, 0, 0.0, 0.0, 0.0)
        for cause, found_by in PATHS
    ]


def delete(db: Connection, ids: Sequence[int]) -> int:
    """Delete old stalls. Return how many were deleted. The caller has locked the rows."""
    return db.execute(text("DELETE FROM stalls WHERE id = ANY(:ids)"), {"ids": ids}).rowcount

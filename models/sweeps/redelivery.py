"""State of the sweep `redelivery`: the progress in GitHub's list of deliveries, and the deliveries to request.

The transaction that records a page of the list inserts a row for each failed delivery of the page. The row is kept
until web accepts a delivery with the same GUID, or until GitHub no longer stores the delivery. The sweep can therefore
repeat its requests at growing intervals without reading the page again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import CheckConstraint, Connection, Index
from sqlalchemy.orm import Mapped, mapped_column

from models.claims.matching import WEB_ALIVE
from models.db import epochs
from models.db.base import Base
from models.db.sql import text
from models.state import stalls
from models.sweeps import sweep_runs
from rules.claims.stalls import Cause, FoundBy
from rules.restore.epochs import Epoch
from rules.sweeps.redelivery import Progress

LIMIT = 1000

MALFORMED_AGAIN = timedelta(hours=12)
"""Time after which a delivery that web refused as malformed is requested again.

A newer version of web might accept the delivery.
"""


class RedeliveryProgress(Base):
    """The sweep's progress in GitHub's list of deliveries. The table has a single row.

    `rules.sweeps.redelivery.Progress` explains the columns.
    """

    __tablename__ = "redelivery_progress"
    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    checked_at: Mapped[datetime]
    checkpoint: Mapped[datetime]
    scan_began: Mapped[datetime | None]
    scan_cursor: Mapped[str | None]
    not_before: Mapped[datetime | None] = mapped_column(
        comment="time before which the sweep does not ask GitHub, as GitHub requested; NULL: no limit"
    )


class Redelivery(Base):
    """A failed delivery that web has not accepted yet. `delivery_id` is the id of the newest failed attempt."""

    __tablename__ = "redeliveries"
    __table_args__ = (
        Index("ix_redeliveries_due_at", "due_at"),
        Index("ix_redeliveries_first_failed_at", "first_failed_at"),
    )

    guid: Mapped[str] = mapped_column(primary_key=True)
    delivery_id: Mapped[int]
    first_failed_at: Mapped[datetime]
    asks: Mapped[int] = mapped_column(server_default="0")
    due_at: Mapped[datetime]
    installation_id: Mapped[int | None] = mapped_column(
        comment="installation of the webhook, so that installations take turns; NULL: none, or unknown"
    )
    malformed: Mapped[bool] = mapped_column(
        server_default="false", comment="whether web refused the payload; the next request then waits 12 hours"
    )


@dataclass(frozen=True, slots=True)
class Failed:
    """The newest failed attempt of a GUID on a page of GitHub's list."""

    guid: str
    delivery_id: int
    delivered_at: datetime
    installation_id: int | None = None


@dataclass(frozen=True, slots=True)
class Due:
    """A delivery to request from GitHub. `asks` counts all requests for this delivery, including the next request."""

    guid: str
    delivery_id: int
    asks: int


def begin(db: Connection, *, overlap: timedelta, note: bool, now: datetime) -> Progress | None:
    """Return the progress in GitHub's list, or None while GitHub has asked the sweep to wait.

    `rules.sweeps.redelivery` describes the two ways to read the list: the short check and the scan. If there is no
    progress row, the short check reads back to `now` minus `overlap`, and the scan reads back to `now` minus twice
    `overlap`. Older deliveries are ignored, because they might have been meant for another receiver of the webhook. If
    `note` is True and there is no progress row, a row with these times is inserted.
    """
    first = now - overlap
    if note:
        db.execute(
            text("""
                INSERT INTO redelivery_progress (id, checked_at, checkpoint) VALUES (1, :first, :first)
                ON CONFLICT (id) DO NOTHING
            """),
            {"first": first},
        )
    row = db.execute(
        text("""
            SELECT checked_at, checkpoint, scan_began, scan_cursor, coalesce(not_before > :now, false) AS waits
            FROM redelivery_progress
        """),
        {"now": now},
    ).one_or_none()
    if row is None:
        return Progress(checked_at=first, checkpoint=first, scan_began=None, scan_cursor=None)
    if row.waits:
        return None
    return Progress(
        checked_at=row.checked_at, checkpoint=row.checkpoint, scan_began=row.scan_began, scan_cursor=row.scan_cursor
    )


def read_until(db: Connection) -> Mapping[str, datetime | None]:
    """Return when GitHub's list of deliveries was last read completely. A time is None if nothing was read yet.

    The key `newest` maps to the start of the last complete short check, and the key `all` to the start of the last
    complete scan. `rules.sweeps.redelivery` describes short checks and scans.
    """
    row = db.execute(text("SELECT checked_at, checkpoint FROM redelivery_progress")).one_or_none()
    return {"newest": None, "all": None} if row is None else {"newest": row.checked_at, "all": row.checkpoint}


def wait(db: Connection, *, not_before: datetime | None) -> None:
    """Set the time before which no tick reads the list or requests a delivery. None removes the limit."""
    db.execute(
        text("UPDATE redelivery_progress SET not_before = CAST(:not_before AS timestamptz)"),
        {"not_before": not_before},
    )


def record_failed(db: Connection, failed: Sequence[Failed], *, now: datetime) -> None:
    """Record failed deliveries.

    A delivery that web has accepted since the failed attempt is not recorded. If another session has locked the row of
    a known delivery, the row is not updated.
    """
    db.execute(
        text("""
            WITH free AS MATERIALIZED (
                SELECT guid FROM redeliveries WHERE guid = ANY(:guids) ORDER BY guid FOR NO KEY UPDATE SKIP LOCKED
            )
            INSERT INTO redeliveries AS r (guid, delivery_id, first_failed_at, due_at, installation_id)
            SELECT f.guid, f.delivery_id, f.at, :now, f.installation_id
            FROM unnest(CAST(:guids AS text[]), CAST(:ids AS bigint[]), CAST(:times AS timestamptz[]),
                        CAST(:installations AS bigint[])) AS f (guid, delivery_id, at, installation_id)
            WHERE NOT EXISTS (SELECT FROM deliveries d WHERE d.guid = f.guid)
              AND (EXISTS (SELECT FROM free WHERE free.guid = f.guid)
                   OR NOT EXISTS (SELECT FROM redeliveries known WHERE known.guid = f.guid))
            ORDER BY f.guid
            ON CONFLICT (guid) DO UPDATE SET delivery_id = greatest(r.delivery_id, excluded.delivery_id),
                   first_failed_at = least(r.first_failed_at, excluded.first_failed_at),
                   installation_id = coalesce(excluded.installation_id, r.installation_id)
        """),
        {
            "now": now,
            "guids": [each.guid for each in failed],
            "ids": [each.delivery_id for each in failed],
            "times": [each.delivered_at for each in failed],
            "installations": [each.installation_id for each in failed],
        },
    )


def record_malformed(db: Connection, guids: Sequence[str], *, now: datetime) -> None:
    """Record that web refused the payloads of these deliveries, so that they are not requested again soon.

    The deliveries are requested again after `MALFORMED_AGAIN`, whether or not GitHub's list has shown them yet. A row
    that another session has locked is skipped, so its delivery is requested once more. Web refuses the delivery again,
    and a later call records the refusal.
    """
    db.execute(
        text("""
            WITH free AS MATERIALIZED (
                SELECT guid FROM redeliveries WHERE guid = ANY(:guids) ORDER BY guid FOR NO KEY UPDATE SKIP LOCKED
            )
            INSERT INTO redeliveries (guid, delivery_id, first_failed_at, due_at, malformed)
            SELECT guid, 0, :now, :again, true FROM unnest(CAST(:guids AS text[])) AS told (guid)
            WHERE EXISTS (SELECT FROM free WHERE free.guid = told.guid)
               OR NOT EXISTS (SELECT FROM redeliveries known WHERE known.guid = told.guid)
            ORDER BY guid
            ON CONFLICT (guid) DO UPDATE SET malformed = true, due_at = excluded.due_at
        """),
        {"guids": list(guids), "now": now, "again": now + MALFORMED_AGAIN},
    )


def known(db: Connection, guids: Sequence[str]) -> set[str]:
    """Return the GUIDs that already have a redelivery row or an accepted delivery."""
    rows = db.execute(
        text("""
            SELECT guid FROM redeliveries WHERE guid = ANY(:guids)
            UNION SELECT guid FROM deliveries WHERE guid = ANY(:guids)
        """),
        {"guids": list(guids)},
    )
    return set(rows.scalars())


def record_page(
    db: Connection,
    lease_no: int,
    *,
    failed: Sequence[Failed],
    accepted: Sequence[str],
    progress: Progress,
    now: datetime,
) -> bool:
    """Commit the deliveries of one page together with the progress in the list.

    Return False without a change if another tick has taken the sweep's lease.
    """
    if not sweep_runs.hold(db, "redelivery", lease_no).held:
        return False
    db.execute(
        text("""
            UPDATE redelivery_progress SET checked_at = :checked_at, checkpoint = :checkpoint,
                   scan_began = CAST(:scan_began AS timestamptz), scan_cursor = CAST(:scan_cursor AS text)
        """),
        {
            "checked_at": progress.checked_at,
            "checkpoint": progress.checkpoint,
            "scan_began": progress.scan_began,
            "scan_cursor": progress.scan_cursor,
        },
    )
    record_failed(db, failed, now=now)
    _delete(db, list(accepted))
    return True


def _delete(db: Connection, guids: Sequence[str]) -> int:
    """Delete the redelivery rows of accepted deliveries, and return how many rows were deleted.

    For each of these deliveries that is a webhook of a job, a stall is recorded. The stall began with the first failed
    attempt of the delivery, and ended when web received the webhook.
    """
    rows = db.execute(
        text("""
            WITH gone AS (
                DELETE FROM redeliveries WHERE guid IN (
                    SELECT guid FROM redeliveries WHERE guid = ANY(:guids) ORDER BY guid FOR UPDATE SKIP LOCKED)
                RETURNING guid, first_failed_at)
            SELECT g.first_failed_at, d.received_at, d.job_id FROM gone g
            LEFT JOIN deliveries d ON d.guid = g.guid AND d.event = 'workflow_job'
        """),
        {"guids": guids},
    ).all()
    for row in rows:
        if row.received_at is not None:
            stalls.served(
                db,
                Cause.WEBHOOK_LOST,
                FoundBy.REDELIVERY,
                since=row.first_failed_at,
                job_id=row.job_id,
                now=row.received_at,
            )
    return len(rows)


def close_settled(db: Connection, *, kept: timedelta, now: datetime) -> tuple[int, Sequence[str]]:
    """Delete the rows of accepted deliveries, and the rows of deliveries that GitHub no longer stores.

    Return how many deliveries were accepted, and the GUIDs of the lost deliveries. A delivery is lost if web never
    received it and GitHub no longer stores it. Web did receive a delivery that it refused as malformed, so that
    delivery is not lost. `kept` is GitHub's retention time of deliveries.
    """
    come = db.execute(
        text("SELECT guid FROM redeliveries JOIN deliveries USING (guid) LIMIT :limit"), {"limit": LIMIT}
    ).scalars()
    accepted = _delete(db, list(come))
    lost = db.execute(
        text("""
            DELETE FROM redeliveries
            WHERE guid IN (SELECT guid FROM redeliveries WHERE first_failed_at < :before LIMIT :limit
                           FOR UPDATE SKIP LOCKED)
            RETURNING guid, malformed
        """),
        {"before": now - kept, "limit": LIMIT},
    )
    return accepted, [row.guid for row in lost if not row.malformed]


def web_beats(db: Connection, *, now: datetime) -> bool:
    """Return True if a web process is alive. Without a web process, no redelivery can be received."""
    found = db.execute(
        text("SELECT 1 FROM web_instances WHERE beat_at > :alive LIMIT 1"), {"alive": now - WEB_ALIVE}
    ).one_or_none()
    return found is not None


def due(db: Connection, *, limit: int, now: datetime) -> Sequence[Due]:
    """Return the deliveries to request now, taking one delivery of each installation in turn.

    An installation with many failed deliveries therefore delays only its own deliveries. Within an installation, the
    deliveries with the fewest requests come first. Among deliveries with equally many requests, the oldest comes first.

    If Postgres was restored, the newest delivery comes first among the deliveries of the lost period. The reason is
    that the newest webhook of a job says the most about the job: `completed` says more than `queued`.
    """
    rows = db.execute(
        text("""
            WITH waiting AS (
                SELECT r.guid, r.delivery_id, r.asks, r.installation_id,
                       extract(epoch FROM r.first_failed_at)
                       * CASE WHEN r.first_failed_at BETWEEN e.lost_from AND e.lost_until THEN -1 ELSE 1 END AS age
                FROM redeliveries r CROSS JOIN epochs e WHERE r.due_at <= :now AND r.delivery_id > 0
            ), turns AS (
                SELECT guid, delivery_id, asks, age,
                       row_number() OVER (PARTITION BY installation_id ORDER BY asks, age, delivery_id) AS turn
                FROM waiting)
            SELECT guid, delivery_id, asks + 1 FROM turns ORDER BY turn, asks, age, delivery_id LIMIT :limit
        """),
        {"now": now, "limit": limit},
    )
    return [Due(*row) for row in rows]


def begin_ask(db: Connection, ask: Due, *, next_after: timedelta, now: datetime) -> bool:
    """Commit a request before it is sent, so that a killed process cannot cause two requests at once.

    `next_after` is the time until the next request for this delivery. If the process is killed before it sends the
    request, the delivery waits for this time. Return False without a change if the delivery was accepted or requested
    in the meantime.
    """
    begun = db.execute(
        text("""
            UPDATE redeliveries r SET asks = :asks, due_at = :due_at
            WHERE guid = :guid AND asks = :asks - 1
              AND NOT EXISTS (SELECT FROM deliveries d WHERE d.guid = r.guid) RETURNING guid
        """),
        {"guid": ask.guid, "asks": ask.asks, "due_at": now + next_after},
    ).one_or_none()
    return begun is not None


def take_back(db: Connection, ask: Due, *, now: datetime) -> None:
    """Undo `begin_ask`, because GitHub refused the request and sent no delivery."""
    db.execute(
        text("UPDATE redeliveries SET asks = :asks - 1, due_at = :now WHERE guid = :guid AND asks = :asks"),
        {"guid": ask.guid, "asks": ask.asks, "now": now},
    )


def mark_older(db: Connection, seen: Epoch, *, why: str, kept: timedelta, unsure: bool = False, now: datetime) -> bool:
    """Freeze the rows of a database that is older than the cluster, and reset the progress of the sweep.

    During the freeze, no step of a claim starts (`docs/decisions/0017-the-epoch.md`). After the reset, the sweep reads
    GitHub's list again from the start of the lost period.

    Return False without a change if the database is already frozen, or if its epoch has advanced. The arguments are
    explained in `models.db.epochs.freeze`.
    """
    if not epochs.freeze(db, seen, why=why, kept=kept, unsure=unsure, now=now):
        return False
    # Webhooks that were accepted in the lost period are lost too.
    db.execute(
        text("""
            UPDATE redelivery_progress SET checked_at = least(checked_at, e.lost_from), scan_began = NULL,
                   checkpoint = least(checkpoint, e.lost_from), scan_cursor = NULL
            FROM epochs e WHERE e.lost_from IS NOT NULL
        """)
    )
    sweep_runs.end_lease(db, "redelivery")
    return True

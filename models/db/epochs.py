"""The epoch of Postgres, which shows whether Postgres is as new as the cluster.

The task `epoch` sets `older_since` when the cluster has a later epoch than Postgres. Only `ostler restore` clears
`older_since`. While `older_since` is set, the rows are frozen: no step of a claim runs, no job is matched, no JIT is
delivered, and no Pod is retired.

The rows are trusted until `trusted_until`. Each successful comparison of the two epochs extends this time. A restart of
the Postgres server also ends the trust, because a restored backup and a standby after a failover both run as a newly
started server. Work that could harm a busy Pod therefore stops with the first transaction on such a server, before any
comparison. Dispatch continues while the rows are not trusted, unless the rows are frozen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import CheckConstraint, Connection
from sqlalchemy.orm import Mapped, mapped_column

from models.db.base import Base
from models.db.sql import text
from rules.restore.epochs import Epoch

CURRENT = "NOT EXISTS (SELECT FROM epochs WHERE id = 1 AND older_since IS NOT NULL)"
"""SQL condition: Postgres is not known to be older than the cluster."""

_SAME_SERVER = "trusted_server = pg_postmaster_start_time()"

TRUSTED = (
    f"EXISTS (SELECT FROM epochs WHERE id = 1 AND older_since IS NULL AND trusted_until > :now AND {_SAME_SERVER})"
)
"""SQL condition: Postgres was recently confirmed to be as new as the cluster, and has not restarted since."""

CURE = "run `ostler restore --dry-run`, then `ostler restore` (docs/operations/recovery.md)"


class EpochRow(Base):
    """The epoch of this database. The table has exactly one row."""

    __tablename__ = "epochs"
    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    database: Mapped[str] = mapped_column(comment="random id of this database; a backup contains the same id")
    number: Mapped[int] = mapped_column(server_default="0")
    confirmed_at: Mapped[datetime | None] = mapped_column(
        comment="time of the last check that found Postgres as new as the cluster"
    )
    trusted_until: Mapped[datetime | None]
    trusted_server: Mapped[datetime | None] = mapped_column(
        comment="start time of the Postgres server that passed the last check"
    )
    older_since: Mapped[datetime | None] = mapped_column(
        comment="time at which Postgres was found older than the cluster; NULL: never, or a restore ended this"
    )
    why: Mapped[str | None] = mapped_column(comment="reason of `older_since`, or why the last check could not be made")
    lost_from: Mapped[datetime | None] = mapped_column(
        comment="events from this time to `lost_until` might be missing; NULL with `lost_until`: no known start"
    )
    lost_until: Mapped[datetime | None]


@dataclass(frozen=True, slots=True)
class EpochSeen:
    """The epoch row as a transaction has read it. `why` describes the problem, or is None if no problem is known."""

    epoch: Epoch
    confirmed_at: datetime | None
    trusted: bool
    older_since: datetime | None
    why: str | None

    @property
    def doubt(self) -> str | None:
        """Return why no Pod may be deleted on the evidence of these rows, or None if Pods may be deleted."""
        if self.older_since is not None:
            return (
                f"Postgres is older than the cluster, detected at {self.older_since:%H:%M:%S} UTC: {self.why}; {CURE}"
            )
        if self.trusted:
            return None
        last = "never" if self.confirmed_at is None else f"{self.confirmed_at:%Y-%m-%d %H:%M:%S} UTC"
        reason = f": {self.why}" if self.why else ""
        return f"Postgres is not confirmed to be as new as the cluster (last confirmed: {last}){reason}"


def read(db: Connection, *, now: datetime) -> EpochSeen:
    """Return the epoch row of this database."""
    row = db.execute(text(f"SELECT *, {TRUSTED} AS trusted FROM epochs WHERE id = 1"), {"now": now}).one()
    return EpochSeen(Epoch(row.number, row.database), row.confirmed_at, row.trusted, row.older_since, row.why)


def doubt(db: Connection, *, now: datetime) -> str | None:
    """Return why no Pod may be deleted now on the evidence of these rows, or None if Pods may be deleted."""
    return read(db, now=now).doubt


def is_older(db: Connection) -> bool:
    """Return True if Postgres is known to be older than the cluster, and False otherwise."""
    return not db.execute(text(f"SELECT {CURRENT}")).scalar_one()


def advance(db: Connection, seen: Epoch) -> Epoch | None:
    """Raise the epoch in Postgres by one, and return the new epoch.

    Returns None if the epoch differs from `seen`, or if Postgres is known to be older than the cluster.
    """
    number = db.execute(
        text("""
            UPDATE epochs SET number = number + 1 WHERE number = :number AND older_since IS NULL RETURNING number
        """),
        {"number": seen.number},
    ).scalar_one_or_none()
    return None if number is None else Epoch(number, seen.database)


def confirm(db: Connection, epoch: Epoch, *, trusted_for: timedelta, now: datetime) -> bool:
    """Trust the rows until `now` plus `trusted_for`. `now` is the time at which the comparison of the epochs began.

    Returns False if the epoch differs from `epoch`, or if Postgres is known to be older than the cluster.
    """
    row = db.execute(
        text("""
            UPDATE epochs SET confirmed_at = :now, trusted_until = :until,
                   trusted_server = pg_postmaster_start_time(), why = NULL
            WHERE number = :number AND older_since IS NULL RETURNING id
        """),
        {"number": epoch.number, "now": now, "until": now + trusted_for},
    ).one_or_none()
    return row is not None


def record_doubt(db: Connection, *, why: str) -> None:
    """Record why the epochs could not be compared. The trust in the rows does not change."""
    db.execute(text("UPDATE epochs SET why = :why WHERE older_since IS NULL"), {"why": why})


def freeze(db: Connection, seen: Epoch, *, why: str, kept: timedelta, unsure: bool = False, now: datetime) -> bool:
    """Freeze these rows, because the cluster has a later epoch than Postgres.

    Events between the last confirmed comparison and now might be missing in the rows. This period is stored as
    `lost_from` and `lost_until`. If `unsure`, the time of the last comparison is not reliable, and the period covers at
    least `kept`, GitHub's retention time of webhook deliveries. The period of an earlier restore is included if
    GitHub still keeps the deliveries from that period. The caller requests redelivery of the webhooks
    (`models.sweeps.redelivery.mark_older`).

    Returns False if the rows are frozen already, or if the epoch differs from `seen`.
    """
    row = db.execute(
        text("""
            UPDATE epochs SET older_since = :now, why = :why, trusted_until = NULL, lost_until = :now,
                   lost_from = least(CASE WHEN :unsure THEN least(confirmed_at, :floor) ELSE confirmed_at END,
                                     CASE WHEN lost_from > :floor THEN lost_from END)
            WHERE number = :number AND older_since IS NULL RETURNING id
        """),
        {"number": seen.number, "why": why, "unsure": unsure, "floor": now - kept, "now": now},
    ).one_or_none()
    return row is not None


def rise_above(db: Connection, cluster: Epoch | None) -> Epoch | None:
    """Raise the epoch of frozen rows above the epoch of the cluster, and return the new epoch. The rows stay frozen.

    `cluster` is the epoch of the cluster, or None if the cluster has no epoch. Returns None if the rows are not frozen.
    """
    row = db.execute(
        text("""
            UPDATE epochs SET number = greatest(number, :cluster) + 1 WHERE older_since IS NOT NULL
            RETURNING number, database
        """),
        {"cluster": 0 if cluster is None else cluster.number},
    ).one_or_none()
    return None if row is None else Epoch(row.number, row.database)


def end_freeze(db: Connection, epoch: Epoch, *, trusted_for: timedelta, now: datetime) -> bool:
    """End the freeze after a restore, and trust the rows until `now` plus `trusted_for`.

    The caller has written `epoch` to the cluster. Returns False if the epoch of these rows differs from `epoch`, or if
    the rows are not frozen.
    """
    row = db.execute(
        text("""
            UPDATE epochs SET older_since = NULL, why = NULL, confirmed_at = :now, trusted_until = :until,
                   trusted_server = pg_postmaster_start_time()
            WHERE number = :number AND older_since IS NOT NULL RETURNING id
        """),
        {"number": epoch.number, "now": now, "until": now + trusted_for},
    ).one_or_none()
    return row is not None


@dataclass(frozen=True, slots=True)
class Lost:
    """A period whose events might be missing in the rows. If `since` is None, the period has no known start."""

    since: datetime | None
    until: datetime


def lost(db: Connection) -> Lost | None:
    """Return the period whose events might be missing in the rows, or None if Postgres was never restored."""
    row = db.execute(text("SELECT lost_from, lost_until FROM epochs WHERE lost_until IS NOT NULL")).one_or_none()
    return None if row is None else Lost(row.lost_from, row.lost_until)


def unknown_claims(db: Connection, stamps: Mapping[str, int]) -> int:
    """Return how many of these Pods have a stamp with an unknown claim id.

    A claim id is unknown if no claim row has this id and the UID of the Pod.

    `stamps` maps the UID of a Pod to the id of the claim in its stamp.
    """
    return int(
        db.execute(
            text("""
                SELECT count(*) FROM unnest(CAST(:uids AS text[]), CAST(:claims AS bigint[])) AS s (uid, claim_id)
                WHERE NOT EXISTS (SELECT FROM claims c WHERE c.id = s.claim_id AND c.pod_uid = s.uid)
            """),
            {"uids": list(stamps), "claims": list(stamps.values())},
        ).scalar_one()
    )

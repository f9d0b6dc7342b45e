"""The epoch of Postgres, and what may not be done while it is older than the cluster, or may be.

`older_since` is set by the task `epoch` when the cluster knows a later epoch, and cleared by `ostler restore` alone.
Until then the rows are frozen: no step of a claim is taken, nothing is matched, delivered or retired.

`trusted_until` runs out when nobody compared the two for a while, and with the start of another server: who puts a copy
back, or fails over to a standby that lost the last seconds, starts one. So what could harm a busy Pod stops with its
first transaction, long before anybody compares. Dispatch goes on.
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
"""SQL: Postgres is not known to be older than the cluster."""

_SAME_SERVER = "trusted_server = pg_postmaster_start_time()"

TRUSTED = (
    f"EXISTS (SELECT FROM epochs WHERE id = 1 AND older_since IS NULL AND trusted_until > :now AND {_SAME_SERVER})"
)
"""SQL: Postgres was seen to be as new as the cluster, not long ago, and has not been started since."""

CURE = "run `ostler restore --dry-run`, then `ostler restore` (docs/operations/recovery.md)"


class EpochRow(Base):
    """The one row of this database."""

    __tablename__ = "epochs"
    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    database: Mapped[str] = mapped_column(comment="made with the row, put back with a backup")
    number: Mapped[int] = mapped_column(server_default="0")
    confirmed_at: Mapped[datetime | None] = mapped_column(comment="when it was last seen as new as the cluster")
    trusted_until: Mapped[datetime | None]
    trusted_server: Mapped[datetime | None] = mapped_column(comment="when the server that was trusted was started")
    older_since: Mapped[datetime | None] = mapped_column(comment="when it was noticed that this is an earlier state")
    why: Mapped[str | None] = mapped_column(comment="of older_since, or why it could not be confirmed")
    lost_from: Mapped[datetime | None] = mapped_column(comment="what came between these two may be missing here")
    lost_until: Mapped[datetime | None]


@dataclass(frozen=True, slots=True)
class EpochSeen:
    """The row as it stands. `why`: of what is wrong, None when nothing is."""

    epoch: Epoch
    confirmed_at: datetime | None
    trusted: bool
    older_since: datetime | None
    why: str | None

    @property
    def doubt(self) -> str | None:
        """Return why nothing may be killed on the word of these rows; None when it may."""
        if self.older_since is not None:
            return f"Postgres is older than the cluster, noticed {self.older_since:%H:%M:%S} UTC: {self.why}; {CURE}"
        if self.trusted:
            return None
        since = "never" if self.confirmed_at is None else f"{self.confirmed_at:%Y-%m-%d %H:%M:%S} UTC"
        return f"last confirmation that Postgres is as new as the cluster: {since}" + (
            f"; {self.why}" if self.why else ""
        )


def read(db: Connection, *, now: datetime) -> EpochSeen:
    """Return this database's epoch."""
    row = db.execute(text(f"SELECT *, {TRUSTED} AS trusted FROM epochs WHERE id = 1"), {"now": now}).one()
    return EpochSeen(Epoch(row.number, row.database), row.confirmed_at, row.trusted, row.older_since, row.why)


def doubt(db: Connection, *, now: datetime) -> str | None:
    """Return why nothing may be killed now on the word of these rows; None when it may."""
    return read(db, now=now).doubt


def is_older(db: Connection) -> bool:
    """Return whether Postgres is known to be older than the cluster."""
    return not db.execute(text(f"SELECT {CURRENT}")).scalar_one()


def advance(db: Connection, seen: Epoch) -> Epoch | None:
    """Raise the epoch by one; None when it is no longer as seen, or this turned out to be an earlier state."""
    number = db.execute(
        text("""
            UPDATE epochs SET number = number + 1 WHERE number = :number AND older_since IS NULL RETURNING number
        """),
        {"number": seen.number},
    ).scalar_one_or_none()
    return None if number is None else Epoch(number, seen.database)


def confirm(db: Connection, epoch: Epoch, *, trusted_for: timedelta, now: datetime) -> bool:
    """Trust the rows for so long after `now`, when the comparison began; False when the epoch moved on."""
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
    """Write down why the epochs could not be compared. Nothing else changes: what was trusted runs out."""
    db.execute(text("UPDATE epochs SET why = :why WHERE older_since IS NULL"), {"why": why})


def freeze(db: Connection, seen: Epoch, *, why: str, kept: timedelta, unsure: bool = False, now: datetime) -> bool:
    """Freeze these rows, which are an earlier state than the cluster knows; False when they were, or moved on.

    What came between the last comparison that they know of and now may be missing in them; when `unsure` of that
    comparison, whatever came within the time that GitHub has `kept` deliveries. What was lost before, and can still be
    had, is lost still. The caller has those webhooks asked for (`models.sweeps.redelivery.mark_older`).
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
    """Put the epoch of an earlier state above the cluster's; None when this is none (any more). It stays frozen."""
    row = db.execute(
        text("""
            UPDATE epochs SET number = greatest(number, :cluster) + 1 WHERE older_since IS NOT NULL
            RETURNING number, database
        """),
        {"cluster": 0 if cluster is None else cluster.number},
    ).one_or_none()
    return None if row is None else Epoch(row.number, row.database)


def let_go(db: Connection, epoch: Epoch, *, trusted_for: timedelta, now: datetime) -> bool:
    """End the freeze of a state that was restored, when the cluster has its epoch; False when it moved on."""
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
    """What came in this time may be missing in the rows; `since` None: everything before."""

    since: datetime | None
    until: datetime


def lost(db: Connection) -> Lost | None:
    """Return when what may be missing here came, None when Postgres was never put back."""
    row = db.execute(text("SELECT lost_from, lost_until FROM epochs WHERE lost_until IS NOT NULL")).one_or_none()
    return None if row is None else Lost(row.lost_from, row.lost_until)


def unknown_claims(db: Connection, stamps: Mapping[str, int]) -> int:
    """Return how many of these Pods (UID to the id of the claim that stamped it) carry a claim that is not theirs."""
    return int(
        db.execute(
            text("""
                SELECT count(*) FROM unnest(CAST(:uids AS text[]), CAST(:claims AS bigint[])) AS s (uid, claim_id)
                WHERE NOT EXISTS (SELECT FROM claims c WHERE c.id = s.claim_id AND c.pod_uid = s.uid)
            """),
            {"uids": list(stamps), "claims": list(stamps.values())},
        ).scalar_one()
    )

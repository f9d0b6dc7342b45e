"""Rows of the sweep frame: one row per sweep with its lease, its pause and its last tick, and one row per tick.

The lease of a sweep is stored in the sweep's row and expires. Each tick that takes the lease increases the lease
number. If a process is killed, its lease expires. A late write of the killed process contains the old lease number and
is rejected. Ostler does not use session advisory locks here, because a pooled connection would keep such a lock after
the tick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import CheckConstraint, Connection, Index
from sqlalchemy.orm import Mapped, mapped_column

from models.db.base import Base, Serial
from models.db.sql import text
from models.state import changes
from rules.changes import Author, ChangeKind
from rules.sweeps.limits import SUCCESSES, Outcome

DRY_LASTS = timedelta(minutes=10)
"""Maximum age of an open dry run.

The process of an older dry run is assumed to have been killed, because no tick lasts this long.
"""


class Sweep(Base):
    """One sweep: its lease, its pause and the result of its last tick. The first tick or pause inserts the row."""

    __tablename__ = "sweeps"
    __table_args__ = (
        CheckConstraint("(paused_at IS NULL) = (paused_by IS NULL)", name="pause_has_its_author"),
        CheckConstraint("(leased_until IS NULL) = (lease_holder IS NULL)", name="lease_has_its_holder"),
    )

    name: Mapped[str] = mapped_column(primary_key=True)
    lease_no: Mapped[int] = mapped_column(
        server_default="0",
        comment="increased by each tick that takes the lease; writes with an older number are refused",
    )
    lease_holder: Mapped[str | None]
    leased_until: Mapped[datetime | None]
    rerun_requested: Mapped[bool] = mapped_column(
        server_default="false", comment="whether another tick was requested while the last one ran"
    )
    paused_at: Mapped[datetime | None]
    paused_by: Mapped[str | None]
    paused_why: Mapped[str | None]
    began_at: Mapped[datetime | None] = mapped_column(comment="start of the last tick that was no dry run")
    succeeded_at: Mapped[datetime | None] = mapped_column(
        comment="end of the last tick with outcome done or unfinished"
    )
    outcome: Mapped[str | None]
    why: Mapped[str | None]


class SweepRun(Base):
    """The numbers of one tick of a sweep.

    If a sweep is quiet (`tasks.sweeps.frame.pace.Sweep`), rows are written only for dry runs, for ticks that an
    operator requested, and for ticks that repaired something or failed.
    """

    __tablename__ = "sweep_runs"
    __table_args__ = (
        Index("ix_sweep_runs_sweep_id", "sweep", "id"),
        Index("ix_sweep_runs_open", "sweep", postgresql_where=text("ended_at IS NULL")),
        Index("ix_sweep_runs_asked", "asked", postgresql_where=text("asked IS NOT NULL")),
        Index("ix_sweep_runs_began_at", "began_at"),
    )

    id: Mapped[Serial]
    sweep: Mapped[str]
    lease_no: Mapped[int]
    who: Mapped[str]
    asked: Mapped[str | None] = mapped_column(
        comment="id of the request of an operator who waits for this tick; NULL: none"
    )
    dry: Mapped[bool]
    began_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    outcome: Mapped[str]
    why: Mapped[str | None]
    listed: Mapped[int] = mapped_column(server_default="0")
    found: Mapped[int] = mapped_column(server_default="0")
    repaired: Mapped[int] = mapped_column(server_default="0")
    overflow: Mapped[int] = mapped_column(server_default="0")
    moved_on: Mapped[int] = mapped_column(server_default="0")
    skipped: Mapped[int] = mapped_column(server_default="0")


@dataclass(slots=True)
class Counts:
    """Numbers of a tick.

    - `listed`: the rows that were listed.
    - `found`: the verdicts that require a repair.
    - `repaired`: the repairs that were made.
    - `overflow`: the required repairs that exceeded the tick's budget. A later tick makes them.
    - `moved_on`: the required repairs that were not made, because the row had changed in the meantime.
    - `skipped`: the rows whose check or repair failed.
    """

    listed: int = 0
    found: int = 0
    repaired: int = 0
    overflow: int = 0
    moved_on: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Taken:
    """The lease of one tick."""

    lease_no: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The reason why a tick does not run: the outcome `busy` or `paused`, and a text for the log."""

    outcome: Outcome
    why: str


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of a tick's lease: whether the tick still holds the lease, and whether the sweep was paused."""

    held: bool
    paused: bool


def take(db: Connection, name: str, *, holder: str, lease: float, again: bool, now: datetime) -> Taken | Refused:
    """Take the lease of a sweep for `lease` seconds, or return the reason why the tick must not run.

    If another tick holds the lease and `again` is True, a rerun is requested. `end` reports this request to the tick
    that holds the lease.
    """
    row = db.execute(
        text("""
            INSERT INTO sweeps AS s (name, lease_no, lease_holder, leased_until, began_at)
            VALUES (:name, 1, :holder, :until, :now)
            ON CONFLICT (name) DO UPDATE SET lease_no = s.lease_no + 1, lease_holder = :holder, leased_until = :until,
                rerun_requested = false, began_at = :now
            WHERE (s.leased_until IS NULL OR s.leased_until < :now) AND s.paused_at IS NULL
            RETURNING lease_no
        """),
        {"name": name, "holder": holder, "until": now + timedelta(seconds=lease), "now": now},
    ).one_or_none()
    if row is not None:
        _close_lost(db, name, lease_no=row.lease_no, now=now)
        return Taken(row.lease_no)
    found = db.execute(
        text("SELECT paused_at, paused_by, paused_why, lease_holder FROM sweeps WHERE name = :name"), {"name": name}
    ).one()
    if found.paused_at is not None:
        record_skipped(db, name, why=f"paused by {found.paused_by}")
        return Refused(Outcome.PAUSED, f"paused by {found.paused_by}: {found.paused_why}")
    if again:
        db.execute(text("UPDATE sweeps SET rerun_requested = true WHERE name = :name"), {"name": name})
    return Refused(Outcome.BUSY, f"another tick runs in {found.lease_holder}")


def _close_lost(db: Connection, name: str, *, lease_no: int, now: datetime) -> None:
    """Record the end of ticks that did not record their end in time.

    A new lease proves that all ticks with a smaller lease number were killed or took too long. A dry run takes no
    lease. If a dry run is still open after `DRY_LASTS`, it was killed or takes too long.
    """
    db.execute(
        text("""
            UPDATE sweep_runs SET ended_at = :now, outcome = :lost,
                   why = 'the tick did not record its end in time: it was killed or took too long'
            WHERE id IN (SELECT id FROM sweep_runs
                         WHERE sweep = :name AND ended_at IS NULL AND lease_no < :lease_no
                           AND (NOT dry OR began_at < :long_ago)
                         ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)
        """),
        {"name": name, "lease_no": lease_no, "now": now, "lost": Outcome.LOST, "long_ago": now - DRY_LASTS},
    )


def record_skipped(db: Connection, name: str, *, why: str) -> None:
    """Record that the last tick did not run, because the sweep is paused. The list of sweeps shows this record."""
    db.execute(
        text("""
            INSERT INTO sweeps AS s (name, outcome, why) VALUES (:name, :paused, :why)
            ON CONFLICT (name) DO UPDATE SET outcome = :paused, why = :why
            WHERE (s.outcome, s.why) IS DISTINCT FROM (CAST(:paused AS text), CAST(:why AS text))
        """),
        {"name": name, "paused": Outcome.PAUSED, "why": why},
    )


def hold(db: Connection, name: str, lease_no: int, *, lock: bool = True) -> Standing:
    """Return the state of a lease, and lock the sweep's row until the transaction ends.

    While the row is locked, no other tick can take the lease, and the sweep cannot be paused. A transaction that makes
    a repair must call `hold` first. If `lock` is False, the row is read without a lock. Another tick could then take
    the lease before a repair is committed.
    """
    locking = "FOR SHARE" if lock else ""
    row = db.execute(
        text(f"SELECT lease_no, paused_at FROM sweeps WHERE name = :name {locking}"),
        {"name": name},
    ).one_or_none()
    return Standing(
        held=row is not None and row.lease_no == lease_no, paused=row is not None and row.paused_at is not None
    )


def renew(db: Connection, name: str, lease_no: int, *, lease: float, now: datetime) -> Standing:
    """Extend a lease to `lease` seconds from now, unless another tick has taken the lease. Return the lease's state."""
    row = db.execute(
        text("""
            UPDATE sweeps SET leased_until = :until WHERE name = :name AND lease_no = :lease_no
              AND leased_until IS NOT NULL RETURNING paused_at
        """),
        {"name": name, "lease_no": lease_no, "until": now + timedelta(seconds=lease)},
    ).one_or_none()
    return Standing(held=row is not None, paused=row is not None and row.paused_at is not None)


def begin_run(
    db: Connection, name: str, *, lease_no: int, who: str, asked: str | None, dry: bool, now: datetime
) -> int:
    """Record that a tick begins, and return the id of its run."""
    run_id: int = db.execute(
        text("""
            INSERT INTO sweep_runs (sweep, lease_no, who, asked, dry, began_at, outcome)
            VALUES (:name, :lease_no, :who, :asked, :dry, :now, :running) RETURNING id
        """),
        {
            "name": name,
            "lease_no": lease_no,
            "who": who,
            "asked": asked,
            "dry": dry,
            "now": now,
            "running": Outcome.RUNNING,
        },
    ).scalar_one()
    return run_id


def end_run(db: Connection, run_id: int, *, outcome: Outcome, why: str | None, counts: Counts, now: datetime) -> None:
    """Record the result of a tick."""
    db.execute(
        text("""
            UPDATE sweep_runs SET ended_at = :now, outcome = :outcome, why = :why, listed = :listed, found = :found,
                   repaired = :repaired, overflow = :overflow, moved_on = :moved_on, skipped = :skipped
            WHERE id = :id AND ended_at IS NULL
        """),
        {
            "id": run_id,
            "now": now,
            "outcome": outcome,
            "why": why,
            "listed": counts.listed,
            "found": counts.found,
            "repaired": counts.repaired,
            "overflow": counts.overflow,
            "moved_on": counts.moved_on,
            "skipped": counts.skipped,
        },
    )


def end(db: Connection, name: str, lease_no: int, *, outcome: Outcome, why: str | None, now: datetime) -> bool:
    """End the lease of a tick, and record the result of the tick. Return True if a rerun was requested during the tick.

    If another tick has taken the lease, nothing is recorded and the result is False.
    """
    row = db.execute(
        text("""
            UPDATE sweeps SET leased_until = NULL, lease_holder = NULL, outcome = :outcome, why = CAST(:why AS text),
                   succeeded_at = CASE WHEN :succeeded THEN CAST(:now AS timestamptz) ELSE succeeded_at END
            WHERE name = :name AND lease_no = :lease_no RETURNING rerun_requested
        """),
        {
            "name": name,
            "lease_no": lease_no,
            "outcome": outcome,
            "why": why,
            "now": now,
            "succeeded": outcome in SUCCESSES,
        },
    ).one_or_none()
    return row is not None and bool(row.rerun_requested)


def last_tick(db: Connection) -> datetime | None:
    """Return the time at which the last tick of any sweep began, or None if no sweep has run."""
    found: datetime | None = db.execute(text("SELECT max(began_at) FROM sweeps")).scalar_one()
    return found


def pause(db: Connection, name: str, *, by: Author, why: str) -> None:
    """Pause a sweep. A running tick stops before its next repair. If the sweep is already paused, nothing changes."""
    paused = db.execute(
        text("""
            INSERT INTO sweeps AS s (name, paused_at, paused_by, paused_why) VALUES (:name, :now, :who, :why)
            ON CONFLICT (name) DO UPDATE SET paused_at = :now, paused_by = :who, paused_why = :why
            WHERE s.paused_at IS NULL
        """),
        {"name": name, "who": str(by), "why": why, "now": by.at},
    )
    if paused.rowcount:
        changes.record(db, ChangeKind.SWEEP, name, before={"paused": False}, after={"paused": True}, by=by, why=why)


def resume(db: Connection, name: str, *, by: Author) -> None:
    """Resume a paused sweep. The sweep runs again at the next message of beat."""
    resumed = db.execute(
        text("""
            UPDATE sweeps SET paused_at = NULL, paused_by = NULL, paused_why = NULL,
                   outcome = CASE WHEN outcome = :paused THEN NULL ELSE outcome END,
                   why = CASE WHEN outcome = :paused THEN NULL ELSE why END
            WHERE name = :name AND paused_at IS NOT NULL
        """),
        {"name": name, "paused": Outcome.PAUSED},
    )
    if resumed.rowcount:
        changes.record(db, ChangeKind.SWEEP, name, before={"paused": True}, after={"paused": False}, by=by)


def end_lease(db: Connection, name: str) -> None:
    """Invalidate the lease of a run of the sweep that has not ended, so that this run commits no further repair."""
    db.execute(text("UPDATE sweeps SET lease_no = lease_no + 1 WHERE name = :name"), {"name": name})


def delete(db: Connection, ids: Sequence[int]) -> int:
    """Delete the rows of ticks that ended long ago. Return how many were deleted. The caller has locked the rows."""
    return db.execute(text("DELETE FROM sweep_runs WHERE id = ANY(:ids)"), {"ids": ids}).rowcount

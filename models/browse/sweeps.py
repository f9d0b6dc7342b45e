"""Queries for sweeps: the list of all sweeps, including those that have not run yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from sqlalchemy import Connection, Row, text

from models.sweeps.sweep_runs import SweepRun
from ostler.task_names import SWEEPS


@dataclass(frozen=True, slots=True)
class SweepSeen:
    """One sweep: whether it is paused, its last tick, and the process that runs a tick now.

    A field is None if it does not apply. For example, `paused_at` is None if the sweep is not paused.
    """

    name: str
    paused_at: datetime | None
    paused_by: str | None
    paused_why: str | None
    runs_in: str | None
    began_at: datetime | None
    succeeded_at: datetime | None
    outcome: str | None
    why: str | None


_COLUMNS = "name, paused_at, paused_by, paused_why, lease_holder, leased_until, began_at, succeeded_at, outcome, why"


def list_sweeps(db: Connection, *, now: datetime) -> Sequence[SweepSeen]:
    """Return every sweep, in the order of the schedule."""
    rows = {row.name: row for row in db.execute(text(f"SELECT {_COLUMNS} FROM sweeps"))}
    return [_seen(name, rows.get(name), now=now) for name in SWEEPS]


def one_sweep(db: Connection, name: str, *, now: datetime) -> SweepSeen | None:
    """Return one sweep, or None if there is no sweep of this name."""
    return next((each for each in list_sweeps(db, now=now) if each.name == name), None)


def _seen(name: str, row: Row[Any] | None, *, now: datetime) -> SweepSeen:
    if row is None:
        return SweepSeen(name, *[None] * 8)
    runs = row.leased_until is not None and row.leased_until > now
    return SweepSeen(
        name=name,
        paused_at=row.paused_at,
        paused_by=row.paused_by,
        paused_why=row.paused_why,
        runs_in=row.lease_holder if runs else None,
        began_at=row.began_at,
        succeeded_at=row.succeeded_at,
        outcome=row.outcome,
        why=row.why,
    )


def run_asked(db: Connection, asked: str) -> SweepRun | None:
    """Return the run that an operator requested, or None if the run has not begun.

    `asked` is the name of the request, as stored in the run.
    """
    row = db.execute(text("SELECT * FROM sweep_runs WHERE asked = :asked"), {"asked": asked}).one_or_none()
    return cast("SweepRun | None", row)

"""`ostler.prune`: deletes old rows of finished work, by default once a day, one page per transaction."""

from __future__ import annotations

from datetime import datetime, timedelta

from models.sweeps import prune as rows
from models.sweeps.prune import Kind
from models.sweeps.repairs import Case
from ostler.clock import utcnow
from ostler.settings import Settings
from ostler.task_names import PRUNE
from tasks.sweeps.frame.sweep import sweep
from tasks.sweeps.frame.tick import Tick

LONGEST = 600.0
"""Longest time in seconds of one tick over all its pages."""

AGAIN = 60.0
"""Seconds until the next tick if a tick left rows. Otherwise the next tick comes after the period `prune_every`."""


@sweep(PRUNE, longest=LONGEST)
def prune(tick: Tick) -> None:
    """Delete the old rows of each kind, in the order that the foreign keys require.

    If a tick runs out of time, the next tick deletes the remaining rows.
    """
    now = utcnow()
    for kind, kept in retentions(tick.rt.settings).items():
        if not delete_old(tick, kind, before=now - timedelta(seconds=kept)):
            if not tick.dry:
                tick.rt.waker.send(PRUNE, after=AGAIN)
            return


def retentions(settings: Settings) -> dict[Kind, float]:
    """Return how many seconds the rows of each kind are stored after their work has ended.

    The kinds are in the order of deletion.
    """
    return {
        Kind.DELIVERIES: settings.timings.keep_deliveries,
        Kind.JOB_EVENTS: settings.keep_events,
        Kind.CLAIM_EVENTS: settings.keep_events,
        Kind.CLAIMS: settings.keep_jobs,
        Kind.JOBS: settings.keep_jobs,
        Kind.RUNNER_PODS: settings.keep_jobs,
        Kind.REPAIRS: settings.timings.keep_repairs,
        Kind.SWEEP_RUNS: settings.keep_events,
        Kind.STALLS: settings.keep_events,
        Kind.RUNNER_FAILURES: settings.keep_events,
        Kind.CHANGES: settings.timings.keep_repairs,
    }


def delete_old(tick: Tick, kind: Kind, *, before: datetime) -> bool:
    """Delete the old rows of one kind page by page. Return False if rows are left to the next tick.

    A dry run only counts the rows.
    """
    if tick.dry:
        tick.mark_checked()
        if many := tick.read(rows.many, kind, before=before):
            tick.repair(_case(kind, before, f"{many} rows"), lambda _: True)
        return tick.goes_on()
    while tick.read(rows.some, kind, before=before):
        if not tick.page():
            return False
        if not tick.repair(_case(kind, before, "a page"), lambda db: rows.prune_page(db, kind, before=before)):
            break  # other sessions have locked the remaining rows
    tick.mark_checked()
    return True


def _case(kind: Kind, before: datetime, after: str) -> Case:
    return Case(what="forget", why=f"ended before {before:%Y-%m-%d %H:%M} UTC", subject=kind, after=after)

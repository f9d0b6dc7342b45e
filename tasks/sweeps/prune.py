"""`ostler.prune`: forgets what has been over for long, a page to a transaction, once a day."""

from __future__ import annotations

from datetime import datetime, timedelta

from models.sweeps import prune as rows
from models.sweeps.prune import Kind
from models.sweeps.repairs import Case
from ostler.clock import utcnow
from ostler.settings import Settings
from ostler.wakes import PRUNE
from tasks.sweeps.frame import sweep
from tasks.sweeps.tick import Tick

LONGEST = 600.0
"""Seconds of all pages of one tick together."""

AGAIN = 60.0
"""Seconds after which what a tick left over is gone on with; the next one by itself comes in a day."""


@sweep("prune", longest=LONGEST)
def prune(tick: Tick) -> None:
    """Go through the tables, what points at others first; what is left when time is up is the next tick's."""
    now = utcnow()
    for kind, kept in kept_for(tick.rt.settings).items():
        if not forget(tick, kind, before=now - timedelta(seconds=kept)):
            if not tick.dry:
                tick.rt.waker.send(PRUNE, queue="sweeps", after=AGAIN)
            return


def kept_for(settings: Settings) -> dict[Kind, float]:
    """Return for how many seconds each kind is kept once it is over, in the order in which they may go."""
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
    }


def forget(tick: Tick, kind: Kind, *, before: datetime) -> bool:
    """Delete one kind page by page; False when something was left to the next tick. A dry run only counts."""
    if tick.dry:
        tick.mark_checked()
        if many := tick.read(rows.many, kind, before=before):
            tick.repair(_case(kind, before, f"{many} rows"), lambda _: True)
        return tick.goes_on()
    while tick.read(rows.some, kind, before=before):
        if not tick.page():
            return False
        if not tick.repair(_case(kind, before, "a page"), lambda db: rows.prune_page(db, kind, before=before)):
            break  # others hold what is left
    tick.mark_checked()
    return True


def _case(kind: Kind, before: datetime, after: str) -> Case:
    return Case(what="forget", why=f"ended before {before:%Y-%m-%d %H:%M} UTC", subject=kind, after=after)

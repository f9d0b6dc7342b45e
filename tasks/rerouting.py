"""Rerouting: take the queued jobs of a pool from it, after its routing changed or it went.

The change itself only marks the pool (`models.keeper`, `models.draining`), which the matcher obeys. Its reconcile then
moves the jobs, in pages and transactions of their own. A process that dies between pages leaves the mark, and the next
reconcile goes on. A job that another session holds locked is not waited for: it is moved by a later run.
"""

from __future__ import annotations

import time
from functools import partial

import structlog

from models import rematch
from models.engine import transaction
from ostler.clock import utcnow
from ostler.halt import halt
from ostler.wakes import KEEP, REMATCH
from tasks.base import remaining
from tasks.runtime import Runtime

PAGE = 1000
"""Jobs of one transaction at most."""

LONGEST = 5.0
"""Seconds of one run, so that the reconcile of the pool goes on meanwhile."""

RESERVE = 10.0
"""Seconds of the task's time that are left to the reconcile."""

AGAIN_AFTER = 1.0
"""Seconds until the next run, while jobs are left."""

log = structlog.get_logger(__name__)


def move_jobs_away(rt: Runtime, pool_id: int) -> None:
    """Move the jobs that were routed to a pool before it changed; what is left is for the next reconcile."""
    since = transaction(rt.engine, lambda db: rematch.unrouting_since(db, pool_id))
    if since is None:
        return
    end = time.monotonic() + min(LONGEST, remaining() - RESERVE)
    after: int | None = 0
    moved = locked = 0
    while after is not None and time.monotonic() < end:
        halt("unroute.before_page")
        read = partial(rematch.unroute_page, pool_id=pool_id, after_id=after, limit=PAGE, now=utcnow())
        page = transaction(rt.engine, read)
        moved, locked, after = moved + page.moved, locked + page.locked, page.next_id
    done = after is None and not locked
    if done:
        transaction(rt.engine, lambda db: rematch.end_unrouting(db, pool_id, since=since))
    log.info("pool.jobs_moved", moved=moved, locked=locked, done=done)
    if moved:
        rt.waker.send(REMATCH, queue="sweeps")
    if done:
        rt.waker.wake(pool_id)  # jobs that came meanwhile
    else:
        rt.waker.send(KEEP, queue="pools", after=AGAIN_AFTER, pool_id=pool_id)

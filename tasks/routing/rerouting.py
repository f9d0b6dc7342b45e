"""Rerouting: take the queued jobs of a pool from it, after its routing changed or it went.

The change itself only marks the pool (`models.pools.pool_mirror`, `models.pools.draining`), which the matcher obeys.
Its reconcile then moves the jobs, in pages and transactions of their own. A process that dies between pages leaves the
mark, and the next reconcile goes on. A job that another session holds locked is not waited for. Its id is kept in the
pool's row: that job is not matched until a later run has moved it, and all other jobs of the pool are matched
meanwhile.
"""

from __future__ import annotations

import time
from functools import partial

import structlog

from models.sweeps import rematch
from ostler.clock import utcnow
from ostler.halt import halt
from ostler.task_names import REMATCH
from tasks.worker.base import remaining
from tasks.worker.runtime import Runtime

PAGE = 1000
"""Jobs of one transaction at most."""

LONGEST = 5.0
"""Seconds of one run, so that the reconcile of the pool goes on meanwhile."""

RESERVE = 10.0
"""Seconds of the task's time that are left to the reconcile."""

MOST_LOCKED = 1000
"""Locked jobs of a pool whose ids are kept. With more of them no job is matched until there are fewer."""

AGAIN_AFTER = 1.0
"""Seconds until the next run, while jobs are left."""

log = structlog.get_logger(__name__)


def move_jobs_away(rt: Runtime, pool_id: int) -> None:
    """Move the jobs that were routed to a pool before it changed; what is left is for the next reconcile."""
    todo = rt.transaction(rematch.unrouting, pool_id)
    if todo is None:
        return
    moved, locked, seen_all = (_those_left if todo.since is None else _page_by_page)(rt, pool_id, todo)
    end = partial(rematch.end_unrouting, pool_id=pool_id, todo=todo, left=locked)
    matched = seen_all and len(locked) <= MOST_LOCKED and rt.transaction(end)
    log.info("pool.jobs_moved", moved=moved, locked=len(locked), done=matched and not locked)
    if moved:
        rt.waker.send(REMATCH)
    if matched and todo.since is not None:
        rt.waker.wake(pool_id)  # jobs that came meanwhile
    if locked or not matched:
        rt.waker.reconcile(pool_id, after=AGAIN_AFTER)


def _those_left(rt: Runtime, pool_id: int, todo: rematch.Unrouting) -> tuple[int, tuple[int, ...], bool]:
    """Move the jobs that were locked before; return how many, those still locked, and that this is all."""
    halt("unroute.before_page")
    page = rt.transaction(rematch.unroute_jobs, pool_id=pool_id, ids=todo.jobs, now=utcnow())
    return page.moved, page.locked, True


def _page_by_page(rt: Runtime, pool_id: int, _: rematch.Unrouting) -> tuple[int, tuple[int, ...], bool]:
    """Move all jobs of the pool; return how many, those that are locked, and whether time sufficed for all."""
    end = time.monotonic() + min(LONGEST, remaining() - RESERVE)
    after: int | None = 0
    moved = 0
    locked: tuple[int, ...] = ()
    while after is not None and time.monotonic() < end:
        halt("unroute.before_page")
        read = partial(rematch.unroute_page, pool_id=pool_id, after_id=after, limit=PAGE, now=utcnow())
        page = rt.transaction(read)
        moved, locked, after = moved + page.moved, locked + page.locked, page.next_id
    return moved, locked, after is None

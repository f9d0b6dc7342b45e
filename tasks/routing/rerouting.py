"""Rerouting: move the queued jobs of a pool to other pools after a change of its routing or after its deletion.

The transaction that records the change only marks the pool (`models.pools.pool_mirror`, `models.pools.draining`), and
the matcher obeys the mark. The reconcile of the pool then moves the jobs page by page, each page in a transaction of
its own. If the process dies between two pages, the mark stays and the next reconcile continues.

If another session has locked a job, the job is skipped and its id is stored in the pool's row. The matcher does not
match this job until a later run has moved it. All other jobs of the pool are matched meanwhile.
"""

from __future__ import annotations

import time
from functools import partial

import structlog

from models.pools.unrouting import Unrouting, end_unrouting, unroute_jobs, unroute_page, unrouting
from ostler.clock import utcnow
from ostler.halt import halt
from ostler.task_names import REMATCH
from tasks.worker.base import remaining
from tasks.worker.runtime import Runtime

PAGE = 1000
"""Upper bound on jobs in one transaction."""

LONGEST = 5.0
"""Longest time in seconds of one run, so that enough time is left for the reconcile of the pool."""

RESERVE = 10.0
"""Seconds of the task's deadline that are reserved for the reconcile."""

MOST_LOCKED = 1000
"""Upper bound on locked jobs whose ids a pool's row stores. While more jobs are locked, the pool matches no job."""

AGAIN_AFTER = 1.0
"""Seconds until the next run, while jobs are left."""

log = structlog.get_logger(__name__)


def move_jobs_away(rt: Runtime, pool_id: int) -> None:
    """Move the jobs that were routed to a pool before it changed. The next reconcile continues if jobs are left."""
    todo = rt.transaction(unrouting, pool_id)
    if todo is None:
        return
    moved, locked, seen_all = (_those_left if todo.since is None else _page_by_page)(rt, pool_id, todo)
    end = partial(end_unrouting, pool_id=pool_id, todo=todo, left=locked)
    matched = seen_all and len(locked) <= MOST_LOCKED and rt.transaction(end)
    log.info("pool.jobs_routed_again", moved_jobs=moved, locked_jobs=len(locked), all_moved=matched and not locked)
    if moved:
        rt.waker.send(REMATCH)
    if matched and todo.since is not None:
        rt.waker.wake(pool_id)  # the matcher then also matches jobs that arrived meanwhile
    if locked or not matched:
        rt.waker.reconcile(pool_id, after=AGAIN_AFTER)


def _those_left(rt: Runtime, pool_id: int, todo: Unrouting) -> tuple[int, tuple[int, ...], bool]:
    """Move the jobs that an earlier run skipped because another session had locked them.

    Returns the number of moved jobs, the ids of jobs that are still locked, and True, because there are no further
    pages.
    """
    halt("unroute.before_page")
    page = rt.transaction(unroute_jobs, pool_id=pool_id, ids=todo.jobs, now=utcnow())
    return page.moved, page.locked, True


def _page_by_page(rt: Runtime, pool_id: int, _: Unrouting) -> tuple[int, tuple[int, ...], bool]:
    """Move all jobs of the pool, page by page.

    Returns the number of moved jobs, the ids of locked jobs, and True if all pages were read in time.
    """
    end = time.monotonic() + min(LONGEST, remaining() - RESERVE)
    after: int | None = 0
    moved = 0
    locked: tuple[int, ...] = ()
    while after is not None and time.monotonic() < end:
        halt("unroute.before_page")
        read = partial(unroute_page, pool_id=pool_id, after_id=after, limit=PAGE, now=utcnow())
        page = rt.transaction(read)
        moved, locked, after = moved + page.moved, locked + page.locked, page.next_id
    return moved, locked, after is None

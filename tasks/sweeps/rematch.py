"""`ostler.rematch`: held jobs, and jobs whose pool changed, are matched again."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from models.rematch import Lifted, rematch_page
from models.repairs import Case
from ostler.clock import utcnow
from tasks.sweeps.frame import sweep
from tasks.sweeps.tick import Tick

PAGE = 500
RESERVE = 2.0


@sweep("rematch", again=True)
def rematch(tick: Tick) -> None:
    """Go through the held jobs by id, a page to a transaction; what is left when time is up is the next tick's."""
    after: int | None = 0
    while after is not None and tick.goes_on(reserve=RESERVE):
        after = _page(tick, after)


def _page(tick: Tick, after: int) -> int | None:
    """Match one page and wake the pools that got jobs; return where the next one begins, None at the end."""
    following: int | None = None
    pools: frozenset[int] = frozenset()

    def body(db: Connection) -> Sequence[Lifted]:
        nonlocal following, pools
        page = rematch_page(db, after_id=after, limit=PAGE, now=utcnow())
        following, pools = page.next_id, page.pools
        return page.lifted

    tick.repair_all(body, _case)
    for pool_id in () if tick.dry else sorted(pools):
        tick.rt.waker.wake(pool_id)
    return following


def _case(job: Lifted) -> Case:
    return Case(what="match", why="it can go on now", job_id=job.job_id, before=job.hold, after=f"pool {job.pool_id}")

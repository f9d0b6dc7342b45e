"""`ostler.rematch`: held jobs, and jobs whose pool changed, are matched again."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from models.accounts import unasked_accounts
from models.rematch import Lifted, rematch_page
from models.repairs import Case
from ostler.clock import utcnow
from ostler.wakes import ASK_OWNER, ASK_RUN
from tasks.sweeps.frame import sweep
from tasks.sweeps.tick import Tick

PAGE = 500
RESERVE = 2.0


@sweep("rematch", again=True)
def rematch(tick: Tick) -> None:
    """Go through the held jobs by id, a page to a transaction; what is left when time is up is the next tick's."""
    if not tick.dry and tick.read(lambda db: unasked_accounts(db, limit=1)):
        tick.rt.waker.send(ASK_OWNER, queue="github")
    after: int | None = 0
    while after is not None and tick.goes_on(reserve=RESERVE):
        after = _page(tick, after)


def _page(tick: Tick, after: int) -> int | None:
    """Match one page and send what follows from it; return where the next one begins, None at the end."""
    following: int | None = None
    pools: frozenset[int] = frozenset()
    asks: frozenset[int] = frozenset()

    def body(db: Connection) -> Sequence[Lifted]:
        nonlocal following, pools, asks
        page = rematch_page(db, after_id=after, limit=PAGE, now=utcnow())
        following, pools, asks = page.next_id, page.pools, page.asks
        return page.lifted

    tick.repair_all(body, _case)
    if not tick.dry:
        for pool_id in sorted(pools):
            tick.rt.waker.wake(pool_id)
        for run_id in sorted(asks):
            tick.rt.waker.send(ASK_RUN, queue="github", run_id=run_id)
    return following


def _case(job: Lifted) -> Case:
    return Case(what="match", why="it can go on now", job_id=job.job_id, before=job.hold, after=f"pool {job.pool_id}")

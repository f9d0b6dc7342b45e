"""`ostler.rematch`: checks held jobs and jobs whose pool changed, and queues the jobs that can be matched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from models.routing.accounts import unasked_accounts
from models.sweeps.rematch import Lifted, Rematched, accounts_to_rematch, rematch_page
from models.sweeps.repairs import Case
from ostler.clock import utcnow
from ostler.task_names import ASK_OWNER, ASK_RUN, REMATCH
from tasks.sweeps.frame.sweep import sweep
from tasks.sweeps.frame.tick import Tick

PAGE = 500
RESERVE = 2.0


@sweep(REMATCH, again=True)
def rematch(tick: Tick) -> None:
    """Check jobs page by page, one page per transaction.

    Each page has jobs of every account that has jobs left. The next tick checks the jobs that are left.
    """
    if not tick.dry and tick.read(unasked_accounts, limit=1):
        tick.rt.waker.send(ASK_OWNER)
    places: Mapping[int, int] = tick.read(accounts_to_rematch)
    while places and tick.goes_on(reserve=RESERVE):
        places = _page(tick, places)


def _page(tick: Tick, places: Mapping[int, int]) -> Mapping[int, int]:
    """Check one page and send its messages.

    Return where the next page begins. The result is empty after the last page.
    """
    page = Rematched(places={}, pools=frozenset(), lifted=())

    def body(db: Connection) -> Sequence[Lifted]:
        nonlocal page
        page = rematch_page(db, places, limit=PAGE, now=utcnow())
        return page.lifted

    tick.repair_all(body, _case)
    if not tick.dry:
        for pool_id in sorted(page.pools):
            tick.rt.waker.wake(pool_id)
        for run_id in sorted(page.asks):
            tick.rt.waker.send(ASK_RUN, run_id=run_id)
    return page.places


def _case(job: Lifted) -> Case:
    return Case(
        what="match",
        why="the reason to hold the job no longer applies",
        job_id=job.job_id,
        before=job.hold,
        after=f"pool {job.pool_id}",
    )

"""`ostler.rematch`: held jobs, and jobs whose pool changed, are matched again."""

from __future__ import annotations

from models.engine import transaction
from models.rematch import rematch_page
from ostler.clock import utcnow
from tasks.base import SWEEP, remaining, task
from tasks.runtime import runtime

PAGE = 500
RESERVE = 2.0


@task("rematch", queue="sweeps", policy=SWEEP)
def rematch() -> None:
    """Go through the held jobs by id, a page to a transaction; what is left when time is up is the next tick's."""
    rt = runtime()
    after: int | None = 0
    while after is not None and remaining() > RESERVE:
        start = after
        page = transaction(rt.engine, lambda db: rematch_page(db, after_id=start, limit=PAGE, now=utcnow()))  # noqa: B023
        for pool_id in sorted(page.pools):
            rt.waker.wake(pool_id)
        after = page.next_id

"""Brake of a pool whose runners never execute their jobs.

Each reconcile of the pool reads the brake. The brake ends after an execution, or after a change of the pool's template.
"""

from __future__ import annotations

from datetime import datetime

import structlog
from sqlalchemy import Connection

from models.claims import runner_failures
from models.state.pools import Pool
from rules.claims.runner_brakes import Brake
from tasks.worker.runtime import Runtime

log = structlog.get_logger(__name__)


def update_brake(rt: Runtime, pool: Pool, *, now: datetime) -> Brake | None:
    """End the brake of a pool if its template has changed. Return the brake, or None if the pool is not braked.

    The matcher is woken if the template has changed, or if the next claim that tests the pool is due. If the wake after
    a change of the template is lost, the sweep `resume` wakes the matcher. If the wake for a claim that tests the pool
    is lost, the next reconcile sends another wake.
    """

    def body(db: Connection) -> tuple[Brake | None, int, bool]:
        mended = runner_failures.clear_old_templates(db, pool.id, pool.template_hash, now=now)
        brake = runner_failures.read(db, pool.id, pool.template_hash)
        return brake, mended, brake is not None and runner_failures.is_due(db, pool.id, brake, now=now)

    brake, mended, due = rt.transaction(body)
    if mended:
        log.info("pool.runner_failures_cleared", pool=pool.name, failures=mended, why="the pool's template changed")
    if mended or due:
        rt.waker.wake(pool.id)
    return brake

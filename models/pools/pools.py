"""Rows of pools: the routing criteria of a pool, its need of Pods, and the end of a rerouting."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection

from models.db.sql import text
from models.state.pools import Pool
from rules.pools.pod_security import PodSecurity
from rules.pools.volumes import Reclaim
from rules.routing.labels import PoolLabels


def routes(db: Connection) -> list[PoolLabels]:
    """Return the routing criteria of every pool that accepts new jobs.

    A pool accepts no new jobs if the pool is draining or its object is gone.
    """
    rows = db.execute(
        text("""
            SELECT id, labels, routing_priority, allowed_accounts, allowed_repositories, allow_forks, name,
                   pod_security, runner_group_id, runner_group_name, volume_reclaim, registers_in,
                   serves_unlabelled
            FROM pools WHERE deleted_at IS NULL AND NOT draining
        """)
    )
    return [
        PoolLabels(
            id=row.id,
            labels=frozenset(label.lower() for label in row.labels),
            routing_priority=row.routing_priority,
            allowed_accounts=frozenset(row.allowed_accounts),
            allowed_repositories=frozenset(name.lower() for name in row.allowed_repositories),
            allow_forks=row.allow_forks,
            elevated=PodSecurity(row.pod_security).elevated,
            name=row.name,
            runner_group=row.runner_group_id if row.runner_group_name is None else row.runner_group_name,
            retains=row.volume_reclaim == Reclaim.RETAIN,
            registers_in=row.registers_in,
            serves_unlabelled=row.serves_unlabelled,
        )
        for row in rows
    ]


def set_wants_pods(db: Connection, pool: Pool, *, wants: bool) -> bool:
    """Record whether the matcher left jobs without Pods. Return True if this call changed the pool's row.

    If another session has locked the row, nothing is written. In that case, the sweep `resume` wakes the pool until a
    later dispatch has written the row.
    """
    if pool.wants_pods == wants:
        return False
    changed = db.execute(
        text("""
            UPDATE pools SET wants_pods = :wants
            WHERE id = (SELECT id FROM pools WHERE id = :id FOR NO KEY UPDATE SKIP LOCKED)
        """),
        {"wants": wants, "id": pool.id},
    )
    return changed.rowcount > 0


def end_rerouting(
    db: Connection, pool_id: int, *, since: datetime | None, known: Sequence[int], left: Sequence[int]
) -> bool:
    """Record the end of a rerouting, so that the matcher matches the pool's jobs again.

    `since` and `known` are the rerouting time and the job ids that the caller read from the row. `left` contains the
    ids of the jobs that still have to be moved. The matcher skips these jobs. Return False without a change if another
    process has changed the rerouting time or the job ids in the meantime.
    """
    ended = db.execute(
        text("""
            UPDATE pools SET rerouting_since = NULL, rerouting_jobs = CAST(:left AS bigint[])
            WHERE id = :id AND rerouting_since IS NOT DISTINCT FROM CAST(:since AS timestamptz)
              AND rerouting_jobs = CAST(:known AS bigint[])
        """),
        {"id": pool_id, "since": since, "known": list(known), "left": list(left)},
    )
    return ended.rowcount > 0

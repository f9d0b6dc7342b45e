"""Unrouting: take jobs out of a pool whose routing has changed, or that is gone (`tasks.routing.rerouting`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import Connection

from models.db.sql import text
from models.pools import pools
from models.state import job_holds


@dataclass(frozen=True, slots=True)
class Unrouted:
    """The result of taking one page of jobs out of a pool.

    `moved` is the number of jobs that were taken out. `locked` contains the ids of the jobs that were not taken out,
    because their rows are locked. The next page begins after the job `next_id`. `next_id` is None on the last page.
    """

    moved: int
    locked: tuple[int, ...]
    next_id: int | None


@dataclass(frozen=True, slots=True)
class Unrouting:
    """The jobs to take out of a pool.

    If `since` is set, all jobs of the pool are taken out. Otherwise only the jobs in `jobs` are taken out.

    `since` is the time at which the pool's routing changed. `jobs` contains the ids of jobs whose rows were locked when
    the other jobs were taken out.
    """

    since: datetime | None
    jobs: tuple[int, ...]


def unrouting(db: Connection, pool_id: int) -> Unrouting | None:
    """Return the jobs that must be taken out of a pool, or None if there are none."""
    row = db.execute(
        text("SELECT rerouting_since, rerouting_jobs FROM pools WHERE id = :id"), {"id": pool_id}
    ).one_or_none()
    if row is None or (row.rerouting_since is None and not row.rerouting_jobs):
        return None
    return Unrouting(row.rerouting_since, tuple(row.rerouting_jobs))


def unroute_page(db: Connection, pool_id: int, *, after_id: int, limit: int, now: datetime) -> Unrouted:
    """Take one page of jobs out of a pool, in the order of the jobs' ids.

    Jobs are taken out of a pool if the routing of the pool has changed or the pool is gone. The sweep `rematch` then
    finds a new pool for the queued jobs. A claimed job keeps its claim. If that claim is released, the job is queued
    without a pool. Jobs that another session has locked are skipped.
    """
    ids = list(
        db.execute(
            text("""
                SELECT id FROM (
                    (SELECT id FROM jobs WHERE state = 'queued' AND pool_id = :pool_id AND id > :after
                     ORDER BY id LIMIT :limit)
                    UNION ALL
                    (SELECT id FROM jobs WHERE state = 'claimed' AND pool_id = :pool_id AND id > :after
                     ORDER BY id LIMIT :limit)) page
                ORDER BY id LIMIT :limit
            """),
            {"pool_id": pool_id, "after": after_id, "limit": limit},
        ).scalars()
    )
    found = unroute_jobs(db, pool_id, ids, now=now)
    return replace(found, next_id=ids[-1] if len(ids) == limit else None)


def unroute_jobs(db: Connection, pool_id: int, ids: Sequence[int], *, now: datetime) -> Unrouted:
    """Take these jobs out of a pool. Jobs that are no longer in the pool and jobs with locked rows are skipped."""
    if not ids:
        return Unrouted(0, (), None)
    moved = job_holds.unroute(db, pool_id, ids, now=now)
    left = db.execute(
        text(
            "SELECT id FROM jobs WHERE id = ANY(:ids) AND pool_id = :pool_id AND state IN ('queued', 'claimed')"
            " ORDER BY id"
        ),
        {"pool_id": pool_id, "ids": list(ids)},
    ).scalars()
    return Unrouted(moved, tuple(left), None)


def end_unrouting(db: Connection, pool_id: int, todo: Unrouting, *, left: Sequence[int]) -> bool:
    """Record that the jobs were taken out of a pool, so that the matcher matches the pool's jobs again.

    `left` contains the ids of the jobs that were not taken out yet. The matcher skips these jobs. Return False without
    a change if another process has changed the pool's row since `todo` was read.
    """
    return pools.end_rerouting(db, pool_id, since=todo.since, known=todo.jobs, left=left)

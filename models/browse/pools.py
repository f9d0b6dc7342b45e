"""Queries for pools: a list of pools, one pool with the numbers of its jobs, and the stored status of both."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row

from models.browse.page import Order, Page, read
from models.db.sql import text
from models.pools.pod_rows import OVER
from rules.pools.pod_states import PodState
from rules.routing.holds import HoldReason

_COLUMNS = """
    t.id, t.namespace, t.name, t.image, t.labels, CAST(t.vcpu AS float8) / 1000 AS vcpu,
    CAST(t.memory AS float8) / 1024 AS memory_gib, t.replicas, t.allowed_accounts, t.allowed_repositories,
    t.routing_priority, t.draining, t.paused, t.autoscaled, t.min_warm, t.max_replicas, t.scaled_up_at,
    t.scaled_down_at, t.scaling, coalesce(t.status -> 'conditions', '[]'::jsonb) AS conditions,
    t.created_at, t.deleted_at, CASE WHEN t.deleted_at IS NULL THEN t.status END AS status,
    greatest(t.status_at, t.status_checked_at) AS status_at
"""

RECENT = timedelta(hours=1)
"""Age limit of the retire claims that `PoolTroubles.outlived` counts."""

_LATEST = 500
"""Maximum number of a pool's newest claims that are read to compute `PoolTroubles.outlived`."""

_TROUBLES = [HoldReason.BACKOFF, HoldReason.SET_ASIDE, HoldReason.RUNNER_GROUP]
"""Hold reasons that `PoolTroubles` reports, because an operator might have to resolve the cause of the hold."""


@dataclass(frozen=True, slots=True)
class PoolFilter:
    """Filter for pools. None in a field selects all values of that field."""

    name: str | None = None
    deleted: bool | None = None


@dataclass(frozen=True, slots=True)
class PoolStory:
    """A pool with the numbers of its jobs."""

    pool: Row[Any]
    counts: Row[Any]


def shown(pool: Row[Any], *, now: datetime) -> dict[str, Any]:
    """Return a pool of this module as the commands and the API show it.

    `status` has the numbers that the reconciler wrote last, with the time at which a reconcile last found them to be
    current. It is None before the first reconcile, and after the pool's object is gone.
    """
    fields = dict(pool._mapping)
    stored, at = fields.pop("status"), fields.pop("status_at")
    if stored is None or at is None:
        return fields | {"status": None}
    # A reconciler that does not know a state counts no Pod in it.
    numbers = {name: stored.get(name, 0) for name in ("replicas", *map(str, PodState), "stale", "lost")}
    return fields | {
        "status": {
            "at": at,
            "age_seconds": max(0, int((now - at).total_seconds())),
            "observed_generation": stored.get("observedGeneration", 0),
            **numbers,
        }
    }


def list_pools(db: Connection, wanted: PoolFilter, *, after: int | None = None, limit: int) -> Page:
    """Return one page of pools, oldest first."""
    conditions = {
        "t.name = :value": wanted.name,
        "t.deleted_at IS NULL": True if wanted.deleted is False else None,
        "t.deleted_at IS NOT NULL": True if wanted.deleted else None,
    }
    return read(db, _COLUMNS, table="pools", conditions=conditions, order=Order.OLDEST, after=after, limit=limit)


def pool_story(db: Connection, pool_id: int) -> PoolStory | None:
    """Return a pool with the numbers of its queued jobs, or None if there is no such pool.

    The numbers of its Pods are in the pool's status. Only the reconciler counts Pods.
    """
    pool = db.execute(text(f"SELECT {_COLUMNS} FROM pools t WHERE t.id = :id"), {"id": pool_id}).one_or_none()
    if pool is None:
        return None
    counts = db.execute(
        text("""
            SELECT (SELECT count(*) FROM jobs
                    WHERE pool_id = :id AND state = 'queued' AND hold_reason IS NULL) AS queued,
                   (SELECT count(*) FROM jobs
                    WHERE pool_id = :id AND state = 'queued' AND hold_reason IS NOT NULL) AS held,
                   (SELECT min(queued_at) FROM jobs
                    WHERE pool_id = :id AND state = 'queued' AND hold_reason IS NULL) AS oldest_queued_at
        """),
        {"id": pool_id},
    ).one()
    return PoolStory(pool, counts)


@dataclass(frozen=True, slots=True)
class PoolTroubles:
    """Problems of a pool that are reported in addition to the pool's conditions.

    - `held`: how many jobs have the most frequent hold among the holds in `_TROUBLES`.
    - `held_because`: the reason of the most frequent hold, in words.
    - `outlived`: how many Pods Ostler retired in the last hour because a container still ran after `poller` and
      `runner` had ended. Pods on gone nodes are not counted.
    """

    held: int = 0
    held_because: str = ""
    outlived: int = 0


def pool_troubles(db: Connection, pool_id: int, *, now: datetime) -> PoolTroubles:
    """Return the problems of a pool that are reported in addition to the pool's conditions."""
    held = db.execute(
        text("""
            SELECT count(*) AS jobs, coalesce(nullif(hold_detail, ''), hold_reason) AS why FROM jobs
            WHERE pool_id = :id AND state = 'queued' AND hold_reason = ANY(:holds)
            GROUP BY why ORDER BY jobs DESC, why LIMIT 1
        """),
        {"id": pool_id, "holds": [str(each) for each in _TROUBLES]},
    ).one_or_none()
    outlived: int = db.execute(
        text("""
            SELECT count(*) FROM (
                SELECT runner_pod_id, purpose, release_reason, created_at FROM claims
                WHERE pool_id = :id ORDER BY id DESC LIMIT :latest
            ) c JOIN runner_pods p ON p.id = c.runner_pod_id
            WHERE c.purpose = 'retire' AND c.release_reason = :over AND c.created_at > :since
              AND p.node_gone_at IS NULL
        """),
        {"id": pool_id, "latest": _LATEST, "over": OVER, "since": now - RECENT},
    ).scalar_one()
    return PoolTroubles(
        held=0 if held is None else held.jobs, held_because="" if held is None else held.why, outlived=outlived
    )


def pool_names(db: Connection, name: str) -> list[int]:
    """Return the ids of the pools that have this name and are not deleted."""
    rows: Any = db.execute(
        text("SELECT id FROM pools WHERE name = :name AND deleted_at IS NULL ORDER BY id"), {"name": name}
    ).scalars()
    return list(rows)

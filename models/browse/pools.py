"""Queries for pools: a list of pools, one pool with the numbers of its jobs, and the stored status of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row

from models.browse.health import Obstacle, obstacles
from models.browse.page import Choice, Order, Page, choices, read
from models.db.sql import text
from models.pools.pod_rows import OVER
from rules.pools.pod_states import PodState
from rules.routing.holds import HoldReason

_COLUMNS = """
    t.id, t.namespace, t.name, t.image, t.labels, CAST(t.vcpu AS float8) / 1000 AS vcpu,
    CAST(t.memory AS float8) / 1024 AS memory_gib, t.replicas, t.allowed_accounts, t.allowed_repositories,
    t.routing_priority, t.draining, t.paused, t.pause_request, t.autoscaled, t.min_warm, t.max_replicas, t.scaled_up_at,
    t.scaled_down_at, t.scaling, coalesce(t.status -> 'conditions', '[]'::jsonb) AS conditions,
    t.created_at, t.deleted_at, CASE WHEN t.deleted_at IS NULL THEN t.status END AS status,
    greatest(t.status_at, t.status_checked_at) AS status_at
"""

RECENT = timedelta(hours=1)
"""Age limit of the retire claims of Pods that outlived their runners."""

OUTLIVED = 3
"""Number of Pods that outlived their runners in the last hour. From this number on, a pool has a problem.

A Pod outlives its runner if a further container still runs after the poller and the runner have ended. A smaller number
is no sign of a problem, because such Pods might only need more time to end.
"""

_LATEST = 500
"""Maximum number of a pool's newest claims that are read to count Pods that outlived their runners."""

_TROUBLES = [HoldReason.BACKOFF, HoldReason.SET_ASIDE, HoldReason.RUNNER_GROUP]
"""Hold reasons that a pool reports, because an operator might have to resolve the cause of the hold."""


@dataclass(frozen=True, slots=True)
class PoolFilter:
    """Filter for pools. None in a field selects all values of that field."""

    name: str | None = None
    deleted: bool | None = None


@dataclass(frozen=True, slots=True)
class PoolStory:
    """A pool with the numbers of its queued jobs, its state in a word, and its problem.

    `queued` and `held` count queued jobs without and with a hold. `oldest_queued_at` is the queue time of the oldest
    job without a hold. `trouble` is the problem of the pool or the progress of its drain, or an empty text.
    `obstacles` are the problems of all pools, the worst first.
    """

    pool: Row[Any]
    queued: int
    held: int
    oldest_queued_at: datetime | None
    state: str
    trouble: str
    obstacles: Sequence[Obstacle]


def shown(pool: Row[Any], *, now: datetime) -> dict[str, Any]:
    """Return a pool of this module as the commands and the API show it.

    `status` has the numbers that the reconciler wrote last, with the time at which a reconcile last found them to be
    current. It is None before the first reconcile, and after the pool's object is gone. `pause_request` is the request
    to pause or resume the pool that no worker has carried out, or None.
    """
    fields = dict(pool._mapping)
    stored, at = fields.pop("status"), fields.pop("status_at")
    if asked := fields["pause_request"]:
        fields["pause_request"] = {
            "paused": asked["paused"],
            "by": f"{asked['who']} ({asked['via']})",
            "at": datetime.fromisoformat(asked["at"]),
        }
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
    return read(db, _COLUMNS, source="pools t", conditions=conditions, order=Order.OLDEST, after=after, limit=limit)


def pool_choices(db: Connection, *, limit: int) -> Sequence[Choice]:
    """Return the ids and the names of the oldest pools that are not deleted, oldest first."""
    return choices(db, "name", source="pools t", conditions={"t.deleted_at IS NULL": True}, limit=limit)


def pool_story(db: Connection, pool_id: int, *, now: datetime) -> PoolStory | None:
    """Return a pool with its story, or None if there is no such pool."""
    pool = db.execute(text(f"SELECT {_COLUMNS} FROM pools t WHERE t.id = :id"), {"id": pool_id}).one_or_none()
    return None if pool is None else pool_stories(db, [pool], now=now)[0]


def pool_stories(db: Connection, pools: Sequence[Row[Any]], *, now: datetime) -> Sequence[PoolStory]:
    """Return the stories of these pools, in this order.

    The numbers of their Pods are in their status. Only the reconciler counts Pods.
    """
    ids = [pool.id for pool in pools]
    rows = db.execute(
        text("""
            SELECT id AS pool_id, q.jobs AS queued, h.jobs AS held, q.oldest AS oldest_queued_at
            FROM unnest(CAST(:ids AS bigint[])) AS ids (id)
            CROSS JOIN LATERAL (
                SELECT count(*) AS jobs, min(queued_at) AS oldest FROM jobs
                WHERE pool_id = ids.id AND state = 'queued' AND hold_reason IS NULL) q
            CROSS JOIN LATERAL (
                SELECT count(*) AS jobs FROM jobs
                WHERE pool_id = ids.id AND state = 'queued' AND hold_reason IS NOT NULL) h
        """),
        {"ids": ids},
    )
    queues = {row.pool_id: (row.queued, row.held, row.oldest_queued_at) for row in rows}
    troubles = _troubles(db, ids, now=now)
    of_all = obstacles(db, now=now)
    obstacle = next((each for each in of_all if each.state), None)
    found = []
    for pool in pools:
        state, trouble = _state(pool), _trouble(pool, troubles[pool.id])
        if state == "ready" and obstacle is not None:
            state, trouble = obstacle.state, trouble or str(obstacle)
        found.append(PoolStory(pool, *queues[pool.id], state, trouble, of_all))
    return found


def told(story: PoolStory, *, now: datetime) -> dict[str, Any]:
    """Return a pool with its story as the commands and the API show it."""
    return shown(story.pool, now=now) | {
        "counts": {"queued": story.queued, "held": story.held, "oldest_queued_at": story.oldest_queued_at},
        "state": story.state,
        "trouble": story.trouble,
    }


@dataclass(frozen=True, slots=True)
class _Troubles:
    """Problems of a pool that are reported in addition to the pool's conditions.

    - `held`: how many jobs have the most frequent hold among the holds in `_TROUBLES`.
    - `held_because`: the reason of the most frequent hold, in words.
    - `outlived`: how many Pods Ostler retired in the last hour because a container still ran after `poller` and
      `runner` had ended. Pods on gone nodes are not counted.
    """

    held: int
    held_because: str
    outlived: int


def _troubles(db: Connection, ids: Sequence[int], *, now: datetime) -> Mapping[int, _Troubles]:
    rows = db.execute(
        text("""
            SELECT pool_id, coalesce(h.jobs, 0) AS held, coalesce(h.why, '') AS held_because, o.pods AS outlived
            FROM unnest(CAST(:ids AS bigint[])) AS ids (pool_id)
            LEFT JOIN (
                SELECT DISTINCT ON (pool_id) pool_id, jobs, why FROM (
                    SELECT pool_id, coalesce(nullif(hold_detail, ''), hold_reason) AS why, count(*) AS jobs FROM jobs
                    WHERE pool_id = ANY(:ids) AND state = 'queued' AND hold_reason = ANY(:holds) GROUP BY pool_id, why
                ) holds ORDER BY pool_id, jobs DESC, why
            ) h USING (pool_id)
            CROSS JOIN LATERAL (
                SELECT count(*) AS pods FROM (
                    SELECT runner_pod_id, purpose, release_reason, created_at FROM claims c
                    WHERE c.pool_id = ids.pool_id ORDER BY id DESC LIMIT :latest
                ) c JOIN runner_pods p ON p.id = c.runner_pod_id
                WHERE c.purpose = 'retire' AND c.release_reason = :over AND c.created_at > :since
                  AND p.node_gone_at IS NULL
            ) o
        """),
        {
            "ids": list(ids),
            "holds": [str(each) for each in _TROUBLES],
            "latest": _LATEST,
            "over": OVER,
            "since": now - RECENT,
        },
    )
    return {row.pool_id: _Troubles(row.held, row.held_because, row.outlived) for row in rows}


def _state(pool: Row[Any]) -> str:
    if pool.deleted_at is not None:
        return "gone"
    if pool.draining:
        return "draining"
    if pool.paused:
        return "paused"
    if _holds(pool, "Degraded"):
        return "degraded"
    if _holds(pool, "Ready"):
        return "ready"
    return "starting" if any(map(_starts, pool.conditions)) else "not ready"


def _holds(pool: Row[Any], condition: str) -> bool:
    return any((each["type"], each["status"]) == (condition, "True") for each in pool.conditions)


def _starts(condition: Mapping[str, str]) -> bool:
    return (condition["type"], condition["reason"]) == ("Ready", "PodsStarting")


def _trouble(pool: Row[Any], rows: _Troubles) -> str:
    """Return the problem of a pool, or the progress of its drain. Return an empty text if there is no problem.

    If a pool has several problems, the first of these is returned: its conditions, held jobs, Pods that outlive their
    runners, an outdated runner.
    """
    if pool.draining:
        draining = [each for each in pool.conditions if (each["type"], each["status"]) == ("Draining", "True")]
        return "".join(f"{each['reason']}: {each['message']}" for each in draining)
    wrong = {("Degraded", "True"), ("Ready", "False")}
    found = [each for each in pool.conditions if (each["type"], each["status"]) in wrong and not _starts(each)]
    worst = sorted(found, key=lambda each: each["type"])[:1]  # `Degraded` is first and explains why `Ready` is false
    if worst:
        return f"{worst[0]['reason']}: {worst[0]['message']}"
    if rows.held:
        waits = "1 job waits" if rows.held == 1 else f"{rows.held} jobs wait"
        return f"JobsHeld: {waits}: {rows.held_because}"
    if rows.outlived >= OUTLIVED:
        return (
            f"PodsOutliveRunners: {rows.outlived} Pods ended poller and runner in the last hour while another "
            "container continued to run; Ostler deletes them"
        )
    outdated = [each["message"] for each in pool.conditions if each["type"] == "RunnerOutdated"]
    return f"RunnerOutdated: {outdated[0]}" if outdated else ""


def pool_names(db: Connection, name: str) -> list[int]:
    """Return the ids of the pools that have this name and are not deleted."""
    rows: Any = db.execute(
        text("SELECT id FROM pools WHERE name = :name AND deleted_at IS NULL ORDER BY id"), {"name": name}
    ).scalars()
    return list(rows)

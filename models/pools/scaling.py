"""Inputs of the autoscaler from the rows, and the record of its decisions.

Load is counted from Pods and claims, demand from queued jobs and budgets, what is usual from the claims of the last
hour. Nothing is locked: what it decides is bounded by the pool's own maximum, and undone by the next check.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection

from models.claims.matching import DISPATCHABLE, WEB_ALIVE
from models.db import epochs
from models.db.sql import text
from models.routing.usage import usage_of
from models.upstream import gates
from rules.claims.fairness import AccountView, Budget
from rules.pools.demand import Places, Queue

USUAL_EVERY = timedelta(seconds=60)
"""For how long what is usual is used again: it is made of minutes."""

MINUTES = 60
"""The minutes that it is made of, the last ones."""


@dataclass(frozen=True, slots=True)
class PoolRow:
    """A pool's row, with its Pods in numbers.

    `alive`: Pods that are neither terminal nor gone nor being retired, nor on a node that is gone. `load`: those of
    them that have a job, or had one. `idle`: there is one that polls and is free. `quiet_since`: when it was last
    scaled up, or first seen.
    """

    id: int
    uid: str
    alive: int
    load: int
    idle: bool
    quiet_since: datetime
    scaling: Mapping[str, Any] | None
    usual: int | None
    typical_at: datetime | None


PARTS = ("load", "queue", "usual", "min_warm", "max_replicas")
"""The numbers that a decision is made from, as they are kept."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The numbers of the last decision on a pool, its replicas among them."""

    namespace: str
    name: str
    parts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Trust:
    """Why nothing may change (`barred`), or why nothing may shrink (`doubt`); None where it may."""

    barred: str | None
    doubt: str | None


def trust(db: Connection, *, now: datetime) -> Trust:
    """Return what speaks against scaling at all: a closed gate, or rows that are older than the cluster."""
    epoch = epochs.read(db, now=now)
    if epoch.older_since is not None:
        return Trust(barred=epoch.doubt, doubt=epoch.doubt)
    closed = gates.shut(db)
    return Trust(barred=str(closed[0]) if closed else None, doubt=epoch.doubt)


def pool_rows(db: Connection, *, namespace: str, now: datetime) -> list[PoolRow]:
    """Return the pools of a namespace that are mirrored, with their Pods in numbers."""
    rows = db.execute(
        text("""
            SELECT p.id, p.uid, coalesce(found.alive, 0) AS alive, coalesce(found.load, 0) AS load,
                   EXISTS (SELECT FROM offers o JOIN web_instances w ON w.id = o.web_id AND w.beat_at > :web_alive
                           WHERE o.pool_id = p.id AND o.until > :now
                             AND NOT EXISTS (SELECT FROM claims c WHERE c.pod_uid = o.pod_uid
                                             AND (c.ended_at IS NULL OR c.delivered_at IS NOT NULL))) AS idle,
                   coalesce(p.scaled_up_at, p.created_at) AS quiet_since, p.scaling, p.typical_pods, p.typical_at
            FROM pools p LEFT JOIN LATERAL (
                SELECT count(*) AS alive, count(*) FILTER (WHERE seen.load) AS load
                FROM runner_pods r CROSS JOIN LATERAL (
                    SELECT coalesce(bool_or(c.purpose = 'job' AND (c.ended_at IS NULL OR c.delivered_at IS NOT NULL)),
                                    false) AS load,
                           coalesce(bool_or(c.purpose = 'retire' AND c.ended_at IS NULL), false) AS retiring
                    FROM claims c WHERE c.pod_uid = r.uid) seen
                WHERE r.pool_id = p.id AND r.gone_at IS NULL AND r.terminal_at IS NULL AND r.node_gone_at IS NULL
                  AND NOT seen.retiring) found
                ON true
            WHERE p.namespace = :namespace AND p.deleted_at IS NULL ORDER BY p.id
        """),
        {"namespace": namespace, "now": now, "web_alive": now - WEB_ALIVE},
    )
    return [PoolRow(*row) for row in rows]


def queues(db: Connection, pools: Mapping[int, Places]) -> list[Queue]:
    """Return what is queued and not held in these pools, by account; no more of it is counted than a pool has places.

    The index on dispatchable jobs is walked from account to account, so a deep queue costs no more than the places. A
    pool whose jobs are still being moved has none: which of them it serves is not known yet.
    """
    rows = db.execute(
        text(f"""
            SELECT pool.id AS pool_id, walked.account_id, counted.jobs, head.priority, head.queued_at
            FROM (SELECT id, places FROM unnest(CAST(:ids AS bigint[]), CAST(:places AS bigint[])) AS asked (id, places)
                  WHERE id NOT IN (SELECT id FROM pools WHERE rerouting_since IS NOT NULL)) pool
            CROSS JOIN LATERAL (
                WITH RECURSIVE walk AS (
                    (SELECT account_id FROM jobs WHERE pool_id = pool.id AND {DISPATCHABLE} ORDER BY account_id LIMIT 1)
                    UNION ALL
                    SELECT (SELECT account_id FROM jobs
                            WHERE pool_id = pool.id AND {DISPATCHABLE} AND account_id > walk.account_id
                            ORDER BY account_id LIMIT 1)
                    FROM walk WHERE walk.account_id IS NOT NULL)
                SELECT account_id FROM walk WHERE account_id IS NOT NULL) walked
            CROSS JOIN LATERAL (
                SELECT priority, queued_at FROM jobs
                WHERE pool_id = pool.id AND account_id = walked.account_id AND {DISPATCHABLE}
                ORDER BY priority DESC, queued_at, id LIMIT 1) head
            CROSS JOIN LATERAL (
                SELECT count(*) AS jobs FROM (
                    SELECT 1 FROM jobs WHERE pool_id = pool.id AND account_id = walked.account_id AND {DISPATCHABLE}
                    LIMIT greatest(pool.places, 0)) found) counted
        """),
        {"ids": list(pools), "places": [places.count for places in pools.values()]},
    )
    return [Queue(row.pool_id, row.account_id, row.jobs, row.priority, row.queued_at) for row in rows]


def accounts(db: Connection, account_ids: Sequence[int]) -> dict[int, AccountView]:
    """Return these accounts with their budgets and what they use of them."""
    usage = usage_of(db, account_ids)
    rows = db.execute(
        text("SELECT id, weight, budget_count, budget_vcpu, budget_memory FROM accounts WHERE id = ANY(:ids)"),
        {"ids": list(account_ids)},
    )
    return {
        row.id: AccountView(
            account_id=row.id,
            weight=row.weight,
            budget=Budget(count=row.budget_count, vcpu_millicores=row.budget_vcpu, memory_mib=row.budget_memory),
            usage=usage[row.id],
        )
        for row in rows
    }


def count_usual(db: Connection, pool_ids: Sequence[int], *, now: datetime) -> dict[int, int]:
    """Count what is usual in these pools, note it down, and return it by pool.

    Of each of the last 60 minutes the most claims that lived at a time; of these the 95th percentile, so that three
    minutes of an hour may be busier. Pools that another run counts right now are left to it.
    """
    locked = db.execute(
        text("SELECT id FROM pools WHERE id = ANY(:ids) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED"),
        {"ids": list(pool_ids)},
    )
    ids = list(locked.scalars())
    if not ids:
        return {}
    rows = db.execute(
        text("""
            WITH held AS (
                SELECT pool_id, created_at, ended_at FROM claims
                WHERE ended_at > :since AND purpose = 'job' AND pool_id = ANY(:ids)
                UNION ALL
                SELECT pool_id, created_at, NULL FROM claims
                WHERE ended_at IS NULL AND purpose = 'job' AND pool_id = ANY(:ids)
            ), changes AS (
                SELECT pool_id, greatest(created_at, CAST(:since AS timestamptz)) AS at, 1 AS change FROM held
                UNION ALL
                SELECT pool_id, ended_at, -1 FROM held WHERE ended_at IS NOT NULL
                UNION ALL
                SELECT id, CAST(:since AS timestamptz) + make_interval(mins => minute), 0
                FROM unnest(CAST(:ids AS bigint[])) AS pool (id), generate_series(0, :minutes - 1) AS minute
            ), running AS (
                SELECT pool_id, at,
                       sum(change) OVER (PARTITION BY pool_id ORDER BY at, change ROWS UNBOUNDED PRECEDING) AS held
                FROM changes WHERE at < :now
            ), peaks AS (
                SELECT pool_id, max(held) AS held FROM running
                GROUP BY pool_id, floor(extract(epoch FROM at - CAST(:since AS timestamptz)) / 60)
            ), counted AS (
                SELECT pool_id, percentile_disc(0.95) WITHIN GROUP (ORDER BY held) AS usual FROM peaks GROUP BY pool_id
            )
            UPDATE pools SET typical_pods = counted.usual, typical_at = :now
            FROM counted WHERE pools.id = counted.pool_id
            RETURNING pools.id, pools.typical_pods
        """),
        {"ids": ids, "since": now - timedelta(minutes=MINUTES), "minutes": MINUTES, "now": now},
    )
    return {row.id: row.typical_pods for row in rows}


def decisions(db: Connection) -> list[Decision]:
    """Return the last decision on every autoscaled pool, by namespace and name."""
    rows = db.execute(
        text("""
            SELECT namespace, name, replicas, scaling FROM pools
            WHERE autoscaled AND deleted_at IS NULL AND scaling IS NOT NULL ORDER BY namespace, name
        """)
    )
    return [
        Decision(
            row.namespace, row.name, {"replicas": row.replicas, **{part: row.scaling.get(part, 0) for part in PARTS}}
        )
        for row in rows
    ]


def note(
    db: Connection, pool_id: int, scaling: Mapping[str, Any], *, up: bool = False, down: bool = False, now: datetime
) -> None:
    """Note a decision down; `up` and `down` say that it is about to be carried out."""
    db.execute(
        text("""
            UPDATE pools SET scaling = CAST(:scaling AS jsonb),
                   scaled_up_at = CASE WHEN :up THEN CAST(:now AS timestamptz) ELSE scaled_up_at END,
                   scaled_down_at = CASE WHEN :down THEN CAST(:now AS timestamptz) ELSE scaled_down_at END
            WHERE id = :id
        """),
        {"id": pool_id, "scaling": json.dumps(scaling), "up": up, "down": down, "now": now},
    )

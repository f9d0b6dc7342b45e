"""Inputs of the autoscaler, and the record of its decisions.

The load is counted from Pods and claims. The demand is counted from queued jobs and budgets. The usual load is counted
from the claims of the last hour. These queries wait for no lock. Only `count_usual` locks rows, to store its result.
The pool's maximum bounds every decision, and a wrong decision is corrected by the next decision.
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
"""Maximum age of a computed usual load.

A shorter time has no benefit, because the usual load is computed from the peaks of whole minutes.
"""

MINUTES = 60
"""Number of past minutes that the usual load is computed from."""


@dataclass(frozen=True, slots=True)
class Load:
    """A pool's row with the numbers of its Pods.

    - `alive`: how many Pods are not terminal, not gone, not being retired, and not on a gone node.
    - `load`: how many of the `alive` Pods have or had a job. A persistent runner counts while it executes a job,
      even if only GitHub's list of runners shows the job.
    - `idle`: True if at least one Pod polls and is free, or if a persistent runner is online and executes no job.
    - `quiet_since`: the time of the last scale-up, or the creation time of the row if there was no scale-up.
    - `scaling`: the numbers of the last decision, or None if there was no decision.
    - `usual`: the usual load in Pods, computed at `typical_at`. None means that no usual load was computed yet.
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
"""Names of the inputs that are stored with a decision."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The last decision on a pool. `parts` maps `replicas` and the names in `PARTS` to their numbers."""

    namespace: str
    name: str
    parts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Trust:
    """Reasons against scaling.

    `barred` is a reason against every change of a pool's replicas. `doubt` is a reason against fewer replicas. A value
    of None means that there is no such reason.
    """

    barred: str | None
    doubt: str | None


def trust(db: Connection, *, now: datetime) -> Trust:
    """Return the reasons against scaling.

    A tripped gate is a reason against every change, and so is a database that is older than the cluster. An unconfirmed
    epoch is a reason against fewer replicas.
    """
    epoch = epochs.read(db, now=now)
    if epoch.older_since is not None:
        return Trust(barred=epoch.doubt, doubt=epoch.doubt)
    tripped = gates.shut(db)
    return Trust(barred=str(tripped[0]) if tripped else None, doubt=epoch.doubt)


def pool_rows(db: Connection, *, namespace: str, now: datetime) -> list[Load]:
    """Return the pools of a namespace whose object is not known to be gone, with the numbers of their Pods."""
    rows = db.execute(
        text("""
            SELECT p.id, p.uid, coalesce(found.alive, 0) AS alive, coalesce(found.load, 0) AS load,
                   CASE WHEN p.registers_in IS NULL THEN
                       EXISTS (SELECT FROM offers o JOIN web_instances w ON w.id = o.web_id AND w.beat_at > :web_alive
                               WHERE o.pool_id = p.id AND o.until > :now
                                 AND NOT EXISTS (SELECT FROM claims c WHERE c.pod_uid = o.pod_uid
                                                 AND (c.ended_at IS NULL OR c.delivered_at IS NOT NULL)))
                   ELSE
                       EXISTS (SELECT FROM claims c WHERE c.pool_id = p.id AND c.ended_at IS NULL
                                 AND c.purpose = 'register' AND c.state = 'delivered' AND c.runner_seen = 'online'
                                 AND c.runner_absent_at IS NULL
                                 AND NOT EXISTS (SELECT FROM executions e
                                                 WHERE e.claim_id = c.id AND e.ended_at IS NULL))
                   END AS idle,
                   coalesce(p.scaled_up_at, p.created_at) AS quiet_since, p.scaling, p.typical_pods, p.typical_at
            FROM pools p LEFT JOIN LATERAL (
                SELECT count(*) AS alive, count(*) FILTER (WHERE seen.load) AS load
                FROM runner_pods r CROSS JOIN LATERAL (
                    SELECT coalesce(bool_or(
                               (c.purpose = 'job' AND (c.ended_at IS NULL OR c.delivered_at IS NOT NULL))
                               OR (c.purpose = 'register' AND c.ended_at IS NULL AND c.runner_seen = 'busy')
                               OR (c.purpose = 'register' AND EXISTS (
                                   SELECT FROM executions e WHERE e.claim_id = c.id AND e.ended_at IS NULL))
                           ), false) AS load,
                           coalesce(bool_or(c.purpose = 'retire' AND c.ended_at IS NULL), false) AS retiring
                    FROM claims c WHERE c.pod_uid = r.uid) seen
                WHERE r.pool_id = p.id AND r.gone_at IS NULL AND r.terminal_at IS NULL AND r.node_gone_at IS NULL
                  AND NOT seen.retiring) found
                ON true
            WHERE p.namespace = :namespace AND p.deleted_at IS NULL ORDER BY p.id
        """),
        {"namespace": namespace, "now": now, "web_alive": now - WEB_ALIVE},
    )
    return [Load(*row) for row in rows]


def queues(db: Connection, pools: Mapping[int, Places]) -> list[Queue]:
    """Return the jobs that are queued and not held in these pools, by pool and account.

    `pools` maps the id of a pool to its places: how many more Pods of the pool can get a job. The jobs of one account
    are counted only up to the number of places. The query walks the index on dispatchable jobs from account to account,
    so that the number of places limits the cost of a long queue. A pool is left out while its jobs are still being
    moved, because it is not known yet which jobs the pool serves.
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
    """Return these accounts with their weights, their budgets and their present usage."""
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
    """Compute and store the usual load of these pools. Return the usual load by pool.

    The peak of a minute is the largest number of job claims that were live at once, or of jobs that persistent runners
    executed at once. The usual load is the 95th percentile of the peaks of the last 60 minutes. The three busiest
    minutes of the hour therefore do not change the usual load. Pools that another session has locked are skipped.
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
                UNION ALL
                SELECT c.pool_id, e.started_at, e.ended_at FROM claims c JOIN executions e ON e.claim_id = c.id
                WHERE c.purpose = 'register' AND c.pool_id = ANY(:ids)
                  AND (c.ended_at IS NULL OR c.ended_at > :since) AND (e.ended_at IS NULL OR e.ended_at > :since)
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


def record_decision(
    db: Connection, pool_id: int, scaling: Mapping[str, Any], *, up: bool = False, down: bool = False, now: datetime
) -> None:
    """Record a decision on a pool.

    `up` is True if the caller is about to scale up, and `down` is True if the caller is about to scale down.
    """
    db.execute(
        text("""
            UPDATE pools SET scaling = CAST(:scaling AS jsonb),
                   scaled_up_at = CASE WHEN :up THEN CAST(:now AS timestamptz) ELSE scaled_up_at END,
                   scaled_down_at = CASE WHEN :down THEN CAST(:now AS timestamptz) ELSE scaled_down_at END
            WHERE id = :id
        """),
        {"id": pool_id, "scaling": json.dumps(scaling), "up": up, "down": down, "now": now},
    )

"""What a reconcile decides, committed under the pool's lock: rows of the Pods to create, retire claims of those to go.

A row stands before its Pod is created, under the pool's lock, so that two keepers never create one too many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from models import gates
from models.releases import insert_retire
from models.sql import text
from ostler.upstreams import Upstream


@dataclass(frozen=True, slots=True)
class Plan:
    """What a reconcile does: (row id, Pod name, attempt id) to create, and retire claims that were inserted."""

    create: tuple[tuple[int, str, str], ...]
    retire: tuple[int, ...]


def plan_pods(
    db: Connection,
    *,
    pool_id: int,
    names: Sequence[tuple[str, str]],
    warm: Sequence[int],
    due_after: float,
    now: datetime,
    who: str,
) -> Plan:
    """Insert the rows that are missing, or retire claims for what is too many, under the pool's lock.

    `names` are unused (Pod name, attempt id) pairs, as many as may be created in this round. Of the surplus the
    rows that have no Pod yet go first, then warm Pods, at most max(5, 10 %) of them in a run. `warm` are the rows that
    hold no JIT by what the cluster shows; what Postgres says of them is asked again here.
    """
    db.execute(text("SELECT pg_advisory_xact_lock(:pool_id)"), {"pool_id": pool_id})
    pool = db.execute(
        text("SELECT namespace, replicas, template_hash, draining, deleted_at FROM pools WHERE id = :id"),
        {"id": pool_id},
    ).one()
    alive: int = db.execute(
        text("""
            SELECT count(*) FROM runner_pods p
            WHERE p.pool_id = :id AND p.gone_at IS NULL AND p.terminal_at IS NULL
              AND NOT EXISTS (SELECT FROM claims c WHERE c.pod_uid = p.uid AND c.ended_at IS NULL
                              AND c.purpose = 'retire')
        """),
        {"id": pool_id},
    ).scalar_one()
    wanted = 0 if pool.draining or pool.deleted_at is not None else pool.replicas
    for name, attempt in names[: max(0, wanted - alive)]:
        db.execute(
            text("""
                INSERT INTO runner_pods (pool_id, namespace, name, attempt_id, template_hash, created_at)
                VALUES (:pool_id, :namespace, :name, :attempt, :hash, :now)
            """),
            {
                "pool_id": pool_id, "namespace": pool.namespace, "name": name, "attempt": attempt,
                "hash": pool.template_hash, "now": now,
            },
        )  # fmt: skip
    surplus = max(0, alive - wanted)
    if surplus:
        surplus -= _give_up_rows(db, pool_id, surplus, now=now)
    if surplus and not gates.is_open(db, Upstream.KUBERNETES):
        surplus = 0  # a closed gate stops what deletes Pods, and nothing else here
    retired = _retire_surplus(db, pool_id, surplus, warm=warm, alive=alive, due_after=due_after, now=now, who=who)
    rows = db.execute(
        text("""
            SELECT id, name, attempt_id FROM runner_pods
            WHERE pool_id = :id AND uid IS NULL AND gone_at IS NULL ORDER BY id LIMIT :limit
        """),
        {"id": pool_id, "limit": len(names)},
    )
    return Plan(create=tuple((row.id, row.name, row.attempt_id) for row in rows), retire=retired)


def _give_up_rows(db: Connection, pool_id: int, surplus: int, *, now: datetime) -> int:
    """Give up rows whose Pod was never seen; one that turns up after all is taken up again by its attempt."""
    given_up = db.execute(
        text("""
            UPDATE runner_pods SET gone_at = :now WHERE id IN (
                SELECT id FROM runner_pods WHERE pool_id = :id AND uid IS NULL AND gone_at IS NULL
                ORDER BY id LIMIT :surplus FOR NO KEY UPDATE)
        """),
        {"id": pool_id, "surplus": surplus, "now": now},
    )
    return given_up.rowcount


def _retire_surplus(
    db: Connection, pool_id: int, surplus: int, *, warm: Sequence[int], alive: int, due_after: float, now: datetime,
    who: str,
) -> tuple[int, ...]:  # fmt: skip
    rows = db.execute(
        text("""
            SELECT p.id FROM runner_pods p
            WHERE p.pool_id = :id AND p.id = ANY(:warm) AND p.gone_at IS NULL AND p.terminal_at IS NULL
              AND p.uid IS NOT NULL AND NOT EXISTS (SELECT FROM claims c WHERE c.pod_uid = p.uid
                              AND (c.ended_at IS NULL OR c.delivered_at IS NOT NULL))
            ORDER BY p.id LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED
        """),
        {"id": pool_id, "warm": list(warm), "limit": min(surplus, budget_of(alive))},
    )
    claims = [
        insert_retire(db, row_id, now=now, who=who, why="the pool has too many Pods", due_after=due_after)
        for row_id in rows.scalars().all()
    ]
    return tuple(claim_id for claim_id in claims if claim_id is not None)


def budget_of(pods: int) -> int:
    """Return how many warm Pods one run may retire of those that are too many."""
    return max(5, pods // 10)

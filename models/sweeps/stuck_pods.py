"""Pods that no kubelet ends: the query for Pods that must be deleted by force, and the permission for the deletion."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection

from models.claims.releases import insert_retire
from models.db.sql import text
from models.state import claim_checks
from rules.pools.pool_plan import Why

LIMIT = 1000
"""Maximum number of Pods per tick. The next tick checks the other Pods."""

RETIRES_WITHIN = timedelta(seconds=60)
"""Age of a retire claim below which its Pod is not a candidate. The Pod itself shows whether it is overdue."""


@dataclass(frozen=True, slots=True)
class Stuck:
    """A Pod on a gone node, or a Pod with an old retirement. Its kubelet might never end the Pod.

    `retire_id` is the Pod's live retire claim, or None if the Pod has no live claim.
    """

    runner_pod_id: int
    uid: str
    namespace: str
    name: str
    retire_id: int | None


_STUCK = """
    SELECT p.id, p.uid, p.namespace, p.name, c.id AS retire_id
    FROM runner_pods p LEFT JOIN claims c ON c.pod_uid = p.uid AND c.ended_at IS NULL
    WHERE p.gone_at IS NULL AND p.uid IS NOT NULL
      AND (p.node_gone_at IS NOT NULL
           OR (c.purpose = 'retire' AND (c.created_at < :retired_before OR c.release_reason = :overdue)))
      -- The reconciler inserts the retire claim of a Pod that is over.
      AND (p.terminal_at IS NULL OR c.id IS NOT NULL)
      AND CASE WHEN c.id IS NOT NULL THEN c.purpose = 'retire' AND c.force_deleted_at IS NULL
               -- The sweep `finished_jobs` handles a Pod that got a JIT.
               ELSE NOT EXISTS (SELECT FROM claims d WHERE d.pod_uid = p.uid AND d.delivered_at IS NOT NULL) END
"""


def _given(now: datetime) -> dict[str, object]:
    return {"retired_before": now - RETIRES_WITHIN, "overdue": str(Why.OVERDUE)}


def stuck_pods(db: Connection, *, now: datetime) -> list[Stuck]:
    """Return the Pods on gone nodes that have a live retire claim, or that have no live claim and never received a JIT.

    Other Pods with a live retire claim are returned if the claim is older than `RETIRES_WITHIN`, or if it was inserted
    because the Pod was overdue. The order is random, so that Pods that cannot be deleted yet are not always the first
    (law L14).
    """
    rows = db.execute(text(f"{_STUCK} ORDER BY random() LIMIT :limit"), {"limit": LIMIT, **_given(now)})
    return [Stuck(*row) for row in rows]


def is_stuck(db: Connection, runner_pod_id: int, *, now: datetime) -> bool:
    """Return whether `stuck_pods` would return a Pod, for an explanation."""
    found = db.execute(text(f"{_STUCK} AND p.id = :id"), {"id": runner_pod_id, **_given(now)})
    return found.one_or_none() is not None


def allow_force(db: Connection, pod: Stuck, *, why: str, due_after: float, now: datetime, who: str) -> int | None:
    """Allow the forced deletion of a Pod, and insert its retire claim if the Pod has none.

    Return the id of the retire claim. Return None if the Pod has changed since `pod` was read, or if `insert_retire`
    inserts no claim. `due_after` is the time in seconds until the next step of a new retire claim is due.
    """
    db.execute(text("SELECT 1 FROM runner_pods WHERE id = :id FOR NO KEY UPDATE"), {"id": pod.runner_pod_id})
    row = db.execute(text(f"{_STUCK} AND p.id = :id"), {"id": pod.runner_pod_id, **_given(now)}).one_or_none()
    if row is None or Stuck(*row) != pod:
        return None
    retire_id = pod.retire_id
    if retire_id is None:
        retire_id = insert_retire(db, pod.runner_pod_id, now=now, who=who, why=why, due_after=due_after)
    return retire_id if claim_checks.allow_force(db, retire_id, now=now) else None

"""Pods on gone nodes: selection of the Pods that have to be deleted by force, and permission to do so."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from models.claims.releases import insert_retire
from models.db.sql import text
from models.tables import claim_checks

LIMIT = 1000
"""Maximum number of rows per tick. The next tick takes the rest."""


@dataclass(frozen=True, slots=True)
class Stuck:
    """A Pod whose kubelet is gone and cannot end it.

    `retire_id` is the Pod's live retire claim, or None if the Pod has no live claim.
    """

    runner_pod_id: int
    uid: str
    name: str
    retire_id: int | None


_STUCK = """
    SELECT p.id, p.uid, p.name, c.id AS retire_id
    FROM runner_pods p LEFT JOIN claims c ON c.pod_uid = p.uid AND c.ended_at IS NULL
    WHERE p.node_gone_at IS NOT NULL AND p.gone_at IS NULL AND p.uid IS NOT NULL
      -- one that is over gets its retire claim from the reconciler
      AND (p.terminal_at IS NULL OR c.id IS NOT NULL)
      AND CASE WHEN c.id IS NOT NULL THEN c.purpose = 'retire' AND c.force_deleted_at IS NULL
               -- one that was given a JIT is `finished_jobs`'
               ELSE NOT EXISTS (SELECT FROM claims d WHERE d.pod_uid = p.uid AND d.delivered_at IS NOT NULL) END
"""


def stuck_pods(db: Connection) -> list[Stuck]:
    """Return Pods on gone nodes that are being retired, or can be retired because no JIT was ever delivered to them.

    The order is random, so that Pods that have to wait are not always the first (L14).
    """
    return [Stuck(*row) for row in db.execute(text(f"{_STUCK} ORDER BY random() LIMIT :limit"), {"limit": LIMIT})]


def allow_force(db: Connection, pod: Stuck, *, why: str, due_after: float, now: datetime, who: str) -> int | None:
    """Allow the forced deletion of a Pod, and insert its retire claim if the Pod has none.

    Return the retire claim's id, or None if the Pod has changed since it was read. `due_after` is the time in seconds
    until the claim's next step is due.
    """
    db.execute(text("SELECT 1 FROM runner_pods WHERE id = :id FOR NO KEY UPDATE"), {"id": pod.runner_pod_id})
    row = db.execute(text(f"{_STUCK} AND p.id = :id"), {"id": pod.runner_pod_id}).one_or_none()
    if row is None or Stuck(*row) != pod:
        return None
    retire_id = pod.retire_id
    if retire_id is None:
        retire_id = insert_retire(db, pod.runner_pod_id, now=now, who=who, why=why, due_after=due_after)
    return retire_id if claim_checks.allow_force(db, retire_id, now=now) else None

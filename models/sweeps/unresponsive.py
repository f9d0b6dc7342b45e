"""Unresponsive Pods that polled at least once.

Such a Pod has no live claim and no current offer, and no JIT was ever delivered to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection

from models.claims.matching import WEB_ALIVE
from models.claims.releases import insert_retire
from models.db.sql import text

POLL_NOTED_EVERY = timedelta(seconds=60)
"""Minimum time between two writes of `polled_at`, the time of a Pod's last recorded poll."""


@dataclass(frozen=True, slots=True)
class Quiet:
    """An unresponsive Pod.

    `heard_at` is the latest time at which the Pod might have polled. `grace` is the `startTimeout` of its pool in
    seconds.
    """

    runner_pod_id: int
    uid: str
    namespace: str
    name: str
    heard_at: datetime
    grace: float


_QUIET = """
    FROM runner_pods p JOIN pools ON pools.id = p.pool_id
    WHERE p.uid = ANY(:uids) AND p.gone_at IS NULL AND p.terminal_at IS NULL
      -- A Pod that never polled is left to the reconciler, which counts it as a failed start.
      AND p.first_polled_at IS NOT NULL
      AND NOT EXISTS (SELECT FROM offers o WHERE o.pod_uid = p.uid AND o.until > :now)
      -- The stamp of an ended claim might have cut the Pod's connection to Ostler. The Pod gets time to poll again.
      AND NOT EXISTS (SELECT FROM claims c WHERE c.pod_uid = p.uid
                      AND (c.ended_at IS NULL OR c.delivered_at IS NOT NULL
                           OR c.ended_at + make_interval(secs => pools.start_timeout) > :now))
"""


def quiet_pods(db: Connection, uids: Sequence[str], *, now: datetime) -> list[Quiet]:
    """Return the Pods with these UIDs that have no current offer and no live claim, and that never received a JIT.

    A Pod is left out if it never polled, if it is terminal, or if one of its claims ended less than the `startTimeout`
    of its pool ago.
    """
    rows = db.execute(
        text(f"""
            SELECT p.id, p.uid, p.namespace, p.name, greatest(p.created_at, p.polled_at + :noted),
                   pools.start_timeout
            {_QUIET} ORDER BY p.id
        """),
        {"uids": list(uids), "noted": POLL_NOTED_EVERY, "now": now},
    )
    return [Quiet(*row) for row in rows]


def retire_quiet(db: Connection, pod: Quiet, *, why: str, due_after: float, now: datetime, who: str) -> int | None:
    """Insert the retire claim of an unresponsive Pod, and return the id of the claim.

    Return None if the Pod has polled or was claimed since `pod` was read, or if `insert_retire` inserts no claim.
    `due_after` is the time in seconds until the claim's next step is due.
    """
    db.execute(text("SELECT 1 FROM runner_pods WHERE id = :id FOR NO KEY UPDATE"), {"id": pod.runner_pod_id})
    if pod not in quiet_pods(db, [pod.uid], now=now):
        return None
    return insert_retire(db, pod.runner_pod_id, now=now, who=who, why=why, due_after=due_after)


def web_beats(db: Connection, *, since: datetime, now: datetime) -> bool:
    """Return True if a web process is alive now and was already running before `since`.

    If the result is False, the absence of polls does not prove that a Pod is unresponsive.
    """
    found = db.execute(
        text("SELECT 1 FROM web_instances WHERE beat_at > :alive AND started_at < :since LIMIT 1"),
        {"alive": now - WEB_ALIVE, "since": since},
    ).one_or_none()
    return found is not None

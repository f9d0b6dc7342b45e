"""Recorded evidence about a Pod that is to be deleted, un-stamped or removed by a scale-down.

`rules.claims.busy` decides from evidence whether the Pod might be busy. This module reads the evidence that is in
Postgres. A Pod without a row is treated as a Pod with a delivered claim, because nothing proves that the Pod is free.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from models.db.sql import text


@dataclass(frozen=True, slots=True)
class Recorded:
    """The recorded evidence about one Pod, identified by its UID.

    - `any_delivered`: True if at least one claim of the Pod was delivered.
    - `runners_removed`: True if JITs were delivered to the Pod and all their runners are gone from GitHub.
    - `executed`: True if a runner of the Pod is known to have executed a job.
    - `poller_exit_code`: the exit code of container `poller`, or None if the code is not known.
    - `terminal`: True if the Pod is recorded as over.
    - `gone`: True if the Pod is recorded as gone.
    """

    any_delivered: bool
    runners_removed: bool = False
    executed: bool = False
    poller_exit_code: int | None = None
    terminal: bool = False
    gone: bool = False


UNKNOWN = Recorded(any_delivered=True)
"""Evidence about a Pod without a row. Such a Pod is treated as a Pod with a delivered claim."""

_RECORDED = text("""
    SELECT coalesce(c.delivered, false), coalesce(c.delivered AND NOT c.left_over, false), coalesce(c.executed, false),
           p.poller_exit_code, p.terminal_at IS NOT NULL, p.gone_at IS NOT NULL
    FROM runner_pods p LEFT JOIN LATERAL (
        SELECT bool_or(c.delivered_at IS NOT NULL) AS delivered,
               bool_or(c.delivered_at IS NOT NULL AND NOT coalesce(m.removed AND NOT m.left_over, false)) AS left_over,
               bool_or(c.state = 'executing' OR EXISTS (SELECT FROM executions e WHERE e.claim_id = c.id)) AS executed
        FROM claims c LEFT JOIN LATERAL (
            SELECT bool_or(outcome = 'removed') AS removed, bool_or(outcome IN ('open', 'minted')) AS left_over
            FROM mint_attempts WHERE claim_id = c.id) m ON true
        WHERE c.pod_uid = p.uid AND (CAST(:claim AS bigint) IS NULL OR c.id = :claim)) c ON true
    WHERE p.uid = :uid
""")


def recorded(db: Connection, pod_uid: str, *, claim_id: int | None = None) -> Recorded:
    """Return the recorded evidence about a Pod.

    If `claim_id` is given, only the deliveries and executions of this claim count.
    """
    row = db.execute(_RECORDED, {"uid": pod_uid, "claim": claim_id}).one_or_none()
    return UNKNOWN if row is None else Recorded(*row)

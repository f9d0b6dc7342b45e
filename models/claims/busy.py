"""Recorded evidence about a Pod that is to be deleted, un-stamped or scaled away.

This is the part of the evidence for `rules.claims.busy` that Postgres has. A Pod without a row counts as delivered,
because nothing proves that it is free.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from models.db.sql import text


@dataclass(frozen=True, slots=True)
class Recorded:
    """The records about one Pod UID.

    - `any_delivered`: one of its claims was delivered.
    - `runners_removed`: GitHub no longer has any of the runners whose JITs were delivered to it.
    - `executed`: one of its runners is known to have executed a job.
    - `poller_exit_code`: the exit code of its poller, or None if it is not known.
    - `terminal`, `gone`: True once the cluster has shown it. Neither becomes False again.
    """

    any_delivered: bool
    runners_removed: bool = False
    executed: bool = False
    poller_exit_code: int | None = None
    terminal: bool = False
    gone: bool = False


UNKNOWN = Recorded(any_delivered=True)
"""Stands for a Pod without a row, which counts as delivered."""

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
    """Return the records about a Pod. With `claim_id`, only the deliveries and executions of that claim count."""
    row = db.execute(_RECORDED, {"uid": pod_uid, "claim": claim_id}).one_or_none()
    return UNKNOWN if row is None else Recorded(*row)

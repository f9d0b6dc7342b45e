"""Recorded evidence about a Pod that is to be deleted, un-stamped or scaled away.

Its part of the evidence of `rules.claims.busy`. Of a Pod without a row nothing is known, and that is doubt, not
innocence.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from models.db.sql import text


@dataclass(frozen=True, slots=True)
class Recorded:
    """What is recorded of one Pod UID.

    `runners_removed`: GitHub has none of the runners any more whose JITs were delivered to it. `executed`: one of its
    runners was seen to execute. `terminal` and `gone` were shown by the cluster, and stick.
    """

    any_delivered: bool
    runners_removed: bool = False
    executed: bool = False
    poller_exit_code: int | None = None
    terminal: bool = False
    gone: bool = False


UNKNOWN = Recorded(any_delivered=True)
"""Of a Pod that has no row."""

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
    """Return what is recorded of a Pod; with `claim_id` only what that claim gave to it."""
    row = db.execute(_RECORDED, {"uid": pod_uid, "claim": claim_id}).one_or_none()
    return UNKNOWN if row is None else Recorded(*row)

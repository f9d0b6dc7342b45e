"""Queries for runner Pods: one Pod with its claims and their events."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row

from models.claims import pod_ends
from models.db.sql import text

MOST_CLAIMS = 100
MOST_EVENTS = 500
MOST_EXECUTIONS = 100

_COLUMNS = """
    p.id, p.namespace, p.name, p.uid, p.pool_id, (SELECT name FROM pools WHERE id = p.pool_id) AS pool, p.created_at,
    p.first_polled_at, p.polled_at, p.poller_ended_at, p.terminal_at AS over_at, p.node_gone_at, p.gone_at,
    pod_end.*
"""


@dataclass(frozen=True, slots=True)
class PodStory:
    """A Pod with its claims, the events of these claims, and the jobs that its runner began to execute.

    Claims and events begin with the oldest row, the jobs with the newest.
    """

    pod: Row[Any]
    claims: Sequence[Row[Any]]
    events: Sequence[Row[Any]]
    executions: Sequence[Row[Any]]


def pod_story(db: Connection, name_or_uid: str, *, accounts: Collection[int] | None = None) -> PodStory | None:
    """Return the Pod with this UID. If no Pod has this UID, return the newest Pod with this name, or None.

    If `accounts` is given, only claims of these accounts are read. The result is then None if the Pod has no claim of
    these accounts.
    """
    pod = db.execute(
        text(f"""
            SELECT {_COLUMNS} FROM runner_pods p {pod_ends.SEEN} WHERE p.uid = :it OR p.name = :it
            ORDER BY (p.uid = :it) IS TRUE DESC, p.id DESC LIMIT 1
        """),
        {"it": name_or_uid, "seen": None if accounts is None else list(accounts)},
    ).one_or_none()
    if pod is None:
        return None
    claims = db.execute(
        text("""
            SELECT id, purpose, state, job_id, runner_name, created_at, delivered_at, ended_at, end_reason,
                   release_reason, last_error
            FROM claims
            WHERE runner_pod_id = :id
              AND (CAST(:accounts AS bigint[]) IS NULL OR account_id = ANY(CAST(:accounts AS bigint[])))
            ORDER BY id LIMIT :most
        """),
        {"id": pod.id, "most": MOST_CLAIMS, "accounts": None if accounts is None else list(accounts)},
    ).all()
    if accounts is not None and not claims:
        return None
    events = db.execute(
        text("""
            SELECT claim_id, at, transition, from_state, to_state, who, why, latency_ms FROM claim_events
            WHERE claim_id = ANY(:claims) ORDER BY id LIMIT :most
        """),
        {"claims": [claim.id for claim in claims], "most": MOST_EVENTS},
    ).all()
    executions = db.execute(
        text("""
            SELECT job_id, claim_id, runner_name, started_at, ended_at FROM executions
            WHERE claim_id = ANY(:claims)
              AND (CAST(:accounts AS bigint[]) IS NULL OR account_id = ANY(CAST(:accounts AS bigint[])))
            ORDER BY id DESC LIMIT :most
        """),
        {
            "claims": [claim.id for claim in claims],
            "most": MOST_EXECUTIONS,
            "accounts": None if accounts is None else list(accounts),
        },
    ).all()
    return PodStory(pod, claims, events, executions)

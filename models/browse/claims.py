"""Queries for claims: their list, and one claim with its events and mint attempts. The JIT is never read."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row

from models.browse.page import OF_ACCOUNTS, Order, Page, read
from models.claims import pod_ends
from models.db.sql import text
from models.state.claim_leases import WAITS
from rules.claims.machines import ClaimState, Purpose
from rules.claims.mint_questions import why_postponed
from rules.claims.pod_ends import describe

MOST_EVENTS = 500

_COLUMNS = """
    t.id, t.purpose, t.state, t.stamp, t.job_id,
    CASE WHEN t.purpose = 'register' THEN
        (SELECT max(e.job_id) FROM executions e
         WHERE e.claim_id = t.id AND e.ended_at IS NULL AND e.account_id = t.account_id) END AS executes_job_id,
    t.account_id,
    (SELECT login FROM accounts WHERE id = t.account_id) AS account, t.pool_id,
    (SELECT name FROM pools WHERE id = t.pool_id) AS pool,
    p.name AS pod, t.pod_uid, CAST(t.vcpu AS float8) / 1000 AS vcpu, CAST(t.memory AS float8) / 1024 AS memory_gib,
    t.runner_name,
    t.release_reason, t.last_error, t.created_at, t.changed_at, t.minted_at, t.delivered_at, t.spare_since,
    t.ended_at, t.end_reason,
    pod_end.*
"""
_JOINED = f"JOIN runner_pods p ON p.id = t.runner_pod_id {pod_ends.SEEN}"

_OF_POD = "t.runner_pod_id = ANY(ARRAY(SELECT id FROM runner_pods WHERE name = :value OR uid = :value))"


@dataclass(frozen=True, slots=True)
class ClaimFilter:
    """Filter for claims. None in a field selects all values of that field."""

    state: ClaimState | None = None
    live: bool | None = None
    purpose: Purpose | None = None
    account_id: int | None = None
    pool_id: int | None = None
    job_id: int | None = None
    pod: str | None = None
    """The name or the UID of a Pod."""
    accounts: Collection[int] | None = None
    """The ids of the accounts that the caller may see. None means all accounts."""


@dataclass(frozen=True, slots=True)
class ClaimStory:
    """A claim with its events and its mint attempts. Both lists begin with the oldest row."""

    claim: Row[Any]
    events: Sequence[Row[Any]]
    attempts: Sequence[Row[Any]]


def list_claims(db: Connection, wanted: ClaimFilter, *, after: int | None = None, limit: int) -> Page:
    """Return one page of claims, newest first."""
    conditions: dict[str, Any] = {
        "t.state = :value": wanted.state,
        "t.purpose = :value": wanted.purpose,
        "t.account_id = :value": wanted.account_id,
        "t.pool_id = :value": wanted.pool_id,
        "t.job_id = :value": wanted.job_id,
        _OF_POD: wanted.pod,
        OF_ACCOUNTS: None if wanted.accounts is None else list(wanted.accounts),
    }
    live = wanted.live
    if live is None and wanted.state is not None and wanted.state is not ClaimState.ENDED:
        live = True  # lets Postgres use the partial index
    table_conditions = {"t.ended_at IS NULL": True if live else None, "t.ended_at IS NOT NULL": live is False or None}
    return read(
        db,
        _COLUMNS,
        source=f"claims t {_JOINED}",
        conditions=conditions | table_conditions,
        order=Order.NEWEST,
        after=after,
        limit=limit,
        joins={"seen": None if wanted.accounts is None else list(wanted.accounts)},
    )


def claim_story(db: Connection, claim_id: int, *, accounts: Collection[int] | None = None) -> ClaimStory | None:
    """Return a claim with its events and mint attempts, or None if there is no such claim.

    If `accounts` is given, the result is None for claims of other accounts and for retire claims.
    """
    select = f"SELECT {_COLUMNS} FROM claims t {_JOINED} WHERE t.id = :id"
    claim = db.execute(
        text(select), {"id": claim_id, "seen": None if accounts is None else list(accounts)}
    ).one_or_none()
    if claim is None or (accounts is not None and claim.account_id not in accounts):
        return None
    attempts = db.execute(
        text("""
            SELECT runner_name, outcome, created_at, closed_at FROM mint_attempts
            WHERE claim_id = :id ORDER BY id LIMIT :most
        """),
        {"id": claim_id, "most": MOST_EVENTS},
    ).all()
    return ClaimStory(claim, claim_events(db, [claim_id]), attempts)


@dataclass(frozen=True, slots=True)
class Step:
    """The present step of a claim: the next try, its error, and the rate limit that makes it wait. None: no such."""

    due_at: datetime | None
    error: str | None
    postponed: str | None


def step_of(db: Connection, claim_id: int) -> Step:
    """Return the present step of a claim."""
    row = db.execute(
        text("""
            SELECT coalesce(leased_until, due_at) AS due_at, last_error, purpose = 'job' AND state = 'claimed' AS mints,
                   (SELECT outcome FROM mint_attempts WHERE claim_id = c.id ORDER BY id DESC LIMIT 1) AS attempt
            FROM claims c WHERE id = :id
        """),
        {"id": claim_id},
    ).one()
    if row.last_error != WAITS:
        return Step(row.due_at, row.last_error, None)
    return Step(row.due_at, None, why_postponed(mints=row.mints, attempt=row.attempt))


def shown(claim: Row[Any]) -> dict[str, Any]:
    """Return a row of a claim as the API and the commands show it: with a sentence about the end of its Pod."""
    return {**claim._mapping, "pod_end": describe(pod_ends.end_of(claim))}


def claim_events(db: Connection, claims: Sequence[int]) -> Sequence[Row[Any]]:
    """Return the events of the claims with these ids, oldest first. At most the newest `MOST_EVENTS` are returned."""
    if not claims:
        return ()
    newest = db.execute(
        text("""
            SELECT claim_id, at, transition, from_state, to_state, who, why, task_id, attempt, latency_ms
            FROM claim_events
            WHERE claim_id = ANY(:claims) ORDER BY id DESC LIMIT :most
        """),
        {"claims": list(claims), "most": MOST_EVENTS},
    ).all()
    return newest[::-1]

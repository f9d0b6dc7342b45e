"""Transitions of jobs: the condition, the columns and the reason of each.

The table in `rules.claims.machines` defines the transitions, and `models.state.transitions` applies them. Nothing
changes if the job is in a state without this transition, or does not satisfy the function's own condition.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from models.state.jobs import Job
from models.state.transitions import move_jobs, move_many_jobs
from rules.intake.events import WorkflowJobEvent
from rules.routing.holds import HoldReason
from rules.routing.routing import Route

_NO_HOLD = ", hold_reason = NULL, hold_detail = NULL, not_before = NULL"

_QUEUED_NOW = ", queued_at = :now"
"""The days that an environment's approval took are not a wait, give no place in the queue and reserve no budget."""


def make_ready(db: Connection, job_id: int, to: Route, *, now: datetime, who: str, why: str) -> bool:
    """Queue a waiting job in its pool, or with its hold. Returns False if the job does not wait."""
    sets = (
        _QUEUED_NOW
        + """, pool_id = CAST(:pool AS bigint), hold_reason = CAST(:hold AS text),
        hold_detail = CAST(:detail AS text), not_before = CAST(:not_before AS timestamptz)"""
    )
    given: dict[str, Any] = {"pool": to.pool_id, "hold": to.hold, "detail": to.detail, "not_before": to.not_before}
    return bool(move_jobs(db, "job_ready", [job_id], now=now, who=who, why=why, sets=sets, **given))


def make_ready_without_pool(db: Connection, job_id: int, *, now: datetime, who: str, why: str) -> None:
    """Queue a waiting job without a pool. `rematch` routes it."""
    sets = _QUEUED_NOW + ", pool_id = NULL, hold_reason = :hold"
    move_jobs(db, "job_ready", [job_id], now=now, who=who, why=why, sets=sets, hold=HoldReason.NO_POOL)


def claim(db: Connection, job_ids: Sequence[int], *, now: datetime, who: str, why: str) -> None:
    """Record that queued jobs have a claim."""
    move_many_jobs(db, "job_claim", job_ids, now=now, who=who, why=why)


def run(db: Connection, job_id: int, *, now: datetime, who: str, why: str) -> None:
    """Record that a job runs, although no webhook says so. Its hold is kept."""
    move_jobs(db, "job_run", [job_id], now=now, who=who, why=why)


def start(db: Connection, job_id: int, *, started: datetime, now: datetime, who: str, why: str) -> None:
    """Record that a webhook names the time at which a job was started. Its hold ends."""
    sets = f"{_NO_HOLD}, started_at = :started"
    move_jobs(db, "job_run", [job_id], now=now, who=who, why=why, sets=sets, started=started)


def requeue(db: Connection, job_id: int, *, claimed: bool = False, now: datetime, who: str, why: str) -> Sequence[Job]:
    """Queue a job again, with its age. With `claimed`, the job must be `claimed`. Returns the job if it moved."""
    guard = "AND state = 'claimed'" if claimed else ""
    return move_jobs(db, "job_requeue", [job_id], now=now, who=who, why=why, guard=guard)


def finish(
    db: Connection,
    event: WorkflowJobEvent,
    *,
    ended: datetime,
    started: datetime | None,
    now: datetime,
    who: str,
    why: str,
) -> None:
    """Complete a job as its webhook `completed` says. Its hold ends. `started` fills a time that is missing."""
    sets = f"""{_NO_HOLD}, conclusion = :conclusion, completed_at = :ended,
        started_at = coalesce(t.started_at, CAST(:started AS timestamptz))"""
    given: dict[str, Any] = {"conclusion": event.conclusion, "ended": ended, "started": started}
    move_jobs(db, "job_finish", [event.job_id], now=now, who=who, why=why, sets=sets, **given)


def finish_now(db: Connection, job_id: int, *, conclusion: str | None, now: datetime, who: str, why: str) -> bool:
    """Complete a job as GitHub answered, without the webhook. Returns False if the job is completed already."""
    sets = ", conclusion = :conclusion, completed_at = :now, hold_reason = NULL"
    return bool(move_jobs(db, "job_finish", [job_id], now=now, who=who, why=why, sets=sets, conclusion=conclusion))

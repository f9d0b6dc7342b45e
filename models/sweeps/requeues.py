"""Requests of people to queue a job again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from models.db.sql import text
from models.state import changes, claim_transitions, job_holds
from models.sweeps.rematch import route_at_once
from rules.changes import Author, ChangeKind
from rules.claims.machines import ClaimState, JobState
from rules.claims.requeues import Requeue, judge, sentence
from rules.routing.holds import HoldReason

MOST_NAME = 200
"""Number of characters of the name of a job that a change shows. Users choose the names of jobs."""


@dataclass(frozen=True, slots=True)
class Requeued:
    """Result of a request.

    `wakes` is the pool whose matcher the caller wakes. `releases` is the claim whose release the caller sends. Both
    messages are hints: without them, sweeps continue the work (law L6).
    """

    action: Requeue
    message: str
    wakes: int | None = None
    releases: int | None = None


def requeue(db: Connection, job_id: int, *, by: Author) -> Requeued | None:
    """Queue a job again as far as this is safe, and record the change. Return None if there is no such job.

    The job's row is locked first, so that no matcher claims the job and no binding gives its claim another job
    meanwhile.
    """
    job = db.execute(
        text("SELECT id, repository, name, state, hold_reason FROM jobs WHERE id = :id FOR NO KEY UPDATE"),
        {"id": job_id},
    ).one_or_none()
    if job is None:
        return None
    claim = db.execute(
        text("SELECT id, state FROM claims WHERE job_id = :id AND ended_at IS NULL FOR NO KEY UPDATE"), {"id": job_id}
    ).one_or_none()
    hold = None if job.hold_reason is None else HoldReason(job.hold_reason)
    action = judge(JobState(job.state), hold=hold, claim=None if claim is None else ClaimState(claim.state))
    before: dict[str, Any] = {"hold": hold}
    after, wakes, released = before, None, None
    if action is Requeue.ROUTE:
        to = route_at_once(db, job_id, now=by.at)
        after, wakes = {"hold": to.hold}, to.pool_id if to.hold is None else None
    elif action is Requeue.ASK:
        job_holds.ask_later(db, [job_id], ask_after=by.at)
        before, after = {"asks_github": False}, {"asks_github": True}
    elif action is Requeue.RELEASE and claim is not None:
        reason = f"{by} asked to queue the job again"
        if claim_transitions.request_release(db, claim.id, reason=reason, now=by.at, who=str(by)):
            before, after, released = {"claim": claim.state}, {"claim": ClaimState.RELEASING}, claim.id
    name = f"{job.repository}: {job.name}"[:MOST_NAME]
    changes.record(db, ChangeKind.JOB, name, object_id=job_id, before=before, after=after, by=by)
    return Requeued(action, sentence(action, hold=after.get("hold")), wakes, released)

"""Spans of finished jobs, built after the fact from the events of the jobs and of their claims.

Each event has the time of a transition and the time that was spent in the former state. The ids of traces and spans
follow from the ids of the rows, so a job that is exported twice has the same spans.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any

from sqlalchemy import Connection, Row

from models.db.sql import text

SETTLED = timedelta(seconds=30)
"""Age of an event when it is exported. A transaction can commit an event this long after its time."""
CLAIM_WITHIN = timedelta(minutes=5)
"""A job whose claim is live waits this long for the end of the claim. After this time, it is exported without it."""
LONGEST_TEXT = 256


@dataclass(frozen=True, slots=True)
class Span:
    """A span of a trace. The ids are hexadecimal. The root of a trace has no parent. `failed` marks a failed job."""

    trace: str
    id: str
    parent: str | None
    name: str
    begin: datetime
    end: datetime
    attributes: Mapping[str, str | int] = field(default_factory=dict)
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Finished:
    """A job that ended: its id, the id of the event of its end, and the time of this event."""

    event_id: int
    job_id: int
    at: datetime


def finished(db: Connection, *, since: datetime, after: int, until: datetime, limit: int) -> Sequence[Finished]:
    """Return jobs whose end was recorded from `since` until `until`, the first ones by time and event.

    An event at the time `since` is left out if its id is not above `after`. The jobs end before the first one that
    waits for the end of its claim, because a caller continues after the last of them.
    """
    rows = db.execute(
        text("""
            SELECT id, job_id, at,
                   at > :until - CAST(:within AS interval)
                   AND EXISTS (SELECT FROM claims c WHERE c.job_id = e.job_id AND c.ended_at IS NULL) AS waits
            FROM job_events e
            WHERE at >= :since AND at < :until AND to_state = 'completed' AND (at, id) > (:since, :after)
            ORDER BY at, id LIMIT :limit
        """),
        {"since": since, "after": after, "until": until, "within": CLAIM_WITHIN, "limit": limit},
    )
    return [Finished(row.id, row.job_id, row.at) for row in takewhile(lambda row: not row.waits, rows)]


def spans(db: Connection, job_ids: Sequence[int]) -> Sequence[Span]:
    """Return the spans of these jobs: of each job, of its claims, and of each state of both. Deleted jobs have none."""
    ids = {"ids": list(job_ids)}
    jobs = db.execute(
        text("""
            SELECT j.id, j.run_id, j.run_attempt, j.name, j.workflow_name, j.repository, j.conclusion, j.queued_at,
                   j.completed_at, a.login, p.name AS pool, e.runner_name
            FROM jobs j JOIN accounts a ON a.id = j.account_id LEFT JOIN pools p ON p.id = j.pool_id
            LEFT JOIN executions e ON e.job_id = j.id
            WHERE j.id = ANY(:ids) AND j.completed_at IS NOT NULL
        """),
        ids,
    ).all()
    states: dict[int, list[Row[Any]]] = {}
    for event in db.execute(
        text("SELECT * FROM job_events WHERE job_id = ANY(:ids) AND latency_ms IS NOT NULL ORDER BY id"), ids
    ):
        states.setdefault(event.job_id, []).append(event)
    claims: dict[int, list[Row[Any]]] = {}
    for claim in db.execute(
        text("""
            SELECT c.id, c.job_id, c.created_at, c.ended_at, c.end_reason, r.name AS pod
            FROM claims c JOIN runner_pods r ON r.id = c.runner_pod_id
            WHERE c.job_id = ANY(:ids) AND c.ended_at IS NOT NULL ORDER BY c.id
        """),
        ids,
    ):
        claims.setdefault(claim.job_id, []).append(claim)
    steps: dict[int, list[Row[Any]]] = {}
    for event in db.execute(
        text("SELECT * FROM claim_events WHERE claim_id = ANY(:ids) AND latency_ms IS NOT NULL ORDER BY id"),
        {"ids": [claim.id for each in claims.values() for claim in each]},
    ):
        steps.setdefault(event.claim_id, []).append(event)
    return [span for job in jobs for span in _of_job(job, states.get(job.id, ()), claims.get(job.id, ()), steps)]


def _of_job(
    job: Row[Any], states: Sequence[Row[Any]], claims: Sequence[Row[Any]], steps: Mapping[int, Sequence[Row[Any]]]
) -> Iterator[Span]:
    trace = _id("trace", job.id, size=16)
    root = _id("job", job.id)
    known = {
        "ostler.job.id": job.id,
        "ostler.job.name": job.name,
        "ostler.workflow.name": job.workflow_name,
        "ostler.run.id": job.run_id,
        "ostler.run.attempt": job.run_attempt,
        "ostler.repository": job.repository,
        "ostler.account": job.login,
        "ostler.pool": job.pool,
        "ostler.runner": job.runner_name,
        "ostler.conclusion": job.conclusion,
    }
    end = max(job.queued_at, job.completed_at)
    yield Span(trace, root, None, "job", job.queued_at, end, _plain(known), job.conclusion == "failure")
    yield from _of_states("job", states, trace=trace, parent=root)
    for claim in claims:
        own = _id("claim", claim.id)
        facts = {"ostler.claim.id": claim.id, "ostler.pod": claim.pod, "ostler.end": claim.end_reason}
        yield Span(trace, own, root, "claim", claim.created_at, max(claim.created_at, claim.ended_at), _plain(facts))
        yield from _of_states("claim", steps.get(claim.id, ()), trace=trace, parent=own)


def _of_states(subject: str, events: Sequence[Row[Any]], *, trace: str, parent: str) -> Iterator[Span]:
    """Return a span for each state that the subject left. A lease and a stamp are no states, so they have no span."""
    for event in events:
        if event.from_state is None or event.from_state == event.to_state:
            continue
        begin = event.at - timedelta(milliseconds=max(0, event.latency_ms))
        told = {"ostler.transition": event.transition, "ostler.who": event.who, "ostler.why": event.why}
        span = _id(f"{subject} event", event.id)
        yield Span(trace, span, parent, f"{subject} {event.from_state}", begin, event.at, _plain(told))


def _id(kind: str, number: int, *, size: int = 8) -> str:
    return hashlib.sha256(f"ostler {kind} {number}".encode()).digest()[:size].hex()


def _plain(found: Mapping[str, Any]) -> dict[str, str | int]:
    """Return attributes without missing values. Texts of strangers are cut, and have no control characters."""
    return {
        name: value if isinstance(value, int) else "".join(c if c.isprintable() else " " for c in value[:LONGEST_TEXT])
        for name, value in found.items()
        if value is not None
    }

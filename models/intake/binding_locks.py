"""Locks of a webhook transaction: all jobs and claims that a batch can change, in the common lock order.

First the jobs are locked by id, then the claims by id. Each lock is `FOR NO KEY UPDATE`. The set of rows is read once
before the locks and again under the locks. If the set has grown in between, the transaction starts over. If a row is
locked and the caller must not wait, `Contended` is raised at once. The exception names the jobs whose events must be
left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, TextClause

from models.db.engine import StartOver
from models.db.sql import text
from rules.claims.machines import ClaimState, Purpose
from rules.intake.bindings import ClaimView, JobView
from rules.intake.events import WorkflowJobEvent


class Contended(Exception):
    """Raised if other sessions have locked rows that some events of a batch need.

    `jobs` are the jobs of these events. The batch can be applied without the events of these jobs.
    """

    def __init__(self, jobs: frozenset[int]) -> None:
        super().__init__(f"other sessions have locked rows of {len(jobs)} jobs")
        self.jobs = jobs


@dataclass(slots=True)
class ExecutionView:
    """The execution of a job, as stored in the row of the execution."""

    runner_name: str
    claim_id: int | None
    account_id: int
    open: bool


@dataclass(slots=True)
class Locked:
    """The locked rows of one batch. Code that changes a row also updates the entry of the row in this object.

    `jobs` and `executions` are keyed by the id of the job. `claims` is keyed by claim id and has live claims only.
    `runners` maps the name of a runner to the claim that registered the runner.
    """

    jobs: dict[int, JobView] = field(default_factory=dict)
    claims: dict[int, ClaimView] = field(default_factory=dict)
    executions: dict[int, ExecutionView] = field(default_factory=dict)
    runners: dict[str, int] = field(default_factory=dict)

    def of_runner(self, name: str) -> ClaimView | None:
        """Return the live claim that registered this runner, or None."""
        claim_id = self.runners.get(name)
        return None if claim_id is None else self.claims.get(claim_id)

    def of_job(self, job_id: int) -> ClaimView | None:
        """Return the live claim for this job, or None."""
        return next((claim for claim in self.claims.values() if claim.job_id == job_id), None)


def lock(
    db: Connection, events: Sequence[WorkflowJobEvent], *, others: Iterable[int] = (), wait: bool = True
) -> Locked:
    """Lock all rows that these events can change, and the jobs `others`. Every job must have a row already.

    If `wait` is False and another session has locked such a row, this function raises `Contended` instead of waiting.
    Raises `StartOver` if more rows are needed than were locked. `transaction` then runs the batch again.
    """
    own = sorted({event.job_id for event in events}.union(others))
    return _lock(db, own, events, wait=wait) if own else Locked()


@dataclass(frozen=True, slots=True)
class _Touched:
    """Rows that events on some jobs and runners can change: jobs, live claims, and the claim of each runner.

    Each entry of `rows` names a claim and the job or runner that led the query to this claim. A claim can have several
    entries.
    """

    jobs: set[int]
    claims: set[int]
    runners: dict[str, int]
    rows: Sequence[Row[Any]]

    def needing(self, jobs: set[int], claims: set[int]) -> tuple[set[int], set[str]]:
        """Return the jobs and the runners whose events can change one of the given jobs or claims."""
        rows = [row for row in self.rows if row.id in claims or row.job_id in jobs]
        return (
            jobs.union(row.of_job for row in rows if row.of_job is not None),
            {row.runner_name for row in rows if row.runner_name is not None},
        )


_TOUCHED = text("""
    SELECT c.id, c.job_id, c.job_id AS of_job, NULL AS runner_name FROM claims c
    WHERE c.ended_at IS NULL AND c.job_id = ANY(CAST(:jobs AS bigint[]))
    UNION ALL
    SELECT c.id, c.job_id, NULL, m.runner_name FROM mint_attempts m JOIN claims c ON c.id = m.claim_id
    WHERE c.ended_at IS NULL AND m.runner_name = ANY(CAST(:runners AS text[]))
    UNION ALL
    SELECT c.id, c.job_id, NULL, c.runner_name FROM claims c
    WHERE c.ended_at IS NULL AND c.purpose = 'job' AND c.runner_name = ANY(CAST(:runners AS text[]))
    UNION ALL
    SELECT c.id, c.job_id, e.job_id, NULL FROM executions e JOIN claims c ON c.id = e.claim_id
    WHERE c.ended_at IS NULL AND e.job_id = ANY(CAST(:jobs AS bigint[]))
""")


def _touched(db: Connection, own: Sequence[int], named: Sequence[str]) -> _Touched:
    rows = db.execute(
        _TOUCHED,
        {"jobs": list(own), "runners": list(named)},
    ).all()
    return _Touched(
        jobs=set(own).union(row.job_id for row in rows if row.job_id is not None),
        claims={row.id for row in rows},
        runners={row.runner_name: row.id for row in rows if row.runner_name is not None},
        rows=rows,
    )


_LOCK_JOBS = """
    SELECT j.id, j.state, j.account_id, j.pool_id, j.queued_at, coalesce(p.vcpu, 0) AS vcpu,
           coalesce(p.memory, 0) AS memory
    FROM jobs j LEFT JOIN pools p ON p.id = j.pool_id
    WHERE j.id = ANY(:ids) ORDER BY j.id FOR NO KEY UPDATE OF j
"""
_LOCK_CLAIMS = """
    SELECT c.id, c.state, c.job_id, c.pool_id, c.account_id, c.scope, c.runner_name, c.purpose,
           p.namespace, p.name,
           CASE c.purpose WHEN 'register' THEN p.vcpu ELSE c.vcpu END AS vcpu,
           CASE c.purpose WHEN 'register' THEN p.memory ELSE c.memory END AS memory
    FROM claims c JOIN pools p ON p.id = c.pool_id
    WHERE c.id = ANY(CAST(:ids AS bigint[])) ORDER BY c.id FOR NO KEY UPDATE OF c
"""


def _locking(statement: str, *, wait: bool) -> TextClause:
    return text(statement if wait else f"{statement} SKIP LOCKED")


def _lock(db: Connection, own: Sequence[int], events: Sequence[WorkflowJobEvent], *, wait: bool) -> Locked:
    """Lock and read the rows that the events can change. Raises the errors of `lock`."""
    named = sorted({event.runner_name for event in events if event.runner_name})
    before = _touched(db, own, named)
    jobs = db.execute(_locking(_LOCK_JOBS, wait=wait), {"ids": sorted(before.jobs)}).all()
    claims = db.execute(_locking(_LOCK_CLAIMS, wait=wait), {"ids": sorted(before.claims)}).all()
    skipped_jobs = before.jobs.difference(row.id for row in jobs)
    skipped_claims = before.claims.difference(row.id for row in claims)
    if not wait and (skipped_jobs or skipped_claims):
        jobs_of, runners_of = before.needing(skipped_jobs, skipped_claims)
        by_runner = {event.job_id for event in events if event.runner_name in runners_of}
        raise Contended(frozenset(jobs_of.intersection(own) | by_runner))
    # Read again under the locks: no session can claim these jobs or move these claims now.
    # Rows that appeared between the two reads are not locked, so the transaction starts over.
    after = _touched(db, own, named)
    if not (after.jobs <= before.jobs and after.claims <= before.claims):
        raise StartOver
    live = {
        row.id: ClaimView(
            id=row.id,
            state=row.state,
            job_id=row.job_id,
            pool_id=row.pool_id,
            account_id=row.account_id,
            scope=row.scope,
            vcpu=row.vcpu,
            memory=row.memory,
            runner_name=row.runner_name,
            persistent=row.purpose == Purpose.REGISTER,
            pool=(row.namespace, row.name),
        )
        for row in claims
        if row.state != ClaimState.ENDED
    }
    locked = Locked(
        jobs={
            row.id: JobView(
                id=row.id,
                state=row.state,
                account_id=row.account_id,
                pool_id=row.pool_id,
                vcpu=row.vcpu,
                memory=row.memory,
                queued_at=row.queued_at,
            )
            for row in jobs
        },
        claims=live,
        runners=after.runners,
    )
    _read_executions(db, locked)
    return locked


_READ_EXECUTIONS = text("""
    SELECT job_id, runner_name, claim_id, account_id, ended_at IS NULL AS open
    FROM executions WHERE job_id = ANY(CAST(:jobs AS bigint[]))
    UNION
    SELECT job_id, runner_name, claim_id, account_id, ended_at IS NULL AS open
    FROM executions WHERE claim_id = ANY(CAST(:claims AS bigint[])) AND ended_at IS NULL
""")


def _read_executions(db: Connection, locked: Locked) -> None:
    rows = db.execute(
        _READ_EXECUTIONS,
        {"jobs": list(locked.jobs), "claims": list(locked.claims)},
    )
    for row in rows:
        locked.executions[row.job_id] = ExecutionView(row.runner_name, row.claim_id, row.account_id, row.open)
        claim = locked.claims.get(row.claim_id) if row.open else None
        if claim is not None:
            claim.executes = row.job_id

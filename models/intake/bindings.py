"""Binding of jobs to the runners that GitHub assigned to them, and the end of jobs and their claims.

Only `in_progress` and `completed` webhooks are applied here. All jobs and claims that a batch can change are locked
first, jobs by id and then claims by id. Every decision is then made on rows that no other session can change. No claim
is inserted here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from sqlalchemy import Connection

from models.claims import runner_failures
from models.db.engine import after_commit
from models.intake.binding_locks import ExecutionView, Locked
from models.routing.usage import pools_with_work
from models.state import claim_jobs, claim_transitions, executions, job_transitions
from ostler import telemetry
from ostler.logging import get_logger
from rules.claims.machines import ClaimState, JobState
from rules.intake.bindings import ClaimView, JobView, Loss, Runner, judge_runner, loss_of, may_swap
from rules.intake.events import WorkflowJobEvent

log = get_logger(__name__)


@dataclass(slots=True)
class Bound:
    """The work that remains after the commit, and numbers for metrics."""

    wakes: set[int] = field(default_factory=set)
    """Pools whose matcher must be woken."""
    releases: list[int] = field(default_factory=list)
    """Claims to release. Each claim lost its job before its JIT was delivered."""
    reconcile: set[int] = field(default_factory=set)
    """Pools with a spent Pod to replace."""
    starts: list[tuple[tuple[str, str], float]] = field(default_factory=list)
    """Namespace and name of the pool, and seconds from delivery to execution, for each claim that began to execute."""
    remaps: list[tuple[str, str]] = field(default_factory=list)
    """Namespace and name of the pool, for each job that did not run on the runner that was minted for it."""


@dataclass(slots=True)
class _Batch:
    """One transaction: its locked rows, and its effects so far.

    `freed` are accounts whose usage fell. `executed` are claims that began to execute.
    """

    db: Connection
    locked: Locked
    now: datetime
    who: str
    bound: Bound = field(default_factory=Bound)
    freed: set[int] = field(default_factory=set)
    executed: set[int] = field(default_factory=set)


def apply(db: Connection, locked: Locked, events: Sequence[WorkflowJobEvent], *, now: datetime, who: str) -> Bound:
    """Apply `in_progress` and `completed` events in the given order.

    `locked` are the rows locked by `binding_locks.lock`. `who` is recorded in the events of the rows.
    """
    batch = _Batch(db, locked, now, who)
    for event in events:
        if event.action == "completed":
            _complete(batch, event)
        else:
            _run(batch, event)
    batch.bound.wakes.update(pools_with_work(db, sorted(batch.freed)))
    batch.bound.wakes.update(runner_failures.executed(db, batch.executed, now=now))
    return batch.bound


# Events


def _run(batch: _Batch, event: WorkflowJobEvent) -> None:
    job = batch.locked.jobs[event.job_id]
    if job.state == JobState.COMPLETED:
        return  # a completed job stays completed, so a late in_progress changes nothing
    started = event.started_at or batch.now
    if event.runner_name:
        _bind(batch, job, runner_name=event.runner_name, started=started)
    if job.state != JobState.RUNNING:
        why = f"in_progress on {event.runner_name or 'a runner without a name'}"
        job_transitions.start(batch.db, job.id, started=started, now=batch.now, who=batch.who, why=why)
        job.state = JobState.RUNNING


def _complete(batch: _Batch, event: WorkflowJobEvent) -> None:
    job = batch.locked.jobs[event.job_id]
    seen = batch.locked.executions.get(job.id)
    runner_name = event.runner_name or (seen.runner_name if seen else None)
    ended = event.completed_at or batch.now
    if event.runner_name:
        _bind(batch, job, runner_name=event.runner_name, started=event.started_at or batch.now)
    if job.state != JobState.COMPLETED:
        job_transitions.finish(
            batch.db,
            event,
            ended=ended,
            started=event.started_at if runner_name else None,
            now=batch.now,
            who=batch.who,
            why=f"completed on {runner_name}" if runner_name else "completed without a runner",
        )
        job.state = JobState.COMPLETED
    claim = _end_execution(batch, job, ended=ended)
    if claim is not None:
        _end_claim(batch, claim)
    left = batch.locked.of_job(job.id)
    if left is not None and left.state != ClaimState.EXECUTING:
        _lose(batch, left, reason="cancelled")


def _bind(batch: _Batch, job: JobView, *, runner_name: str, started: datetime) -> None:
    """Record that `job` executes on a runner.

    If `judge_runner` accepts the claim of the runner, `job` is assigned to this claim, and the row of the execution
    refers to the claim. Any other claim loses `job`. The claim of a persistent runner gets no job, because GitHub gives
    its runner one job after the other.
    """
    seen = batch.locked.executions.get(job.id)
    if seen is not None:
        if seen.runner_name != runner_name:
            log.warning("job.second_runner_ignored", job=job.id, runner=runner_name, first_runner=seen.runner_name)
        return
    claim = batch.locked.of_runner(runner_name)
    verdict = judge_runner(claim, runner_name=runner_name, job_id=job.id)
    if verdict in {Runner.UNDELIVERED, Runner.TAKEN}:
        log.warning(
            "job.reported_on_unexpected_runner",
            job=job.id,
            runner=runner_name,
            verdict=verdict.value,
            claim=claim.id if claim else None,
            claim_state=claim.state if claim else None,
        )
    if verdict is not Runner.OURS:
        claim = None
    _insert_execution(batch, job, claim, runner_name=runner_name, started=started)
    loser = batch.locked.of_job(job.id)
    if claim is None or claim.persistent:
        _bind_apart(batch, job, claim, loser, runner_name=runner_name, started=started)
        return
    if claim.job_id != job.id:
        _count_remap(batch, job, runner_name, claim, loser)
        _remap(batch, job, claim, loser)
    if claim.state != ClaimState.EXECUTING:
        why = f"job {job.id} started on {runner_name}"
        moved = claim_transitions.execute(batch.db, claim.id, now=batch.now, who=batch.who, why=why)
        if moved is not None and moved.delivered_at is not None:
            batch.bound.starts.append((claim.pool, max(0.0, (batch.now - moved.delivered_at).total_seconds())))
        claim.state = ClaimState.EXECUTING
        batch.executed.add(claim.id)
    claim.executes = job.id


def _bind_apart(
    batch: _Batch,
    job: JobView,
    claim: ClaimView | None,
    loser: ClaimView | None,
    *,
    runner_name: str,
    started: datetime,
) -> None:
    """Take `job` from the claim `loser`, because a runner without a job of its own executes it.

    `claim` is the registration of a persistent runner, or None for any other runner. A persistent runner gets no JIT
    for the job, so the job's wait is measured here.
    """
    if loser is not None:
        _count_remap(batch, job, runner_name, claim, loser)
        _lose(batch, loser, reason="remapped")
    if claim is not None:
        claim.executes = job.id
        waited = max(0.0, (started - job.queued_at).total_seconds())
        after_commit(batch.db, partial(telemetry.JOB_WAIT_SECONDS.labels(*claim.pool).observe, waited))


# Claims and jobs that a binding displaces


def _remap(batch: _Batch, job: JobView, claim: ClaimView, loser: ClaimView | None) -> None:
    """Move `job` to `claim`. `loser` is the claim that had `job`, or None if no claim had it.

    If `may_swap` allows the exchange, `loser` gets the former job of `claim`. Otherwise `loser` loses its job, and a
    former job in the state `claimed` returns to its queue.
    """
    former = None if claim.job_id is None else batch.locked.jobs[claim.job_id]
    swap = loser is not None and may_swap(claim, loser, former)
    # Both claims lose their job first, because a job must not have two live claims at any time.
    _set_job(batch, [claim, *([loser] if loser is not None else [])], None)
    _set_job(batch, [claim], job.id)
    if loser is not None:
        if swap and former is not None:
            _set_job(batch, [loser], former.id)
        else:
            _lose(batch, loser, reason="remapped")
    if former is not None and not swap and former.state == JobState.CLAIMED:
        why = f"the runner of its claim executes job {job.id} instead"
        job_transitions.requeue(batch.db, former.id, now=batch.now, who=batch.who, why=why)
        former.state = JobState.QUEUED
        if former.pool_id is not None:
            batch.bound.wakes.add(former.pool_id)


def _count_remap(
    batch: _Batch, job: JobView, runner_name: str, claim: ClaimView | None, loser: ClaimView | None
) -> None:
    of = claim or loser
    if of is not None:
        batch.bound.remaps.append(of.pool)
    log.info(
        "job.runs_on_other_runner",
        job=job.id,
        runner=runner_name,
        claim=claim.id if claim else None,
        former_job_of_claim=claim.job_id if claim else None,
        former_claim_of_job=loser.id if loser else None,
    )


def _lose(batch: _Batch, claim: ClaimView, *, reason: str) -> None:
    """Remove the job from a claim, because the job runs elsewhere or is completed."""
    loss = loss_of(claim)
    if claim.job_id is not None:
        _set_job(batch, [claim], None)
    if loss is Loss.SPARE:
        if claim_jobs.make_spare(batch.db, claim.id, now=batch.now):
            batch.bound.wakes.add(claim.pool_id)  # the matcher gives jobs to spares before it claims warm Pods
        else:  # an anomaly, because the rows of the batch are locked. A sweep finds the claim later.
            log.warning("claim.is_no_spare", claim=claim.id, reason=reason)
    elif loss is Loss.RELEASE and claim_transitions.request_release(
        batch.db, claim.id, reason=reason, now=batch.now, who=batch.who
    ):
        # The lease stays, so that the release waits until a running step has ended.
        claim.state = ClaimState.RELEASING
        batch.bound.releases.append(claim.id)


def _set_job(batch: _Batch, claims: Sequence[ClaimView], job_id: int | None) -> None:
    claim_jobs.set_job(batch.db, [claim.id for claim in claims], job_id)
    for claim in claims:
        claim.job_id = job_id


# Executions


def _insert_execution(
    batch: _Batch,
    job: JobView,
    claim: ClaimView | None,
    *,
    runner_name: str,
    started: datetime,
) -> None:
    size = claim or job  # an unknown runner counts with the size of a Pod of the job's pool
    executions.insert(
        batch.db,
        job_id=job.id,
        runner_name=runner_name,
        claim_id=claim.id if claim else None,
        account_id=job.account_id,
        vcpu=size.vcpu,
        memory=size.memory,
        started=started,
    )
    batch.locked.executions[job.id] = ExecutionView(runner_name, claim.id if claim else None, job.account_id, open=True)


def _end_execution(batch: _Batch, job: JobView, *, ended: datetime) -> ClaimView | None:
    """End the execution of `job`, and return the live claim that ends with it, or None.

    The claim of a persistent runner does not end. Any other claim whose runner executed the job is returned, even if
    the row of the execution does not refer to this claim.
    """
    execution = batch.locked.executions.get(job.id)
    if execution is None:
        return None
    if execution.open:
        executions.end(batch.db, job.id, ended=ended)
        execution.open = False
        batch.freed.add(execution.account_id)
    if execution.claim_id is not None:
        claim = batch.locked.claims.get(execution.claim_id)
        if claim is None or not claim.persistent:
            return claim
        if claim.state == ClaimState.RELEASING:  # GitHub refused to remove the runner because of this job
            batch.bound.releases.append(claim.id)
        return None
    # An anomaly at the start left the execution without a claim. The claim of the runner might execute by now, because
    # its release found the runner busy. This claim then ends with the execution.
    claim = batch.locked.of_runner(execution.runner_name)
    verdict = judge_runner(claim, runner_name=execution.runner_name, job_id=job.id)
    return claim if verdict is Runner.OURS and claim is not None and not claim.persistent else None


def _end_claim(batch: _Batch, claim: ClaimView) -> None:
    why = "the job of the claim is completed"
    moved = claim_transitions.end_completed(batch.db, claim.id, now=batch.now, who=batch.who, why=why)
    if moved is None:
        return
    if moved.job_id is not None:
        # An anomaly: the claim ends, but has another job. That job must not stay `claimed` without a claim (law L4).
        why = "the claim of the job ended for another job"
        requeued = job_transitions.requeue(batch.db, moved.job_id, claimed=True, now=batch.now, who=batch.who, why=why)
        batch.bound.wakes.update(row.pool_id for row in requeued if row.pool_id is not None)
    del batch.locked.claims[claim.id]
    batch.freed.add(claim.account_id)
    batch.bound.reconcile.add(claim.pool_id)

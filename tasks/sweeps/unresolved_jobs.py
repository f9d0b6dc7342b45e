"""`ostler.unresolved_jobs`: asks GitHub about jobs that no other task changes, then requeues or completes them.

`rules.sweeps.unresolved.Unresolved` lists the kinds of such jobs. For example, GitHub did not answer when the claim of
the job ended (hold `ask_github`), or the job has been waiting for long. Another example is a job that runs on a runner
without a live claim. An unusable answer changes nothing (law L8). GitHub is then asked about the job again, at growing
intervals. The job blocks no other job (law L14).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import structlog

from models.intake import repositories
from models.state import job_holds
from models.sweeps import unresolved
from models.sweeps.repairs import Case
from ostler.clock import utcnow
from ostler.errors import (
    Busy,
    Forbidden,
    Gone,
    NotInstalled,
    RateLimited,
    Retryable,
    Suspended,
)
from ostler.reasons import meaning_of
from ostler.task_names import UNRESOLVED_JOBS
from rules.claims.job_outcomes import NextStep
from rules.sweeps.limits import Source, Witness
from rules.sweeps.unresolved import Move, Unresolved, judge_unresolved, next_ask_after
from tasks.claims.github import ask_job, deregister
from tasks.sweeps.frame.sweep import sweep
from tasks.sweeps.frame.tick import Tick
from tasks.worker.base import SWEEP, SWEEP_ROW
from tasks.worker.transactions import NOW

log = structlog.get_logger(__name__)


@sweep(UNRESOLVED_JOBS)
def unresolved_jobs(tick: Tick) -> None:
    """Ask GitHub about one job after the other.

    If GitHub does not answer for an installation, the tick skips all further jobs of the installation.
    """
    follow_names(tick)
    settings = tick.rt.settings
    soon = timedelta(seconds=settings.timings.unresolved_after)
    late = timedelta(seconds=settings.timings.unresolved_late_after)
    found = tick.read(unresolved.unresolved_jobs, soon=soon, late=late, now=NOW)
    unavailable: set[int | None] = set()
    for job in found:
        if not tick.goes_on():
            return
        if job.installation_id in unavailable:
            continue
        error = tick.attempt(lambda job: check(tick, job), job, row=job.id)
        if isinstance(error, RateLimited):
            log.info("unresolved_jobs.rate_limited", installation=job.installation_id, wait_seconds=error.after)
            unavailable.add(job.installation_id)
            make_room(tick, found, job.installation_id, after=error.after)
        elif isinstance(error, Retryable | Suspended | NotInstalled):
            unavailable.add(job.installation_id)
            make_room(tick, found, job.installation_id)
            ask_later(tick, job)  # this job might be the cause, so it waits longer than the other jobs
        elif error is not None:
            ask_later(tick, job)


def follow_names(tick: Tick) -> None:
    """Store the new name of a repository that was renamed without a webhook.

    The new name is known from newer jobs of the repository.
    """
    if tick.dry:
        return
    now = utcnow()

    def follow(renaming: repositories.Renaming) -> None:
        if tick.rt.transaction(repositories.rename, renaming, now=now):
            log.info("unresolved_jobs.repository_renamed", repository=renaming.repository_id, new_name=renaming.name)

    for renaming in tick.read(repositories.torn, now=now):
        tick.attempt(follow, renaming, repository=renaming.repository_id)


def check(tick: Tick, job: unresolved.UnresolvedJob) -> None:
    """Ask GitHub about one job and act on the answer."""
    rt = tick.rt
    if job.installation_id is None:
        log.warning("unresolved_jobs.job_without_installation", job=job.id)
        ask_later(tick, job)
        return
    told = ask_job(
        rt,
        installation_id=job.installation_id,
        repository=job.repository,
        job_id=job.id,
        policy=SWEEP,
        lookups=tick.lookups,
    )
    status, conclusion = (None, None) if told.job is None else (told.job.status, told.job.conclusion)
    verdict = judge_unresolved(
        kind=job.kind,
        state=job.state,
        status=status,
        conclusion=conclusion,
        run=told.run,
        started=job.runner_name is not None,
        age=utcnow() - job.ready_at,
    )
    if verdict.move is Move.KEEP:
        ask_later(tick, job)
        return
    case = Case(
        what=verdict.move,
        why=f"{job.kind}: {verdict.job_outcome.why}",
        job_id=job.id,
        before=job.state,
        after=verdict.job_outcome.next_step,
        runner_name=job.runner_name,
        witnesses=(Witness(Source.GITHUB, f"the job is {status or 'unknown'}"),),
    )
    requeued = verdict.move is Move.FOLLOW and verdict.job_outcome.next_step is NextStep.REQUEUE
    try:
        moved = tick.repair(
            case,
            lambda db: unresolved.apply_verdict(db, job, verdict, now=utcnow(), who=rt.who),
            call=(lambda: remove_left(tick, job)) if requeued else None,
        )
    except Busy:
        ask_later(tick, job)
        return
    if not moved:
        return  # the job moved by itself; if it is still unresolved, a later tick finds it again
    if job.kind is Unresolved.BUG:
        log.error(
            "unresolved_jobs.impossible_state_repaired",
            job=job.id,
            transition=verdict.move,
            next_step_of_job=verdict.job_outcome.next_step,
        )
    if job.pool_id is not None and verdict.job_outcome.next_step is NextStep.REQUEUE:
        rt.waker.wake(job.pool_id)


def remove_left(tick: Tick, job: unresolved.UnresolvedJob) -> None:
    """Deregister the runners of the job's finished Pods. GitHub might have assigned the job to one of them.

    The claims of these runners have ended without a release, so no release deregisters the runners. Raises `Busy` while
    one of the runners executes a job. If the App lacks the permission or GitHub does not find the scope, the runners
    stay registered. Raises every other error of GitHub's adapter.
    """
    left = tick.read(unresolved.left_runners, job.id)
    try:
        deregister(tick.rt, left, policy=SWEEP_ROW)
    except (Suspended, NotInstalled):
        raise
    except (Forbidden, Gone) as error:  # the App has no access to the scope, and the job does not wait for the removal
        log.warning("unresolved_jobs.runner_not_deregistered", job=job.id, error=meaning_of(error))


def ask_later(tick: Tick, job: unresolved.UnresolvedJob) -> None:
    """Postpone the next question about a job. The wait grows with the time since the job last changed."""
    now, settings = utcnow(), tick.rt.settings
    after = next_ask_after(
        now - job.changed_at,
        least=timedelta(seconds=settings.timings.unresolved_after),
        most=timedelta(seconds=settings.timings.unresolved_late_after),
    )
    _postpone(tick, [job.id], ask_after=now + after)


def make_room(
    tick: Tick, found: Sequence[unresolved.UnresolvedJob], installation_id: int | None, *, after: float = 0
) -> None:
    """Postpone the questions about all found jobs of an installation, because GitHub does not answer for it.

    Otherwise these jobs would use up the next tick (law L14). `after` is the wait in seconds that GitHub asked for, or
    0.
    """
    settings = tick.rt.settings
    seconds = min(max(after, settings.timings.unresolved_after / 2), settings.timings.unresolved_late_after)
    ids = [job.id for job in found if job.installation_id == installation_id]
    _postpone(tick, ids, ask_after=utcnow() + timedelta(seconds=seconds))


def _postpone(tick: Tick, job_ids: Sequence[int], *, ask_after: datetime) -> None:
    if not tick.dry:
        tick.rt.transaction(job_holds.ask_later, job_ids, ask_after=ask_after)

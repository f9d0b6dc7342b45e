"""`ostler.adrift_jobs`: asks GitHub about jobs that nothing of ours moves any more, then re-queues or finishes them.

These are the jobs of which GitHub could not be asked when their claim ended (hold `ask_github`), those that wait or
are set aside for long, and those whose claim was lost by a bug. No usable answer changes nothing (L8): such a job is
asked about again, ever more seldom, and stands in no other job's way (L14).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import structlog
from sqlalchemy.exc import DBAPIError

from models import adrift
from models.engine import transaction
from ostler.clock import utcnow
from ostler.errors import (
    Busy,
    Forbidden,
    Gone,
    NotInstalled,
    RateLimited,
    Retryable,
    Suspended,
    UpstreamError,
)
from rules.adrift import Adrift, Move, judge_adrift, next_ask_after
from rules.fates import Fate
from tasks.base import SWEEP, calls, remaining, task
from tasks.github import deregister
from tasks.runtime import Runtime, runtime

log = structlog.get_logger(__name__)

RESERVE = 3.0


@task("adrift_jobs", queue="sweeps", policy=SWEEP)
def adrift_jobs() -> None:
    """Ask about one job after the other; an installation that does not answer is left alone for this tick."""
    rt = runtime()
    soon = timedelta(seconds=rt.settings.adrift_after)
    late = timedelta(seconds=rt.settings.adrift_late_after)
    found = transaction(rt.engine, lambda db: adrift.adrift_jobs(db, soon=soon, late=late, now=utcnow()))
    silent: set[int | None] = set()
    for job in found:
        if remaining() < RESERVE:
            log.info("adrift_jobs.to_be_continued", jobs=len(found))
            return
        if job.installation_id in silent:
            continue
        try:
            look(rt, job)
        except RateLimited as error:
            log.info("adrift_jobs.rate_limited", installation=job.installation_id, after=error.after)
            silent.add(job.installation_id)
            make_room(rt, found, job.installation_id, after=error.after)
        except (Retryable, Suspended, NotInstalled) as error:
            log.warning("adrift_jobs.installation_silent", job=job.id, error=type(error).__name__)
            silent.add(job.installation_id)
            make_room(rt, found, job.installation_id)
            ask_later(rt, job)  # later than its neighbours: it may be what fails
        except (UpstreamError, DBAPIError) as error:
            log.warning("adrift_jobs.job_skipped", job=job.id, error=type(error).__name__)
            ask_later(rt, job)


def look(rt: Runtime, job: adrift.AdriftJob) -> None:
    """Ask about one job and do what the answer says."""
    if job.installation_id is None:
        log.warning("adrift_jobs.no_installation", job=job.id)
        ask_later(rt, job)
        return
    seen = rt.github.get_job(
        installation_id=job.installation_id, repository=job.repository, job_id=job.id, policy=calls(SWEEP)
    )
    status, conclusion = (None, None) if seen is None else (seen.status, seen.conclusion)
    verdict = judge_adrift(
        kind=job.kind, state=job.state, status=status, conclusion=conclusion,
        started=job.runner_name is not None, age=utcnow() - job.ready_at,
    )  # fmt: skip
    if verdict.move is Move.KEEP:
        ask_later(rt, job)
        return
    if verdict.move is Move.FOLLOW and verdict.fate.fate is Fate.REQUEUE:
        # GitHub may have given it to the runner of a Pod that is over; nobody else removes that one.
        left = transaction(rt.engine, lambda db: adrift.left_runners(db, job.id))
        try:
            deregister(rt, left)
        except Busy:
            ask_later(rt, job)
            return
        except (Suspended, NotInstalled):
            raise
        except (Forbidden, Gone) as error:  # its scope is out of reach: the job need not wait for that
            log.warning("adrift_jobs.runner_left", job=job.id, error=type(error).__name__)
    moved = transaction(rt.engine, lambda db: adrift.settle(db, job, verdict, now=utcnow(), who=rt.who))
    if not moved:
        return  # by itself: it is found anew if that left it adrift
    tell = log.error if job.kind is Adrift.BUG else log.info
    tell("adrift_jobs.settled", job=job.id, kind=job.kind, move=verdict.move, fate=verdict.fate.fate)
    if job.pool_id is not None and verdict.fate.fate is Fate.REQUEUE:
        rt.waker.wake(job.pool_id)


def ask_later(rt: Runtime, job: adrift.AdriftJob) -> None:
    """Ask about a job again, the later the longer it has stood there."""
    now = utcnow()
    after = next_ask_after(
        now - job.changed_at,
        least=timedelta(seconds=rt.settings.adrift_after),
        most=timedelta(seconds=rt.settings.adrift_late_after),
    )
    transaction(rt.engine, lambda db: adrift.ask_later(db, [job.id], ask_after=now + after))


def make_room(rt: Runtime, found: Sequence[adrift.AdriftJob], installation_id: int | None, *, after: float = 0) -> None:
    """Postpone all jobs found of an installation that does not answer, so that they fill no later tick (L14)."""
    seconds = min(max(after, rt.settings.adrift_after / 2), rt.settings.adrift_late_after)
    ids = [job.id for job in found if job.installation_id == installation_id]
    until = utcnow() + timedelta(seconds=seconds)
    transaction(rt.engine, lambda db: adrift.ask_later(db, ids, ask_after=until))

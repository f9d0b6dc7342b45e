"""`ostler.check_runs`: tells on the commit of a job why the job waits, and that its Pod ended before the job.

The task is off by default (`OSTLER_CHECK_RUNS_AFTER`). It is no sweep of the frame, because it repairs nothing. It
writes only the columns of check runs, so no claim waits for it. Each call is recorded before it is made: a job has one
call for each of its states at most. After a refusal, the other jobs of the installation are left to the next run.
"""

from __future__ import annotations

from datetime import timedelta

import structlog
from sqlalchemy.exc import DBAPIError

from models.browse.jobs import job_story
from models.state import job_checks
from models.upstream import gates
from ostler.clock import utcnow
from ostler.errors import RateLimited, UpstreamError
from ostler.reasons import meaning_of, words_of
from ostler.task_names import CHECK_RUNS
from ostler.upstreams import Upstream
from rules.claims.machines import JobState
from rules.waiting.check_runs import tell
from tasks.worker.base import SWEEP, remaining, stopping, task
from tasks.worker.runtime import Runtime, runtime
from tasks.worker.transactions import NOW

log = structlog.get_logger(__name__)

RESERVE = 5.0
"""Seconds of the deadline of the task that must be left before another job is examined."""


@task(CHECK_RUNS, policy=SWEEP)
def check_runs() -> None:
    """Examine jobs, and create or change their check runs. While the gate of GitHub is tripped, do nothing."""
    rt = runtime()
    late = timedelta(seconds=rt.settings.check_runs_after)
    if not late or not rt.transaction(gates.is_open, Upstream.GITHUB):
        return
    refused: set[int] = set()
    for job in rt.transaction(job_checks.due, after=late, now=NOW):
        if remaining() < RESERVE or stopping():
            return
        if job.installation_id in refused:
            continue
        try:
            check(rt, job, late=late)
        except UpstreamError as error:
            refused.add(job.installation_id)
            log.warning("check_run.refused", job=job.id, installation=job.installation_id, error=meaning_of(error))
        except DBAPIError as error:  # for example a locked row: the other jobs are still examined (L14)
            log.warning("check_run.not_recorded", job=job.id, error=words_of(error))


def check(rt: Runtime, job: job_checks.Checked, *, late: timedelta) -> None:
    """Examine one job, and make the call for its state if that was not made before.

    The explanation shows only what the account of the job may see. If the call was not applied because of a limit, it
    is made in a later run.
    """
    now = utcnow()
    rt.transaction(job_checks.look, job.id, now=now)
    story = rt.transaction(job_story, job.id, timings=rt.timings, now=now, accounts=frozenset({job.account_id}))
    if story is None:
        return
    started = job.started_at if story.facts.state is JobState.RUNNING else None
    told = tell(
        story.facts, story.why, waited=(started or now) - job.queued_at, late=late, shown=job.check_id is not None
    )
    if told is None or told.state in job.said or not rt.transaction(job_checks.begin, job.id, state=told.state):
        return
    try:
        check_id = rt.github.tell_check_run(
            installation_id=job.installation_id,
            repository=job.repository,
            commit=job.head_sha,
            check_id=job.check_id,
            name=job.name,
            title=told.title,
            text=told.text,
        )
    except RateLimited:
        rt.transaction(job_checks.undo, job.id, state=told.state)
        raise
    rt.transaction(job_checks.record, job.id, check_id=check_id)
    log.info("check_run.told", job=job.id, state=told.state, check_run=check_id)

"""`ostler.ask_run(run_id)`: asks GitHub whether a run comes from a fork.

One request serves all jobs of the run. The jobs are held until GitHub answers. Celery repeats a failed
request. If it still fails, or if the message is lost, the sweep `rematch` sends this task again.
"""

from __future__ import annotations

import structlog

from models.routing import run_origins
from models.sweeps.rematch import rematch_run
from ostler.errors import RateLimited, UpstreamError
from ostler.reasons import meaning_of
from ostler.task_names import ASK_RUN
from tasks.worker.base import QUESTION, Again, calls, task, wait_for_retry
from tasks.worker.runtime import Runtime, runtime
from tasks.worker.transactions import NOW

log = structlog.get_logger(__name__)

GRACE = 0.5
"""Seconds between the end of a postponement and the message that asks the question again."""


@task(ASK_RUN, policy=QUESTION)
def ask_run(*, run_id: int) -> None:
    """Ask GitHub for the origin of a run, store the origin, and match the jobs that waited for the origin."""
    rt = runtime()
    question = rt.transaction(run_origins.begin, run_id, now=NOW)
    if question is None:
        return
    if not question.answered and not ask(rt, question):
        return
    matched = rt.transaction(rematch_run, run_id, now=NOW)
    for pool_id in sorted(matched.pools):
        rt.waker.wake(pool_id)


def ask(rt: Runtime, question: run_origins.Question) -> bool:
    """Ask GitHub for the origin of a run. Return True if the origin is known now; False otherwise.

    If the answer is missing or unusable, the question is postponed and nothing else changes (law L8). Celery repeats a
    question that was never postponed after a failure. After that, `rematch` repeats it.
    """
    if question.installation_id is None:
        postpone(rt, question, why="no installation of the App is known for the account of the job")
        return False
    try:
        run = rt.github.get_run(
            installation_id=question.installation_id,
            repository=question.repository,
            run_id=question.run_id,
            policy=calls(QUESTION),
        )
    except UpstreamError as error:
        limited = isinstance(error, RateLimited)
        soon = None if question.failures else wait_for_retry(error)
        after = error.after if isinstance(error, RateLimited) else soon
        postpone(rt, question, why="GitHub's rate limit" if limited else str(error) or meaning_of(error), after=after)
        if soon is None:
            return False
        raise Again(error, after=soon + GRACE) from error
    if run is None:
        postpone(rt, question, why="GitHub does not show the run to the App")
        return False
    rt.transaction(run_origins.record, question.run_id, run.origin, now=NOW)
    log.info("workflow_run.origin_recorded", run=question.run_id, origin=run.origin)
    return True


def postpone(rt: Runtime, question: run_origins.Question, *, why: str, after: float | None = None) -> float:
    """Postpone the question and return the wait in seconds.

    `why`: the cause, for people. `after`: the wait in seconds that GitHub asked for, or None for a wait that doubles
    with each failure.
    """
    log.warning("workflow_run.origin_not_read", run=question.run_id, why=why)
    return rt.transaction(run_origins.postpone, question.run_id, why=why, after=after, now=NOW)

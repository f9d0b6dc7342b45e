"""`ostler.ask_run(run_id)`: asks GitHub whether a run comes from a fork.

One request serves all jobs of the run. The jobs are held until GitHub answers. If the message is lost or the request
fails, the sweep `rematch` sends this task again.
"""

from __future__ import annotations

import structlog

from models.routing import run_origins
from models.sweeps.rematch import rematch_run
from ostler.errors import RateLimited, UpstreamError
from ostler.reasons import meaning_of
from ostler.task_names import ASK_RUN
from tasks.worker.base import Policy, calls, task
from tasks.worker.runtime import Runtime, runtime
from tasks.worker.transactions import NOW

log = structlog.get_logger(__name__)

ASK = Policy(adapter_attempts=2, task_retries=0, call_seconds=10)

SOON = 5.0
"""Longest delay in seconds of a Celery message that repeats the request. After a longer wait, `rematch` sends the task.

A worker reserves a limited number of delayed messages (`tasks.claims.mint.LONGEST_MESSAGE`).
"""


@task(ASK_RUN, policy=ASK)
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

    If the answer is missing or unusable, the question is postponed and nothing else changes (law L8).
    """
    if question.installation_id is None:
        postpone(rt, question, why="no installation of the App is known for the account of the job")
        return False
    try:
        run = rt.github.get_run(
            installation_id=question.installation_id,
            repository=question.repository,
            run_id=question.run_id,
            policy=calls(ASK),
        )
    except RateLimited as limited:
        wait = postpone(rt, question, why="GitHub's rate limit", after=limited.after)
        if wait <= SOON:
            rt.waker.send(ASK_RUN, after=wait + 1, run_id=question.run_id)
        return False
    except UpstreamError as error:
        postpone(rt, question, why=str(error) or meaning_of(error))
        return False
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

"""The decorator of all tasks, and the table of retry policies (`docs/decisions/0098-retries-of-tasks.md`).

Every task has an explicit stable name and takes keyword arguments only. A task returns None, because Flower shows
results (law L13). All calls of a task share one deadline. A task that reads pages gets a new deadline for each page
(`begin_page`). A task ignores unknown arguments, so that old and new workers can run side by side during a deploy.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import kombu.exceptions
import redis
import structlog
from celery import Task
from celery.exceptions import Reject, Retry
from celery.worker import state
from sqlalchemy.exc import DBAPIError

from models.db import client_waits
from models.db.engine import is_locked, why_away
from ostler import telemetry
from ostler.errors import Conflict, RateLimited, Retryable, UpstreamError
from ostler.logging import about, ids_of
from ostler.reasons import cause_of
from ostler.running_task import running
from ostler.task_names import TaskName, queue_of, short_name
from rules.upstream.retry import RetryPolicy
from tasks.worker.app import app

RECONCILES = frozenset({"pools", "pool_changed", "reconcile", "autoscale"})
"""Tasks of pools, which run without the frame of the sweeps. The decorator `task` records their last success."""

DEADLINE = 20.0
"""Longest time in seconds of one execution of a task, or of one page in a task that reads pages (`begin_page`)."""

LONGEST_MESSAGE = 5.0
"""Longest delay in seconds of a Celery message that repeats a task.

A worker reserves up to `worker_eta_task_limit` delayed messages and then receives no other message of any queue. For a
longer delay no message is sent. The time of the next attempt is stored in the row, and a sweep repeats the step.
"""

LATE = 2.0
"""Seconds after the delay of its message at which a step is due. `resume` then sends the step again."""

log = structlog.get_logger(__name__)
_ends_at: contextvars.ContextVar[float] = contextvars.ContextVar("ends_at")


@dataclass(frozen=True, slots=True)
class Policy:
    """Retry policy of a task whose call failed: exponential backoff with full jitter, in seconds.

    `adapter_attempts`: number of attempts of each call inside the task. `task_retries`: number of times that Celery
    repeats the task. At least one of two conditions holds: `adapter_attempts` is 1, or `task_retries` is 0. Attempts
    therefore never multiply. `backoff` and `backoff_max`: first and largest upper bound of a wait. `call_seconds`:
    longest time in seconds of one call with all its attempts. `brief_waits`: True if the task serves many rows one
    after the other. Such a task waits only briefly for a locked row (`models.db.client_waits`).
    """

    adapter_attempts: int
    task_retries: int
    backoff: int = 1
    backoff_max: int = 60
    call_seconds: float = DEADLINE
    brief_waits: bool = False

    def longest_wait(self, retries: int) -> float:
        """Return the upper bound of the wait in seconds before the next execution, after `retries` retries."""
        return float(min(self.backoff_max, self.backoff * 2**retries))


@dataclass(frozen=True, slots=True)
class _Run:
    """The current execution of a task. `retries` is the number of executions before it."""

    policy: Policy
    retries: int


_run: contextvars.ContextVar[_Run | None] = contextvars.ContextVar("run", default=None)


class Again(Retry):  # type: ignore[misc]
    """Raised by a task to be repeated by Celery after `after` seconds. The decorator `task` sends the message.

    `error` is the failure. A step raises this exception after it gave its lease back, and passes its chain number. If
    `resume` sends the step first, the claim has another number, and the message changes nothing.
    """

    def __init__(self, error: UpstreamError, *, after: float, chain_no: int | None = None) -> None:
        super().__init__(exc=error, when=after)
        self.arguments = {} if chain_no is None else {"chain_no": chain_no}


def wait_for_retry(error: UpstreamError) -> float | None:
    """Return the seconds after which Celery repeats the current task because of this error.

    Return None if Celery must not repeat the task: its policy has no retry left, another attempt would get the same
    answer, or the upstream asks for a wait above `LONGEST_MESSAGE` seconds.
    """
    run = _run.get()
    if run is None or run.retries >= run.policy.task_retries:
        return None
    if isinstance(error, RateLimited):
        return error.after if error.after <= LONGEST_MESSAGE else None
    if isinstance(error, Retryable | Conflict):
        return random.uniform(0, run.policy.longest_wait(run.retries))  # noqa: S311  jitter
    return None


DISPATCH = Policy(adapter_attempts=1, task_retries=0, brief_waits=True)
STAMP = Policy(adapter_attempts=3, task_retries=0)
UNSTAMP = Policy(adapter_attempts=1, task_retries=4, backoff_max=5)
MINT = Policy(adapter_attempts=1, task_retries=4, backoff_max=5)
RELEASE = Policy(adapter_attempts=1, task_retries=4, backoff_max=5)
RETIRE = Policy(adapter_attempts=1, task_retries=4, backoff_max=5)
QUESTION = Policy(adapter_attempts=1, task_retries=4, backoff_max=5, call_seconds=10)
HINT = Policy(adapter_attempts=1, task_retries=4, backoff_max=5, brief_waits=True)
SWEEP = Policy(adapter_attempts=4, task_retries=0, brief_waits=True)

# For calls in a loop. A failed call must leave time for the other calls, and the next run repeats it (L14).
SWEEP_ROW = Policy(adapter_attempts=2, task_retries=0, call_seconds=5)
SWEEP_LIST = Policy(adapter_attempts=2, task_retries=0, call_seconds=10)


def calls(policy: Policy, *, reserve: float = 0.0) -> RetryPolicy:
    """Return the retry policy of one call in the current task.

    The call ends `reserve` seconds before the deadline of the task at the latest. In a task that Celery repeats, it has
    a single attempt.
    """
    deadline = max(0.05, remaining(policy.call_seconds + reserve) - reserve)
    return RetryPolicy(attempts=attempts(policy.adapter_attempts), deadline=deadline)


def attempts(most: int) -> int:
    """Return the number of attempts of one call: 1 in a task that Celery repeats, `most` otherwise."""
    run = _run.get()
    return 1 if run is not None and run.policy.task_retries else most


def remaining(most: float = DEADLINE) -> float:
    """Return the seconds until the deadline of the current task, at most `most` and at least 0.05."""
    return max(0.05, min(most, _ends_at.get(time.monotonic() + DEADLINE) - time.monotonic()))


def begin_page() -> None:
    """Give the current task a new deadline. A task that reads pages has one deadline for each page.

    Outside of a task, this function does nothing.
    """
    if _ends_at.get(None) is not None:
        _ends_at.set(time.monotonic() + DEADLINE)
        client_waits.renew()


def stopping() -> bool:
    """Return True if this worker is stopping; False otherwise.

    A task on a stopping worker may finish its current row, but must not begin another row.
    """
    return state.should_stop is not None and state.should_stop is not False


def task(name: TaskName, *, policy: Policy, bind: bool = False) -> Callable[[Callable[..., None]], Task]:
    """Register a function as the task of this name. With `bind`, the function gets the Celery task as first argument.

    Raises `LookupError` if the table of tasks does not have the name, because the messages would then have no queue.
    """
    queue_of(name)
    short = short_name(name)

    def register(body: Callable[..., None]) -> Task:
        known = {
            parameter.name
            for parameter in inspect.signature(body).parameters.values()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        }

        @functools.wraps(body)
        def run(self: Task, **arguments: Any) -> None:
            given = {key: value for key, value in arguments.items() if key in known}
            began = time.monotonic()
            token = _ends_at.set(began + DEADLINE)
            ran = _run.set(_Run(policy, self.request.retries))
            outcome = "failed"
            waits = client_waits.brief_waits() if policy.brief_waits else nullcontext()
            try:
                with waits, about(task=self.name, **ids_of(given)), _named(self), _reported():
                    _execute(self, functools.partial(body, self) if bind else body, given)
                outcome = "succeeded"
            except Retry:
                outcome = "retried"
                raise
            finally:
                _ends_at.reset(token)
                _run.reset(ran)
                telemetry.TASKS.labels(short, outcome).inc()
                telemetry.TASK_SECONDS.labels(short).observe(time.monotonic() - began)
                if outcome == "succeeded" and short in RECONCILES:
                    telemetry.SWEEP_SUCCESS.labels(short).set_to_current_time()

        for outcome in telemetry.TASK_OUTCOMES:
            telemetry.TASKS.labels(short, outcome)
        telemetry.TASK_SECONDS.labels(short)
        if short in RECONCILES:
            telemetry.SWEEP_SUCCESS.labels(short)
        registered: Task = app.task(
            bind=True,
            name=name,
            max_retries=policy.task_retries,
            typing=False,
        )(run)
        return registered

    return register


def _named(task: Task) -> AbstractContextManager[None]:
    return running(task.request.id, attempt=task.request.retries + 1)


def _execute(task: Task, body: Callable[..., None], arguments: dict[str, Any]) -> None:
    """Run the body of a task once, and send the task again if the body raises `Again`.

    Raises Celery's `Retry` after it sent the task again, `Reject` if Redis did not accept the message, and every other
    error of the body. Outside of a worker, no message is sent, and the failure is raised.
    """
    try:
        body(**arguments)
    except Again as again:
        task.retry(exc=again.exc, countdown=again.when, kwargs={**arguments, **again.arguments})


@contextmanager
def repeated() -> Iterator[None]:
    """Make Celery repeat the current task if a call to an upstream fails in this block and a retry is left."""
    try:
        yield
    except UpstreamError as error:
        soon = wait_for_retry(error)
        if soon is None:
            raise
        raise Again(error, after=soon) from error


@contextmanager
def _reported() -> Iterator[None]:
    """Log an execution that failed or that Celery repeats.

    A traceback is logged unless an upstream, Postgres or Redis explains the failure.
    """
    try:
        yield
    except Retry as again:
        log.info("task.retried", error=_cause(again.exc), retry_after_seconds=again.when)
        raise
    except Reject as rejected:  # the row of the step is due later, so `resume` repeats the step
        log.warning("task.retry_not_sent", error=_cause(rejected.reason))
        raise
    except Exception as error:
        log.exception("task.failed", error=cause_of(error), exc_info=not _is_explained(error))
        raise


def _cause(error: object) -> str | None:
    return cause_of(error) if isinstance(error, BaseException) else None


def _is_explained(error: Exception) -> bool:
    if isinstance(error, DBAPIError):
        return why_away(error) is not None or is_locked(error)
    return isinstance(error, UpstreamError | redis.RedisError | kombu.exceptions.OperationalError)

"""The one decorator of tasks and the one table of retry policies.

Every task has an explicit stable name and keyword-only ids, returns None (Flower shows results, L13), has one
total deadline of which each call gets what is left, and ignores arguments that it does not know, so that old
and new workers can run side by side during a deploy.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import structlog
from celery import Task
from celery.exceptions import Retry
from celery.worker import state

from models.db import client_waits
from ostler import telemetry
from ostler.errors import Retryable
from ostler.logging import about, ids_of
from ostler.task_names import TaskName, queue_of, short_name
from rules.upstream.retry import RetryPolicy
from tasks.worker.app import app

RECONCILES = frozenset({"pools", "pool_changed", "reconcile", "autoscale"})
"""What no frame of sweeps runs, which would note its successes (`tasks.sweeps.tick`)."""

DEADLINE = 20.0
"""Seconds that one execution of a task may take in all."""

log = structlog.get_logger(__name__)
_ends_at: contextvars.ContextVar[float] = contextvars.ContextVar("ends_at")


@dataclass(frozen=True, slots=True)
class Policy:
    """How Celery repeats a task that raised `Retryable`: full jitter under a doubling backoff, in seconds.

    `adapter_attempts` is how often the calls inside repeat; one of the two layers is always 1 or 0, so
    that attempts never multiply. `call_seconds` is what one call may take of the task's deadline. `brief_waits`: the
    task serves many rows one after the other, so a locked row is skipped soon (`models.db.client_waits`).
    """

    adapter_attempts: int
    task_retries: int
    backoff: int = 1
    backoff_max: int = 60
    call_seconds: float = DEADLINE
    brief_waits: bool = False

    def longest_wait(self, retries: int) -> float:
        """Return the upper bound of the wait before the next execution, after `retries` of them."""
        return float(min(self.backoff_max, self.backoff * 2**retries))


DISPATCH = Policy(adapter_attempts=1, task_retries=0, brief_waits=True)
STAMP = Policy(adapter_attempts=3, task_retries=0)
MINT = Policy(adapter_attempts=1, task_retries=4, backoff=1, backoff_max=20)
RELEASE = Policy(adapter_attempts=4, task_retries=0)
RETIRE = Policy(adapter_attempts=4, task_retries=0)
SWEEP = Policy(adapter_attempts=4, task_retries=0, brief_waits=True)

# Of calls in a loop: one that fails must leave time for the others, and the next run makes it again (L14).
SWEEP_ROW = Policy(adapter_attempts=2, task_retries=0, call_seconds=5)
SWEEP_LIST = Policy(adapter_attempts=2, task_retries=0, call_seconds=10)


def calls(policy: Policy) -> RetryPolicy:
    """Return how a call of the current task repeats: by the task's policy, within what it has left."""
    return RetryPolicy(attempts=policy.adapter_attempts, deadline=remaining(policy.call_seconds))


def remaining(most: float = DEADLINE) -> float:
    """Return the seconds that the current task has left, `most` at most and 0.05 at least."""
    return max(0.05, min(most, _ends_at.get(time.monotonic() + DEADLINE) - time.monotonic()))


def begin_page() -> None:
    """Give the current task a new deadline: a sweep that goes through pages has one for each. No task, no deadline."""
    if _ends_at.get(None) is not None:
        _ends_at.set(time.monotonic() + DEADLINE)
        client_waits.renew()


def stopping() -> bool:
    """Return whether this worker was told to end: what it has begun may finish, nothing more is to be begun."""
    return state.should_stop is not None and state.should_stop is not False


def task(name: TaskName, *, policy: Policy, bind: bool = False) -> Callable[[Callable[..., None]], Task]:
    """Register a function as the task of this name; with `bind` it gets the Celery task first.

    Raises `LookupError` if the table of tasks has no such name: its messages would have no queue.
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
            outcome = "failed"
            waits = client_waits.brief_waits() if policy.brief_waits else nullcontext()
            try:
                with waits, about(task=self.name, **ids_of(given)):
                    if bind:
                        body(self, **given)
                    else:
                        body(**given)
                outcome = "succeeded"
            except Retry:
                outcome = "retried"
                raise
            except Retryable:
                outcome = "retried" if self.request.retries < policy.task_retries else "failed"
                raise
            finally:
                _ends_at.reset(token)
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
            autoretry_for=(Retryable,) if policy.task_retries else (),
            max_retries=policy.task_retries,
            retry_backoff=policy.backoff,
            retry_backoff_max=policy.backoff_max,
            retry_jitter=True,
            typing=False,
        )(run)
        return registered

    return register

"""Celery task that runs in this context. The events of its transitions name it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

LONGEST_ID = 64
"""Maximum characters of a stored id. Celery's ids have 36; the sender of a message can choose another."""


@dataclass(frozen=True, slots=True)
class RunningTask:
    """Id of a task, as in Flower, and the number of this execution. The first one has the number 1.

    Both are None outside of a task.
    """

    id: str | None
    attempt: int | None


_NONE = RunningTask(None, None)
_running: ContextVar[RunningTask] = ContextVar("running_task", default=_NONE)


def running_task() -> RunningTask:
    """Return the task that runs in this context."""
    return _running.get()


@contextmanager
def running(task_id: str | None, *, attempt: int) -> Iterator[None]:
    """Name the task of this context. A task without an id, as in a test, is not named."""
    named = _NONE if task_id is None else RunningTask(task_id[:LONGEST_ID], attempt)
    token = _running.set(named)
    try:
        yield
    finally:
        _running.reset(token)

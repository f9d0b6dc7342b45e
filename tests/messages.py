"""Execution of a task as in a worker. The message that repeats the task is returned and not sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from celery import Task
from celery.exceptions import Reject, Retry


@dataclass(frozen=True, slots=True)
class Message:
    """A message that repeats a task after `countdown` seconds."""

    countdown: float
    retries: int
    arguments: dict[str, Any]


def execute(task: Task, *, retries: int = 0, refusal: Exception | None = None, **arguments: Any) -> Message | None:
    """Execute a task and return the message that repeats it, or None if there is none.

    `retries` is the number of earlier executions. If Redis refuses the message with `refusal`, Celery's `Reject` is
    expected and nothing is returned. Raises the errors of the task.
    """
    sent: list[Message] = []

    def signature(
        _request: Any = None, _args: Any = None, kwargs: Any = None, *, countdown: float, retries: int, **_: Any
    ) -> SimpleNamespace:
        def apply_async() -> None:
            if refusal is not None:
                raise refusal
            sent.append(Message(countdown, retries, kwargs))

        return SimpleNamespace(apply_async=apply_async, args=(), kwargs=kwargs)

    with _request(task, retries=retries, arguments=arguments):
        task.signature_from_request = signature
        try:
            task.run(**arguments)
        except Retry:
            assert sent
        except Reject:
            assert refusal is not None
        finally:
            del task.signature_from_request
    return sent[0] if sent else None


@contextmanager
def _request(task: Task, *, retries: int, arguments: dict[str, Any]) -> Iterator[None]:
    task.push_request(id="of-a-test", args=(), kwargs=arguments, retries=retries, called_directly=False, is_eager=False)
    try:
        yield
    finally:
        task.pop_request()

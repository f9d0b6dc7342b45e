"""Named points between the statements of real connections, at which a race is halted and resumed.

A point halts a thread before or after it executes a statement that contains a fragment. (For a prepared statement this
is its own text, not the EXECUTE.) A race therefore runs in the same order in every run, and nothing waits for time to
pass.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import Engine, event, text

from models.db.prepared import written

T = TypeVar("T")

DEADLINE = 120.0
"""Seconds after which a race that does not happen fails its test."""


class Point:
    """A point that halts the first thread with a given name at a statement, until `go`."""

    def __init__(self, fragment: str, *, thread: str) -> None:
        self._fragment = fragment
        self._thread = thread
        self._reached = threading.Event()
        self._go = threading.Event()

    def wait(self) -> None:
        """Wait until the thread is halted here."""
        assert self._reached.wait(DEADLINE), f"{self._thread} never came to {self._fragment!r}"

    def go(self) -> None:
        """Resume the thread."""
        self._go.set()

    def pass_by(self, statement: str) -> None:
        """Halt the intended thread, once. The hook of the engine calls this method."""
        meant = threading.current_thread().name == self._thread and self._fragment in " ".join(statement.split())
        if meant and not self._reached.is_set():
            self._reached.set()
            assert self._go.wait(DEADLINE), f"{self._thread} was never let go from {self._fragment!r}"


@contextmanager
def hook(engine: Engine, when: str, call: Callable[[str], None]) -> Iterator[None]:
    """Call `call` with each statement, `before` or `after` its execution, in the thread that executes it."""
    on = threading.Event()
    on.set()

    def listener(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if on.is_set() and not statement.startswith("PREPARE "):
            call(written(statement))

    # It stays on the test's engine: taking it off would change a list that other threads walk through.
    event.listen(engine, f"{when}_cursor_execute", listener)
    try:
        yield
    finally:
        on.clear()


@contextmanager
def stopped(engine: Engine, fragment: str, *, thread: str, when: str = "before") -> Iterator[Point]:
    """Halt `thread` at a statement. It is resumed at the end in any case."""
    point = Point(fragment, thread=thread)
    with hook(engine, when, point.pass_by):
        try:
            yield point
        finally:
            point.go()


def start(name: str, body: Callable[[], T]) -> Future[T]:
    """Run `body` in a thread of this name."""
    executor = ThreadPoolExecutor(1, thread_name_prefix=name)

    def named() -> T:
        threading.current_thread().name = name
        return body()

    future = executor.submit(named)
    executor.shutdown(wait=False)
    return future


def waiting_for_locks(engine: Engine) -> int:
    """Return the number of other connections of this database that wait for a lock."""
    with engine.connect() as db:
        found: int = db.execute(
            text("""
                SELECT count(*) FROM pg_stat_activity
                WHERE datname = current_database() AND wait_event_type = 'Lock' AND pid <> pg_backend_pid()
            """)
        ).scalar_one()
    return found

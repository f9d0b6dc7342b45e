"""Events of tasks are sent in batches. All are sent, also at the end of the worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from tasks.worker import events
from tasks.worker.app import app as ostler
from tasks.worker.events import BatchedEvents


class Timer:
    """A timer that runs its calls on command."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.cancelled = 0

    def call_repeatedly(self, _: float, call: Callable[[], None]) -> SimpleNamespace:
        self.calls.append(call)
        return SimpleNamespace(cancel=self._cancel)

    def _cancel(self) -> None:
        self.cancelled += 1


class Worker:
    """A consumer after Celery's own step of events, which records its publications."""

    def __init__(self, app: Celery) -> None:
        self.timer = Timer()
        self.published: list[Any] = []
        self.event_dispatcher: Any = app.events.Dispatcher(
            app.connection_for_write(), buffer_group=["task"], on_send_buffered=self._at_once
        )
        self.event_dispatcher._publish = lambda event, *_, **__: self.published.append(event)
        self.step = BatchedEvents(self)
        self.step.start(self)

    def _at_once(self) -> None:
        """Send the buffered events at once, as Celery does by default."""
        self.event_dispatcher.flush()

    def tell(self, count: int) -> None:
        for number in range(count):
            self.event_dispatcher.send("task-received", uuid=str(number))

    def told(self) -> list[str]:
        return [event["uuid"] for batch in self.published for event in batch]


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Celery("test", broker="memory://", set_as_current=False) as app:
        yield Worker(app)


def test_workers_have_the_step() -> None:
    assert BatchedEvents in ostler.steps["consumer"]


def test_events_wait_for_the_next_batch(worker: Worker) -> None:
    worker.tell(50)
    assert worker.published == []

    worker.timer.calls[0]()

    assert len(worker.published) == 1
    assert worker.told() == [str(number) for number in range(50)]


def test_no_batch_grows_without_bound(worker: Worker) -> None:
    worker.event_dispatcher.buffer_limit = 10
    worker.tell(25)
    assert [len(batch) for batch in worker.published] == [10, 10]
    assert events.MOST < 1000


def test_what_belongs_to_the_worker_does_not_wait(worker: Worker) -> None:
    worker.event_dispatcher.send("worker-heartbeat")
    assert len(worker.published) == 1


def test_the_end_of_a_worker_sends_what_is_left(worker: Worker) -> None:
    worker.tell(3)
    worker.step.shutdown(worker)
    assert worker.told() == ["0", "1", "2"]
    assert worker.timer.cancelled == 1


def test_a_new_connection_has_its_own_batches(worker: Worker) -> None:
    worker.step.stop(worker)
    worker.step.start(worker)
    assert worker.timer.cancelled == 1
    assert len(worker.timer.calls) == 2

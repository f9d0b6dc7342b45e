"""Events of workers about their tasks (Flower shows them), sent in batches.

Celery sends a batch of events with every turn of the worker's loop, which under load is one publication for each two
or three events. Here they wait for half a second: Flower shows them that much later, with the times at which they
happened, and a worker that is killed takes as much with it.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps

EVERY = 0.5
"""Seconds between two batches."""

MOST = 500
"""Events of a batch; one more sends them at once."""


class BatchedEvents(bootsteps.StartStopStep):  # type: ignore[misc]
    """A step of the worker, after the one that makes a dispatcher of events for each new connection."""

    requires = ("celery.worker.consumer.events:Events",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._ticks: Any = None

    def start(self, consumer: Any) -> None:
        """Send batches from now on."""
        dispatcher = consumer.event_dispatcher
        dispatcher.buffer_limit = MOST
        dispatcher.on_send_buffered = None
        self._ticks = consumer.timer.call_repeatedly(EVERY, dispatcher.flush)

    def stop(self, consumer: Any) -> None:  # noqa: ARG002 - Celery's
        """Send no more; the connection may be broken."""
        if self._ticks is not None:
            self._ticks.cancel()
            self._ticks = None

    def shutdown(self, consumer: Any) -> None:
        """Send what is left, at the end of the worker."""
        self.stop(consumer)
        if consumer.event_dispatcher is not None:
            consumer.event_dispatcher.flush()

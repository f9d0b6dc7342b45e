"""Celery events of workers about their tasks, sent in batches. Flower shows these events.

By default, Celery sends a batch in every turn of the worker's loop. Under load, such a batch has only two or three
events. With this module, an event waits for up to half a second before its batch is sent. Flower shows the event up to
half a second late, but with the original timestamp. A killed worker loses the events of at most half a second.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps

EVERY = 0.5
"""Seconds between two batches."""

MOST = 500
"""Upper bound on events in a batch. A batch that reaches this number is sent at once."""


class BatchedEvents(bootsteps.StartStopStep):  # type: ignore[misc]
    """Step of the worker that sends Celery's events in batches.

    The step runs after Celery's step that creates an event dispatcher for each new connection.
    """

    requires = ("celery.worker.consumer.events:Events",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._ticks: Any = None

    def start(self, consumer: Any) -> None:
        """Start to send events in batches."""
        dispatcher = consumer.event_dispatcher
        dispatcher.buffer_limit = MOST
        dispatcher.on_send_buffered = None
        self._ticks = consumer.timer.call_repeatedly(EVERY, dispatcher.flush)

    def stop(self, consumer: Any) -> None:  # noqa: ARG002 - Celery's
        """Stop sending batches at intervals. Send nothing, because the connection might already be broken."""
        if self._ticks is not None:
            self._ticks.cancel()
            self._ticks = None

    def shutdown(self, consumer: Any) -> None:
        """Send the remaining events when the worker ends."""
        self.stop(consumer)
        if consumer.event_dispatcher is not None:
            consumer.event_dispatcher.flush()

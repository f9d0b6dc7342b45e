"""Consumer of a worker: it waits before it connects to Redis again after a failure.

Celery reconnects at once. A Redis that accepts connections and refuses writes, such as a read-only replica, would then
cause about five reconnects per second, each with log lines.
"""

from __future__ import annotations

import time

import structlog
from celery.worker import state
from celery.worker.consumer import Consumer as CeleryConsumer

from ostler.reasons import reason_of
from ostler.transport import reading

log = structlog.get_logger(__name__)

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 4.0
"""Seconds before a reconnect. The pause doubles with each failure, from `FIRST_PAUSE` to `LONGEST_PAUSE`.

After a connection over which the worker has read its queues, the pause is short again.

A worker leaves a Redis that was demoted within `LONGEST_PAUSE` seconds after its address changed.
"""

_SLICE = 0.1


class Consumer(CeleryConsumer):  # type: ignore[misc]
    """Celery's consumer with a pause between two connections."""

    _pause = FIRST_PAUSE
    _resumed_at = float("-inf")

    def on_connection_error_before_connected(self, exc: BaseException) -> None:
        """Wait until the next connection may be opened. Raises what `_wait` raises."""
        self._wait(exc)

    def on_connection_error_after_connected(self, exc: BaseException) -> None:
        """Close the broken connection, and wait until the next one may be opened. Raises what `_wait` raises."""
        super().on_connection_error_after_connected(exc)
        self._wait(exc)

    def _wait(self, exc: BaseException) -> None:
        """Log a failure of Redis, and wait.

        Raises `WorkerShutdown` or `WorkerTerminate` if the worker is stopped meanwhile.
        """
        if reading.at > self._resumed_at:  # the last connection has worked
            self._pause = FIRST_PAUSE
        log.warning("worker.redis_failed", error=reason_of(exc), retry_after_seconds=self._pause)
        end = time.monotonic() + self._pause
        while time.monotonic() < end:
            state.maybe_shutdown()
            time.sleep(_SLICE)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._resumed_at = time.monotonic()

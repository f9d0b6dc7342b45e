"""Kubernetes Events of tasks. A separate thread writes the Events, so that no Event fails or delays a task.

Events are for people, and no code decides by them. An Event that exceeds the limits or cannot be written is dropped and
counted (`ostler_kubernetes_events_total`).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

import structlog

from k8s_adapters.calls.client import KubeClient
from k8s_adapters.runners.events import EventNote, Regarding, Type, write_event
from ostler import telemetry
from ostler.clock import utcnow
from ostler.errors import UpstreamError
from ostler.reasons import meaning_of
from rules.upstream.event_pace import Pace
from rules.upstream.retry import RetryPolicy

log = structlog.get_logger(__name__)

MOST = 100
"""Upper bound on Events that wait to be written."""

ONCE = RetryPolicy(attempts=1, deadline=5.0)


class Recorder:
    """Writes the Events of one process. `record` raises no error of an upstream and waits for no upstream."""

    def __init__(self, client: KubeClient, *, who: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._who = who
        self._clock = clock
        self._pace = Pace()
        self._waiting: queue.Queue[EventNote] = queue.Queue(maxsize=MOST)
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None

    def record(self, regarding: Regarding, kind: Type, reason: str, note: str) -> None:
        """Queue an Event, or drop the Event if the same object had too many Events lately."""
        told = EventNote(regarding, kind, reason, note, utcnow())
        with self._guard:
            if not self._pace.admits(regarding.uid, reason, note, now=self._clock()):
                telemetry.KUBERNETES_EVENTS.labels("dropped").inc()
                return
            try:
                self._run()
            except RuntimeError:  # no thread can be started; the task continues without its Event
                telemetry.KUBERNETES_EVENTS.labels("dropped").inc()
                return
        try:
            self._waiting.put_nowait(told)
        except queue.Full:
            telemetry.KUBERNETES_EVENTS.labels("dropped").inc()

    def _run(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._write_all, name="kubernetes-events", daemon=True)
            thread.start()
            self._thread = thread

    def _write_all(self) -> None:
        while True:
            self._write(self._waiting.get())
            self._waiting.task_done()

    def _write(self, note: EventNote) -> None:
        try:
            write_event(self._client, note, instance=self._who, policy=ONCE)
        except UpstreamError as error:
            telemetry.KUBERNETES_EVENTS.labels("failed").inc()
            log.info(
                "kubernetes_event.not_written", reason=note.reason, subject=note.regarding.name, error=meaning_of(error)
            )
            return
        telemetry.KUBERNETES_EVENTS.labels("written").inc()

    def flush(self) -> None:
        """Wait until each queued Event is written or dropped. For tests."""
        self._waiting.join()

"""Thread that lists Pods or pools, watches them, and starts a new watch when a watch ends or breaks."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from k8s_adapters.cluster.watching import Event, Watch, WatchExpired, WatchSilent
from ostler import telemetry
from ostler.errors import UpstreamError
from ostler.logging import get_logger
from ostler.reasons import meaning_of
from watch.subjects import Subject

FIRST_WAIT = 0.2
LONGEST_WAIT = 5.0
"""Maximum seconds before a new attempt.

The wait doubles from `FIRST_WAIT`. Each wait is shortened at random by up to half.
"""

LIST_AGAIN = 3
"""Number of consecutive failures, without an event in between, after which the follower lists all objects again.

The resource version at which the watch continues might be the cause of the failures.
"""

T = TypeVar("T")

log = get_logger(__name__)


class Follower(threading.Thread, Generic[T]):
    """Thread that lists and watches the objects of one subject until `stop()` is called.

    The thread passes every listed or changed object to the subject, and the subject records the hints. Without a call
    of `stop()`, only an unexpected exception ends the thread.
    """

    def __init__(self, subject: Subject[T], *, seconds: int, roll: Callable[[], float] = random.random) -> None:
        """Create a follower of `subject`. `seconds` is the maximum lifetime of one watch connection."""
        super().__init__(name=f"follower of {subject.name}", daemon=True)
        self._subject = subject
        self._seconds = seconds
        self._roll = roll
        self._stopped = threading.Event()
        self._changing = threading.Lock()
        self._watch: Watch[T] | None = None
        self._failures = 0

    @property
    def connected(self) -> bool:
        """True while a watch is connected.

        If a connection breaks without an error, the watch counts as connected until the connection times out.
        """
        return self._watch is not None

    def stop(self) -> None:
        """End the thread, even while the thread waits for an event or a new attempt."""
        self._stopped.set()
        with self._changing:
            if self._watch is not None:
                self._watch.stop()

    def run(self) -> None:
        """List and watch repeatedly until `stop()` is called."""
        try:
            while not self._stopped.is_set():
                try:
                    self._follow(self._list())
                except UpstreamError as error:
                    self._failed(error)
        finally:
            self._tell(0)

    def _list(self) -> str:
        """List all objects, and return the resource version at which the watch must start."""
        length, version = self._subject.list()
        if self._subject.counted:
            telemetry.WATCH_LISTS.inc()
        log.info("watch.objects_listed", namespace=self._subject.namespace, objects=self._subject.name, count=length)
        return version

    def _follow(self, version: str) -> None:
        """Watch the objects, starting at resource version `version`.

        If a connection ends or breaks, the watch continues with a new connection. The method returns when the objects
        must be listed again or `stop()` was called. Raises `WatchExpired` if the API server no longer has the resource
        version. After this error, the objects must also be listed again.
        """
        while not self._stopped.is_set():
            began = time.monotonic()
            try:
                with self._connect(version) as watch:
                    try:
                        for event in watch.events():
                            version = event.version
                            self._failures = 0
                            self._hear(event)
                    finally:
                        self._set(None)
            except WatchExpired:
                raise
            except UpstreamError as error:
                self._failed(error)
                if self._failures >= LIST_AGAIN:
                    return
                continue
            if self._stopped.is_set():
                return
            self._restarted("ended")
            if time.monotonic() - began < 1:  # avoid a busy loop if the API server ends each watch at once
                self._pause()

    def _connect(self, version: str) -> Watch[T]:
        seconds = max(1, round(self._seconds * (0.75 + 0.25 * self._roll())))
        watch = self._subject.connect(version, seconds=seconds)
        self._set(watch)
        if self._stopped.is_set():  # `stop()` ran before `_set`, so it did not stop this watch
            watch.stop()
        return watch

    def _set(self, watch: Watch[T] | None) -> None:
        with self._changing:
            self._watch = watch
        self._tell(int(watch is not None))

    def _tell(self, connected: int) -> None:
        if self._subject.counted:
            telemetry.WATCH_CONNECTED.set(connected)

    def _hear(self, event: Event[T]) -> None:
        if self._subject.counted:
            telemetry.watch_event(event.kind)
        if event.item is not None:
            self._subject.observe(event.item, deleted=event.kind == "DELETED")
        elif event.kind != "BOOKMARK":
            log.warning(
                "watch.event_not_parsed",
                namespace=self._subject.namespace,
                objects=self._subject.name,
                event_type=event.kind,
            )

    def _failed(self, error: UpstreamError) -> None:
        """Count and log a failure, then wait. The wait grows with each failure in a row."""
        self._failures += 1
        why = "expired" if isinstance(error, WatchExpired) else "silent" if isinstance(error, WatchSilent) else "failed"
        self._restarted(why)
        log.warning(
            "watch.restarted",
            namespace=self._subject.namespace,
            objects=self._subject.name,
            why=why,
            error=meaning_of(error),
            consecutive_failures=self._failures,
        )
        self._pause()

    def _restarted(self, why: str) -> None:
        if self._subject.counted:
            telemetry.WATCH_RESTARTS.labels(why).inc()

    def _pause(self) -> None:
        most = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(self._failures, 10))
        self._stopped.wait(most * (0.5 + 0.5 * self._roll()))

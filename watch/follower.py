"""Following Pods or pools: list, watch from there, and begin again where it broke, for as long as we lead."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from k8s_adapters.watching import Event, Watch, WatchExpired, WatchSilent
from ostler import telemetry
from ostler.errors import UpstreamError
from ostler.logging import get_logger
from watch.subjects import Subject

FIRST_WAIT = 0.2
LONGEST_WAIT = 5.0
"""Seconds before a new attempt at most; each is half of it at least, by dice."""

LIST_AGAIN = 3
"""Failures in a row, without an event between, after which the version that we go on from is not trusted any more."""

T = TypeVar("T")

log = get_logger(__name__)


class Follower(threading.Thread, Generic[T]):
    """Follows what its subject is until `stop()`; the subject notes what is worth telling.

    It never ends by itself. `connected` says whether a watch stands, as far as we can know.
    """

    def __init__(self, subject: Subject[T], *, seconds: int, roll: Callable[[], float] = random.random) -> None:
        """`seconds` is how long one connection lives at most."""
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
        """Whether a watch stands."""
        return self._watch is not None

    def stop(self) -> None:
        """End it, whatever it waits for."""
        self._stopped.set()
        with self._changing:
            if self._watch is not None:
                self._watch.stop()

    def run(self) -> None:
        """List and watch, over and over."""
        try:
            while not self._stopped.is_set():
                try:
                    self._follow(self._list())
                except UpstreamError as error:
                    self._failed(error)
        finally:
            self._tell(0)

    def _list(self) -> str:
        """Take the whole list; return the version to go on from."""
        length, version = self._subject.list()
        if self._subject.counted:
            telemetry.WATCH_LISTS.inc()
        log.info("watch.listed", of=self._subject.name, length=length)
        return version

    def _follow(self, version: str) -> None:
        """Watch from a version on, over connections that end or break. Raises `WatchExpired`: list again."""
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
            if time.monotonic() - began < 1:  # a server that ends each watch at once is not asked without a pause
                self._pause()

    def _connect(self, version: str) -> Watch[T]:
        seconds = max(1, round(self._seconds * (0.75 + 0.25 * self._roll())))
        watch = self._subject.connect(version, seconds=seconds)
        self._set(watch)
        if self._stopped.is_set():  # `stop()` came before it could see this one
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
            self._subject.see(event.item, deleted=event.kind == "DELETED")
        elif event.kind != "BOOKMARK":
            log.warning("watch.unreadable", of=self._subject.name, kind=event.kind)

    def _failed(self, error: UpstreamError) -> None:
        """Count it, and wait a moment that grows with the failures in a row."""
        self._failures += 1
        why = "expired" if isinstance(error, WatchExpired) else "silent" if isinstance(error, WatchSilent) else "failed"
        self._restarted(why)
        log.warning(
            "watch.began_again", of=self._subject.name, why=why, error=type(error).__name__, failures=self._failures
        )
        self._pause()

    def _restarted(self, why: str) -> None:
        if self._subject.counted:
            telemetry.WATCH_RESTARTS.labels(why).inc()

    def _pause(self) -> None:
        most = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(self._failures, 10))
        self._stopped.wait(most * (0.5 + 0.5 * self._roll()))

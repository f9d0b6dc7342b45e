"""Following the Pods: list, watch from there, and begin again where it broke, for as long as we lead."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from k8s_adapters.client import KubeClient
from k8s_adapters.pods import PodSeen, list_pods_at
from k8s_adapters.retry import RetryPolicy
from k8s_adapters.watching import PodEvent, PodWatch, WatchExpired, WatchSilent
from ostler import telemetry
from ostler.errors import UpstreamError
from ostler.logging import get_logger
from ostler.watch.hints import Hints
from rules.watching import Sight, hints_of

FIRST_WAIT = 0.2
LONGEST_WAIT = 5.0
"""Seconds before a new attempt at most; each is half of it at least, by dice."""

LIST_AGAIN = 3
"""Failures in a row, without an event between, after which the version that we go on from is not trusted any more."""

_ONE_LIST = RetryPolicy(attempts=1, deadline=20.0)

log = get_logger(__name__)


class Follower(threading.Thread):
    """Follows the runner Pods of a namespace until `stop()`, and notes what is worth telling.

    It never ends by itself. `connected` says whether a watch stands, as far as we can know.
    """

    def __init__(
        self,
        client: KubeClient,
        hints: Hints,
        *,
        namespace: str,
        seconds: int,
        roll: Callable[[], float] = random.random,
    ) -> None:
        """`seconds` is how long one connection lives at most."""
        super().__init__(name="follower", daemon=True)
        self._client = client
        self._hints = hints
        self._namespace = namespace
        self._seconds = seconds
        self._roll = roll
        self._stopped = threading.Event()
        self._changing = threading.Lock()
        self._watch: PodWatch | None = None
        self._pods: dict[str, Sight] = {}
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
            telemetry.WATCH_CONNECTED.set(0)

    def _list(self) -> str:
        """Take the whole list: what is missing from it may be gone. Returns the version to go on from."""
        pods, version = list_pods_at(self._client, namespace=self._namespace, policy=_ONE_LIST)
        telemetry.WATCH_LISTS.inc()
        for uid in set(self._pods).difference(pod.uid for pod in pods):
            self._see(uid, None)
        for pod in pods:
            self._see(pod.uid, pod)
        self._hints.look_at_everything()  # what was gone before we first looked is known to the rows alone
        log.info("watch.listed", pods=len(pods))
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
            telemetry.WATCH_RESTARTS.labels("ended").inc()
            if time.monotonic() - began < 1:  # a server that ends each watch at once is not asked without a pause
                self._pause()

    def _connect(self, version: str) -> PodWatch:
        seconds = max(1, round(self._seconds * (0.75 + 0.25 * self._roll())))
        watch = PodWatch(self._client, namespace=self._namespace, since=version, seconds=seconds)
        self._set(watch)
        if self._stopped.is_set():  # `stop()` came before it could see this one
            watch.stop()
        return watch

    def _set(self, watch: PodWatch | None) -> None:
        with self._changing:
            self._watch = watch
        telemetry.WATCH_CONNECTED.set(int(watch is not None))

    def _hear(self, event: PodEvent) -> None:
        telemetry.watch_event(event.kind)
        if event.pod is not None:
            self._see(event.pod.uid, None if event.kind == "DELETED" else event.pod)
        elif event.kind != "BOOKMARK":
            log.warning("watch.unreadable_pod", kind=event.kind)

    def _see(self, uid: str, pod: PodSeen | None) -> None:
        before = self._pods.get(uid)
        after = None if pod is None else Sight(pod.pool or "", terminal=pod.is_terminal, ready=pod.runner_ready)
        for hint in hints_of(before, after):
            self._hints.note(hint, uid=uid, pool=after.pool if after is not None else "")
        if after is None:
            self._pods.pop(uid, None)
        else:
            self._pods[uid] = after

    def _failed(self, error: UpstreamError) -> None:
        """Count it, and wait a moment that grows with the failures in a row."""
        self._failures += 1
        why = "expired" if isinstance(error, WatchExpired) else "silent" if isinstance(error, WatchSilent) else "failed"
        telemetry.WATCH_RESTARTS.labels(why).inc()
        log.warning("watch.began_again", why=why, error=type(error).__name__, failures=self._failures)
        self._pause()

    def _pause(self) -> None:
        most = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(self._failures, 10))
        self._stopped.wait(most * (0.5 + 0.5 * self._roll()))

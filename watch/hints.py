"""Queue of hints: hints are collected briefly and then sent as one message.

When a Pod ends, the reconciler of the Pod's pool is woken at once. If more Pods of the pool end, the reconciler is
woken at most once per second. A hint about a job that began is delayed, because the job's webhook normally arrives
first and reports the same change. While Redis does not answer, hints wait in memory. If too many hints about gone Pods
and begun jobs wait, the queue drops these hints and asks the sweeps to check everything.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypedDict

from ostler import telemetry
from ostler.logging import get_logger
from ostler.reasons import cause_of
from ostler.task_names import MISSING_PODS, PODS_CHANGED, POOL_CHANGED, POOLS
from ostler.wakes import Waker
from rules.claims.hook_pods import HookPod
from rules.upstream.watching import Hint

GATHER = 0.1
"""Minimum seconds between two messages."""

RECONCILE_EVERY = 1.0
"""Minimum seconds between two wakes of the reconciler of one pool. Each wake lists the Pods that have ended."""

EVERYTHING_EVERY = 10.0
"""Minimum seconds between two requests to the sweeps to check everything."""

BATCH = 500
"""Maximum number of Pods in one message, for each kind of hint."""

MOST = 10_000
"""Maximum number of waiting hints about gone Pods and begun jobs.

The same limit applies separately to hints about missing stamps.
"""

AGAIN = 1.0
"""Seconds to wait after a failed attempt to send a message."""

log = get_logger(__name__)


class Ending(TypedDict):
    """Last observation of a Pod that is gone. The observation is only shown to people.

    `deletion_at` is the time of the deletion request in ISO 8601. `deleted_first` is true if the watch saw the deletion
    request before the containers `poller` and `runner` had ended, and false if it saw their end before. `node` is the
    node that the Pod had. A value is None if the watch did not observe the value.
    """

    deletion_at: str | None
    deleted_first: bool | None
    reason: str | None
    runner_exit_code: int | None
    node: str | None


@dataclass(slots=True)
class Batch:
    """Hints that are sent together.

    `pools` are the pools in which a Pod ended. `ended` are those pools of them in which every such Pod is in a terminal
    phase. Three lists contain UIDs of Pods: `gone` (the Pod might be gone),
    `executing` (its runner began a job) and `unstamped` (its poller ended, and the Pod has no stamp). `endings`
    contains, by UID, how Pods in `gone` ended. A Pod is missing from `endings` if the watch did not observe its end.
    `hooks` contains the hook Pods that changed, packed, by the UID of their runner Pod. `changed` are pools whose
    RunnerPool changed. `everything` is true if the sweeps must check everything.
    """

    pools: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    endings: dict[str, Ending] = field(default_factory=dict)
    executing: list[str] = field(default_factory=list)
    unstamped: list[str] = field(default_factory=list)
    hooks: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)
    everything: bool = False

    def __bool__(self) -> bool:
        return bool(self.changed or self.everything or self.names_pods)

    @property
    def names_pods(self) -> bool:
        """True if the batch has a hint about a Pod, or about a pool in which a Pod ended."""
        return bool(self.pools or self.gone or self.executing or self.unstamped or self.hooks)


class Hints:
    """Queue of hints between the followers and the sender. All methods are thread-safe."""

    def __init__(self, *, executing_after: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._executing_after = executing_after
        self._clock = clock
        self._changed = threading.Condition()
        self._gone: dict[str, Ending | None] = {}
        self._executing: dict[str, float] = {}
        self._unstamped: dict[str, None] = {}
        self._pools: dict[str, bool] = {}
        self._kept: dict[str, float] = {}
        self._changed_pools: dict[str, None] = {}
        self._hooks: dict[tuple[str, str], dict[str, Any]] = {}
        self._everything = False
        self._everything_at = -EVERYTHING_EVERY
        self._closed = False

    def note(
        self, hint: Hint, *, uid: str, pool: str, ending: Ending | None = None, in_terminal_phase: bool = False
    ) -> None:
        """Add one hint about a Pod.

        `uid` is the UID of the Pod and `pool` the name of its pool. If the Pod is gone, `ending` says how the Pod
        ended. `ending` is None if the watch did not observe the end. `in_terminal_phase` is false if a list of the Pods
        in a terminal phase would not show the Pod.
        """
        telemetry.WATCH_HINTS.labels(hint).inc()
        with self._changed:
            match hint:
                case Hint.GONE:
                    self._gone[uid] = ending or self._gone.get(uid)
                    self._executing.pop(uid, None)
                case Hint.SPENT:
                    self._pools[pool] = in_terminal_phase and self._pools.get(pool, True)
                    self._executing.pop(uid, None)
                case Hint.EXECUTING:
                    self._executing[uid] = self._clock() + self._executing_after
                case Hint.UNSTAMPED if len(self._unstamped) < MOST:  # the sweep `resume` finds further Pods
                    self._unstamped[uid] = None
            if len(self._gone) + len(self._executing) > MOST:
                log.warning(
                    "watch.waiting_hints_dropped", gone_pods=len(self._gone), executing_pods=len(self._executing)
                )
                self._gone.clear()
                self._executing.clear()
                self._everything = True
            self._changed.notify()

    def record_pool(self, name: str) -> None:
        """Add a hint that the spec of a pool changed, or that the pool was created or deleted."""
        telemetry.WATCH_HINTS.labels("pool").inc()
        with self._changed:
            self._changed_pools[name] = None
            self._changed.notify()

    def record_hook_pod(self, runner: str, pod: HookPod) -> None:
        """Add the state of a hook Pod. `runner` is the UID of its runner Pod. Above `MOST`, new Pods are left out."""
        telemetry.WATCH_HINTS.labels("hook_pod").inc()
        key = (runner, pod.name)
        with self._changed:
            if key in self._hooks or len(self._hooks) < MOST:
                self._hooks[key] = pod.packed()
                self._changed.notify()

    def resync(self) -> None:
        """Ask the sweeps to check everything, because events might have been missed."""
        with self._changed:
            self._everything = True
            self._changed.notify()

    def clear(self) -> None:
        """Drop all hints that were not sent. The next leader lists all Pods and asks the sweeps to check everything."""
        with self._changed:
            for waiting in (self._gone, self._executing, self._unstamped, self._pools, self._changed_pools):
                waiting.clear()
            self._hooks.clear()
            self._everything = False

    def close(self) -> None:
        """Close the queue. After that, `next_batch` returns the hints that are due, and then None."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def next_batch(self) -> Batch | None:
        """Wait until a hint is due, then remove and return all due hints.

        Return None if the queue is closed and no hint is due.
        """
        with self._changed:
            while True:
                batch = self._take(self._clock())
                if batch or self._closed:
                    return batch or None
                self._changed.wait(self._wait(self._clock()))

    def put_back(self, batch: Batch) -> None:
        """Add the hints of a batch to the queue again, because the batch could not be sent."""
        with self._changed:
            self._gone.update({uid: batch.endings.get(uid) for uid in batch.gone})
            self._unstamped.update(dict.fromkeys(batch.unstamped))
            self._pools.update({pool: pool in batch.ended and self._pools.get(pool, True) for pool in batch.pools})
            self._changed_pools.update(dict.fromkeys(batch.changed))
            for runner, pods in batch.hooks.items():
                for pod in pods:
                    self._hooks.setdefault((runner, pod["name"]), pod)
            for pool in batch.pools:
                self._kept.pop(pool, None)
            for uid in batch.executing:
                self._executing.setdefault(uid, self._clock())
            if batch.everything:
                self._everything, self._everything_at = True, -EVERYTHING_EVERY

    def _take(self, now: float) -> Batch:
        batch = Batch(
            pools=[pool for pool in self._pools if self._pool_due(pool) <= now],
            gone=list(self._gone)[:BATCH],
            executing=[uid for uid, due in self._executing.items() if due <= now][:BATCH],
            unstamped=list(self._unstamped)[:BATCH],
            changed=list(self._changed_pools),
        )
        batch.ended = [pool for pool in batch.pools if self._pools[pool]]
        self._changed_pools.clear()
        for uid in batch.gone:
            if (ending := self._gone.pop(uid)) is not None:
                batch.endings[uid] = ending
        for uid in batch.executing:
            del self._executing[uid]
        for uid in batch.unstamped:
            del self._unstamped[uid]
        for key in list(self._hooks)[:BATCH]:
            batch.hooks.setdefault(key[0], []).append(self._hooks.pop(key))
        for pool in batch.pools:
            del self._pools[pool]
            self._kept[pool] = now
        if self._everything and now >= self._everything_at + EVERYTHING_EVERY:
            batch.everything, self._everything, self._everything_at = True, False, now
        return batch

    def _pool_due(self, pool: str) -> float:
        return self._kept.get(pool, -RECONCILE_EVERY) + RECONCILE_EVERY

    def _wait(self, now: float) -> float | None:
        """Return the seconds until a hint is due, or None if no hint is waiting."""
        due = [*self._executing.values(), *map(self._pool_due, self._pools)]
        if self._everything:
            due.append(self._everything_at + EVERYTHING_EVERY)
        return max(0.0, min(due) - now) if due else None


def send(waker: Waker, batch: Batch, *, namespace: str) -> None:
    """Send a batch as Celery messages. The function does not catch exceptions of the waker."""
    if batch.everything:
        waker.send(POOLS)
        waker.send(MISSING_PODS)
    for name in batch.changed:
        waker.send(POOL_CHANGED, namespace=namespace, pool=name)
    if batch.names_pods:
        waker.send(
            PODS_CHANGED,
            namespace=namespace,
            pools=batch.pools,
            ended=batch.ended,
            gone=batch.gone,
            executing=batch.executing,
            unstamped=batch.unstamped,
            endings=batch.endings,
            hooks=batch.hooks,
        )


def send_all(hints: Hints, waker: Waker, *, namespace: str, stopped: threading.Event) -> None:
    """Send each batch when it is due, until `hints` is closed. This function is the body of a thread.

    `stopped` is set when the process must end. If a batch cannot be sent after that, this batch and all later hints are
    dropped.
    """
    while (batch := hints.next_batch()) is not None:
        try:
            send(waker, batch, namespace=namespace)
        except Exception as error:  # noqa: BLE001 - redis and kombu raise many classes; no error must end this thread
            log.warning("watch.hints_not_sent", namespace=namespace, error=cause_of(error))
            hints.put_back(batch)
            if stopped.wait(AGAIN):
                return
        else:
            stopped.wait(GATHER)

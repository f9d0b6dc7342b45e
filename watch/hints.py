"""Hints that are not sent yet: they are gathered for a moment, then sent as one message.

A pool's reconciler is woken at once when a Pod has ended, and once a second at most while more of them do. Of a job
that began nothing is told before its webhook had time to come. While Redis is away hints wait, up to a bound; beyond it
the sweeps are asked to check everything.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypedDict

from ostler import telemetry
from ostler.logging import get_logger
from ostler.task_names import MISSING_PODS, PODS_CHANGED, POOL_CHANGED, POOLS
from ostler.wakes import Waker
from rules.upstream.watching import Hint

GATHER = 0.1
"""Seconds between two messages at least."""

KEEPER_EVERY = 1.0
"""Seconds between two wakes of one pool's reconciler at least: it lists all Pods of its pool."""

EVERYTHING_EVERY = 10.0
"""Seconds between two times that the sweeps are asked to check everything at least."""

BATCH = 500
"""Pods that one message names at most."""

MOST = 10_000
"""Pods that wait to be named at most."""

AGAIN = 1.0
"""Seconds after a message that could not be sent."""

log = get_logger(__name__)


class Ending(TypedDict):
    """The last sight of a Pod that is gone, for people to read; `deletion_at` is ISO 8601."""

    deletion_at: str | None
    reason: str | None
    runner_exit_code: int | None


@dataclass(slots=True)
class Batch:
    """What is told at a time, and whether the sweeps are to check everything. `changed` are pools.

    `endings` are of those of the Pods that are `gone` whose last sight said how they ended.
    """

    pools: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    endings: dict[str, Ending] = field(default_factory=dict)
    executing: list[str] = field(default_factory=list)
    unstamped: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    everything: bool = False

    def __bool__(self) -> bool:
        return bool(self.changed or self.everything or self.names_pods)

    @property
    def names_pods(self) -> bool:
        """Subject of a hint: a Pod, or the pool of a Pod that ended."""
        return bool(self.pools or self.gone or self.executing or self.unstamped)


class Hints:
    """Hints on their way; every method may be called from any thread."""

    def __init__(self, *, executing_after: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._executing_after = executing_after
        self._clock = clock
        self._changed = threading.Condition()
        self._gone: dict[str, Ending | None] = {}
        self._executing: dict[str, float] = {}
        self._unstamped: dict[str, None] = {}
        self._pools: dict[str, None] = {}
        self._kept: dict[str, float] = {}
        self._changed_pools: dict[str, None] = {}
        self._everything = False
        self._everything_at = -EVERYTHING_EVERY
        self._closed = False

    def note(self, hint: Hint, *, uid: str, pool: str, ending: Ending | None = None) -> None:
        """Take one hint; `ending` is of a Pod that is gone."""
        telemetry.WATCH_HINTS.labels(hint).inc()
        with self._changed:
            match hint:
                case Hint.GONE:
                    self._gone[uid] = ending or self._gone.get(uid)
                    self._executing.pop(uid, None)
                case Hint.SPENT:
                    self._pools[pool] = None
                    self._executing.pop(uid, None)
                case Hint.EXECUTING:
                    self._executing[uid] = self._clock() + self._executing_after
                case Hint.UNSTAMPED if len(self._unstamped) < MOST:  # `resume` finds what is left out
                    self._unstamped[uid] = None
            if len(self._gone) + len(self._executing) > MOST:
                log.warning("watch.hints_dropped", gone=len(self._gone), executing=len(self._executing))
                self._gone.clear()
                self._executing.clear()
                self._everything = True
            self._changed.notify()

    def record_pool(self, name: str) -> None:
        """A pool's spec has changed, or it came or went."""
        telemetry.WATCH_HINTS.labels("pool").inc()
        with self._changed:
            self._changed_pools[name] = None
            self._changed.notify()

    def resync(self) -> None:
        """Events may have been missed: let the sweeps look."""
        with self._changed:
            self._everything = True
            self._changed.notify()

    def forget(self) -> None:
        """Drop what was not sent: another process leads now, and sees the same Pods."""
        with self._changed:
            for waiting in (self._gone, self._executing, self._unstamped, self._pools, self._changed_pools):
                waiting.clear()
            self._everything = False

    def close(self) -> None:
        """Let `next_batch` return what is due, and then None."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def next_batch(self) -> Batch | None:
        """Wait until something is due and take it; None once it is closed and nothing is."""
        with self._changed:
            while True:
                batch = self._take(self._clock())
                if batch or self._closed:
                    return batch or None
                self._changed.wait(self._wait(self._clock()))

    def put_back(self, batch: Batch) -> None:
        """Take back a batch that could not be sent."""
        with self._changed:
            self._gone.update({uid: batch.endings.get(uid) for uid in batch.gone})
            self._unstamped.update(dict.fromkeys(batch.unstamped))
            self._pools.update(dict.fromkeys(batch.pools))
            self._changed_pools.update(dict.fromkeys(batch.changed))
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
        self._changed_pools.clear()
        for uid in batch.gone:
            if (ending := self._gone.pop(uid)) is not None:
                batch.endings[uid] = ending
        for uid in batch.executing:
            del self._executing[uid]
        for uid in batch.unstamped:
            del self._unstamped[uid]
        for pool in batch.pools:
            del self._pools[pool]
            self._kept[pool] = now
        if self._everything and now >= self._everything_at + EVERYTHING_EVERY:
            batch.everything, self._everything, self._everything_at = True, False, now
        return batch

    def _pool_due(self, pool: str) -> float:
        return self._kept.get(pool, -KEEPER_EVERY) + KEEPER_EVERY

    def _wait(self, now: float) -> float | None:
        """Return the seconds until something is due; None when nothing waits."""
        due = [*self._executing.values(), *map(self._pool_due, self._pools)]
        if self._everything:
            due.append(self._everything_at + EVERYTHING_EVERY)
        return max(0.0, min(due) - now) if due else None


def send(waker: Waker, batch: Batch, *, namespace: str) -> None:
    """Send a batch. Raises what the waker raises."""
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
            gone=batch.gone,
            executing=batch.executing,
            unstamped=batch.unstamped,
            endings=batch.endings,
        )


def send_all(hints: Hints, waker: Waker, *, namespace: str, stopped: threading.Event) -> None:
    """Send batches as they become due, until `hints` are closed; the body of a thread."""
    while (batch := hints.next_batch()) is not None:
        try:
            send(waker, batch, namespace=namespace)
        except Exception as error:  # noqa: BLE001 - redis and kombu raise anything; nothing may end this thread
            log.warning("watch.not_sent", error=type(error).__name__)
            hints.put_back(batch)
            if stopped.wait(AGAIN):
                return
        else:
            stopped.wait(GATHER)

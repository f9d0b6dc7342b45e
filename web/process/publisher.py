"""The publisher: one thread that sends what the request path only notes down.

Publishing to a Redis that does not answer costs a thread up to a second, so no request ever does it.
What waits is bounded; what does not fit is dropped and counted, and `resume` finds the same rows (law L6).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import redis
from kombu.exceptions import KombuError, OperationalError

from ostler.logging import get_logger
from ostler.secrets import Secret
from ostler.task_names import RECONCILE, TaskName
from ostler.wakes import Waker

MOST_POOLS = 10_000
MOST_MESSAGES = 1_000
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0

log = get_logger(__name__)


class Sender(Protocol):
    """What sends: `ostler.wakes.Waker`, or a test's."""

    def wake(self, pool_id: int) -> bool:
        """Send a dispatch of the pool unless one waits."""

    def clear_wake(self, pool_id: int) -> None:
        """Forget that a dispatch of the pool waits."""

    def reconcile(self, pool_id: int) -> None:
        """Send a reconcile of the pool unless one waits."""

    def send(self, name: TaskName, **kwargs: Any) -> None:
        """Send a task by name."""

    def close(self) -> None:
        """Close the connections."""


@dataclass(frozen=True, slots=True)
class _Message:
    name: str
    send: Callable[[], None]


class Publisher:
    """Notes down pools to wake and tasks to send; its thread sends them as long as Redis answers."""

    def __init__(self, redis_url: Secret, *, sender: Sender | None = None) -> None:
        self._sender: Sender = sender if sender is not None else Waker(redis_url)
        self._changed = threading.Condition()
        self._pools: dict[int, None] = {}  # a set that keeps its order
        self._messages: deque[_Message] = deque()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self.dropped = 0
        self.failures = 0

    @property
    def depth(self) -> int:
        """Return how much waits to be sent."""
        return len(self._pools) + len(self._messages)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, *, timeout: float = 2.0) -> None:
        """Send what is left, for `timeout` seconds at most, and end the thread."""
        with self._changed:
            self._stopping.set()
            self._changed.notify()
        self._thread.join(timeout)
        if self._thread.is_alive():
            log.warning("publisher.thread_still_runs", depth=self.depth)
            return
        self._sender.close()

    def wake(self, pool_ids: Iterable[int]) -> None:
        """Have the matcher check these pools; returns at once."""
        with self._changed:
            for pool_id in pool_ids:
                if pool_id in self._pools:
                    continue
                if len(self._pools) >= MOST_POOLS:
                    self._drop("wake")
                    continue
                self._pools[pool_id] = None
            self._changed.notify()

    def reconcile(self, pool_id: int) -> None:
        """Have a reconcile of this pool sent unless one waits. Returns at once."""
        self._append(_Message(RECONCILE, partial(self._sender.reconcile, pool_id)))

    def send(self, name: TaskName, **kwargs: Any) -> None:
        """Have a task sent by its name; arguments are ids only (L13). Returns at once."""
        self._append(_Message(name, partial(self._sender.send, name, **kwargs)))

    def _append(self, message: _Message) -> None:
        with self._changed:
            if len(self._messages) >= MOST_MESSAGES:
                self._drop(message.name)
                return
            self._messages.append(message)
            self._changed.notify()

    def _drop(self, what: str) -> None:
        self.dropped += 1
        log.warning("publisher.dropped", what=what, dropped=self.dropped)

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            item = self._next()
            if item is None:
                return
            try:
                self._publish(item)
            except (redis.RedisError, KombuError, OperationalError, OSError) as error:
                self.failures += 1
                log.warning("publisher.failed", error=type(error).__name__, depth=self.depth, pause=pause)
                self._put_back(item)
                if self._stopping.wait(pause):
                    return
                pause = min(2 * pause, _LONGEST_PAUSE)
                if isinstance(item, int):
                    self._forget_wake(item)
            except Exception:  # one message that cannot be sent must not end the thread for all (L14)
                self.failures += 1
                log.exception("publisher.message_failed")
            else:
                pause = _FIRST_PAUSE

    def _next(self) -> int | _Message | None:
        with self._changed:
            while not self._pools and not self._messages:
                if self._stopping.is_set():
                    return None
                self._changed.wait()
            if self._pools:
                pool_id = next(iter(self._pools))
                del self._pools[pool_id]
                return pool_id
            return self._messages.popleft()

    def _publish(self, item: int | _Message) -> None:
        if isinstance(item, int):
            self._sender.wake(item)
        else:
            item.send()

    def _put_back(self, item: int | _Message) -> None:
        with self._changed:
            if isinstance(item, int):
                self._pools[item] = None
            else:
                self._messages.appendleft(item)

    def _forget_wake(self, pool_id: int) -> None:
        # The key may stand although its message was never sent: it would swallow the next try.
        try:
            self._sender.clear_wake(pool_id)
        except (redis.RedisError, OSError) as error:
            log.info("publisher.wake_key_not_deleted", pool=pool_id, error=type(error).__name__)

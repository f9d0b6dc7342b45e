"""The publisher: one thread that sends wakes and tasks. Handlers of requests only queue them.

If Redis does not answer, a send blocks its thread for up to a second. The handler of a request therefore never sends a
message itself. The queues are bounded. A message that does not fit into its queue is dropped and counted. A sweep or
another periodic task later finds the row that the message was for (law L6).
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
from ostler.reasons import reason_of
from ostler.secrets import Secret
from ostler.task_names import RECONCILE, TaskName
from ostler.wakes import Waker

MOST_POOLS = 10_000
MOST_MESSAGES = 1_000
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0

log = get_logger(__name__)


class Sender(Protocol):
    """Interface for sending wakes and tasks. It is implemented by `ostler.wakes.Waker`, and by stubs in tests."""

    def wake(self, pool_id: int) -> bool:
        """Send a dispatch of the pool, unless a dispatch of the pool is already queued."""

    def clear_wake(self, pool_id: int) -> None:
        """Delete the key in Redis that shows that a dispatch of the pool is queued."""

    def reconcile(self, pool_id: int, *, ended: bool) -> None:
        """Send a reconcile of the pool, unless a reconcile of the pool is already queued.

        If `ended` is true, the reconcile handles only Pods that have ended.
        """

    def clear_reconcile(self, pool_id: int, *, ended: bool) -> None:
        """Delete the key in Redis that shows that such a reconcile of the pool is queued."""

    def send(self, name: TaskName, **kwargs: Any) -> None:
        """Send a task by name."""

    def close(self) -> None:
        """Close the connections."""


@dataclass(frozen=True, slots=True)
class _Message:
    name: str
    send: Callable[[], None]
    clear: Callable[[], None] | None = None
    """Deletes the key in Redis that shows that this message is queued. None if it has no key."""


class Publisher:
    """Queues pools to wake and tasks to send.

    Its thread sends the wakes and tasks, and retries while Redis does not answer.
    """

    def __init__(self, redis_url: Secret, *, sender: Sender | None = None) -> None:
        self._sender: Sender = sender if sender is not None else Waker(redis_url)
        self._changed = threading.Condition()
        self._pools: dict[int, None] = {}  # a dict serves as a set that preserves insertion order
        self._messages: deque[_Message] = deque()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self.dropped = 0
        self.failures = 0

    @property
    def depth(self) -> int:
        """Return how many wakes and messages wait to be sent."""
        return len(self._pools) + len(self._messages)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, *, timeout: float = 2.0) -> None:
        """End the thread after it has sent the remaining messages. Wait for its end for at most `timeout` seconds.

        If Redis does not answer during this time, the remaining messages are lost.
        """
        with self._changed:
            self._stopping.set()
            self._changed.notify()
        self._thread.join(timeout)
        if self._thread.is_alive():
            log.warning("publisher.not_stopped_in_time", waiting_messages=self.depth)
            return
        self._sender.close()

    def wake(self, pool_ids: Iterable[int]) -> None:
        """Queue a wake of the matcher for each of these pools.

        This method returns before the wakes are sent.
        """
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
        """Put a reconcile of this pool's ended Pods into the publisher's queue, and return before the message is sent.

        The publisher's thread later sends the message to Redis, unless Redis already has a reconcile of the pool.
        """
        sender = self._sender
        self._append(
            _Message(
                RECONCILE,
                partial(sender.reconcile, pool_id, ended=True),
                clear=partial(sender.clear_reconcile, pool_id, ended=True),
            )
        )

    def send(self, name: TaskName, **kwargs: Any) -> None:
        """Queue a task by its name. The arguments must be ids only (law L13).

        This method returns before the message is sent.
        """
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
        log.warning("publisher.message_dropped", message=what, dropped_since_start=self.dropped)

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
                log.warning(
                    "publisher.send_failed",
                    message=_name_of(item),
                    error=reason_of(error),
                    waiting_messages=self.depth,
                    retry_after_seconds=pause,
                )
                self._put_back(item)
                if self._stopping.wait(pause):
                    return
                pause = min(2 * pause, _LONGEST_PAUSE)
                self._clear_key(item)
            except Exception:  # a message that cannot be sent must not stop the other messages (L14)
                self.failures += 1
                log.exception("publisher.message_lost_after_error", message=_name_of(item))
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

    def _clear_key(self, item: int | _Message) -> None:
        # The key might exist although no message was sent. The key would then suppress the next attempt.
        clear = partial(self._sender.clear_wake, item) if isinstance(item, int) else item.clear
        if clear is None:
            return
        try:
            clear()
        except (redis.RedisError, OSError) as error:
            log.info("publisher.redis_key_not_deleted", message=_name_of(item), error=reason_of(error))


def _name_of(item: int | _Message) -> str:
    return f"wake of pool {item}" if isinstance(item, int) else item.name

"""Wake-ups: messages that ask workers to run a task now.

A wake is a hint (law L6). Losing a wake costs only seconds, because the sweep `resume` or another periodic task finds
the same rows. To wake a pool, the sender runs `SET ostler:wake:<pool> NX PX 2000`. The sender then sends the message
only if Redis has set the key. Normally, at most one dispatch of a pool therefore runs and at most one waits. More can
wait if the workers need more than 2 seconds to begin a dispatch.

A process without this module can send a wake with Celery alone (docs/operations/waking.md). The process calls
`send_task("ostler.dispatch", kwargs={"pool": "small"})` with `ostler.task_names.ROUTES` as its `task_routes`. If the
process does not set the key, the only cost is an additional run of the matcher.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any

import redis
from celery import Celery

from ostler import transport
from ostler.redis_clients import make_client
from ostler.secrets import Secret
from ostler.task_names import AUTOSCALE, DISPATCH, EXPIRES, HINTS, RECONCILE, ROUTES, TaskName, queue_of

WAKE_MS = 2000
RECONCILE_MS = 10_000
AUTOSCALE_MS = 1_000
REST_MS = 2
"""Milliseconds for each Pod of a pool between two reconciles of the pool, up to `RECONCILE_MS` in total."""
RESTS_FROM = 100
"""Number of Pods. A pool with at least this number of Pods must wait between two reconciles (`REST_MS`).

A smaller pool is reconciled after each wake.
"""
COUNT_MS = 60_000
SINGLE_FLIGHT_MS = 5_000

_TIMEOUT = 0.5
_TIMEOUT_UNDER_LOCK = 0.2


def wake_key(pool_id: int) -> str:
    """Return the Redis key that exists while a dispatch of this pool waits."""
    return f"ostler:wake:{pool_id}"


def reconcile_key(pool_id: int) -> str:
    """Return the Redis key that exists while a reconcile of this pool waits."""
    return f"ostler:reconcile:{pool_id}"


def ended_key(pool_id: int) -> str:
    """Return the Redis key that exists while a reconcile of this pool's ended Pods waits (`Waker.reconcile`)."""
    return f"ostler:reconcile:{pool_id}:ended"


def tick_key(pool_id: int) -> str:
    """Return the Redis key that exists while a shared reconcile of this pool waits.

    `Waker.reconcile` describes shared reconciles.
    """
    return f"ostler:tick:{pool_id}"


def _waiting_key(pool_id: int, *, shared: bool = False, ended: bool = False) -> str:
    return tick_key(pool_id) if shared else ended_key(pool_id) if ended else reconcile_key(pool_id)


def rest_key(pool_id: int) -> str:
    """Return the Redis key that exists until the next reconcile of this pool with a list of its own may begin."""
    return f"ostler:rest:{pool_id}"


def count_key(pool_id: int) -> str:
    """Return the Redis key with the number of Pods that the last list of this pool contained."""
    return f"ostler:pods:{pool_id}"


def watch_key(namespace: str) -> str:
    """Return the Redis key that exists while the watch receives the events of the Pods in a namespace."""
    return f"ostler:watched:{namespace}"


def producer(redis_url: Secret) -> Celery:
    """Return a Celery app that only sends messages.

    The app tries to send a message once, encodes the message as JSON, and requests no result.
    """
    transport.install()
    app = Celery("ostler-producer", broker=redis_url.reveal(), set_as_current=False)
    app.conf.update(
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        task_publish_retry=False,
        broker_connection_timeout=1,
        broker_transport_options={
            "socket_timeout": 1,
            "socket_connect_timeout": 1,
            "health_check_interval": 10,
            "socket_keepalive": True,
        },
        task_send_sent_event=True,
        task_routes=ROUTES,
    )
    return app


class Waker:
    """Sender of wake-ups. Without `app`, the sender makes an application of its own for its messages.

    Methods pass on the exceptions of redis and kombu unless they say otherwise.
    """

    def __init__(self, redis_url: Secret, *, app: Celery | None = None) -> None:
        self._app = app if app is not None else producer(redis_url)
        self._redis = make_client(
            redis_url.reveal(), socket_timeout=_TIMEOUT, socket_connect_timeout=_TIMEOUT, health_check_interval=10
        )
        self._redis_under_lock = make_client(
            redis_url.reveal(), socket_timeout=_TIMEOUT_UNDER_LOCK, socket_connect_timeout=_TIMEOUT_UNDER_LOCK
        )

    def wake(self, pool_id: int, *, after: float = 0) -> bool:
        """Send a dispatch of this pool, unless its wake key exists. The dispatch runs `after` seconds from now.

        Return True if the dispatch was sent; False if the key shows that a dispatch is waiting.
        """
        if not self._redis.set(wake_key(pool_id), "1", nx=True, px=WAKE_MS):
            return False
        self.send(DISPATCH, after=after, pool_id=pool_id)
        return True

    def oldest(self, queue: str) -> datetime | None:
        """Return the send time of the oldest message at the head of a queue.

        Return None if the queue is empty or its messages have no send time.
        """
        return transport.head_of(self._redis.lrange(queue, *transport.HEAD))

    def clear_wake(self, pool_id: int) -> None:
        """Delete the wake key of this pool.

        The matcher calls this method while it holds the lock of the pool. If the deletion fails, the key expires after
        `WAKE_MS` milliseconds. Until then, a wake of the pool sends no dispatch, and jobs might wait for the sweep
        `resume`.
        """
        self._redis_under_lock.delete(wake_key(pool_id))

    def clear_reconcile(self, pool_id: int, *, shared: bool = False, ended: bool = False) -> None:
        """Delete the key that says that a reconcile of this pool waits.

        The task calls this method before it lists the Pods of the pool. `shared` is true for a shared reconcile, and
        `ended` for a reconcile of the ended Pods. Both have keys of their own (`reconcile`).
        """
        self._redis.delete(_waiting_key(pool_id, shared=shared, ended=ended))

    def record_pod_count(self, pool_id: int, *, pods: int) -> None:
        """Record the number of Pods of a pool. This number determines the time between the next reconciles of the pool.

        Exceptions of redis are ignored.
        """
        with suppress(redis.RedisError):
            self._redis.set(count_key(pool_id), pods, px=COUNT_MS)

    def may_reconcile(self, pool_id: int) -> bool:
        """Return True if a reconcile of this pool may begin; False if the last one began too recently.

        A reconcile without a shared list makes a list of its own, so the reconciles of a large pool need time between
        them: 2 s for 1,000 Pods, and none for fewer than 100 Pods. If the result is True, the time until the next
        reconcile starts now. The result is also True if Redis does not answer.
        """
        try:
            pods = int(self._redis.get(count_key(pool_id)) or 0)
            rest = min(RECONCILE_MS, REST_MS * pods)
            return pods < RESTS_FROM or bool(self._redis.set(rest_key(pool_id), "1", nx=True, px=rest))
        except redis.RedisError:
            return True

    def mark_watched(self, namespace: str, *, seconds: float) -> None:
        """Record that the watch wakes the reconcilers of this namespace when a Pod ends.

        The record expires after `seconds` seconds.
        """
        self._redis.set(watch_key(namespace), "1", px=round(seconds * 1000))

    def is_watched(self, namespace: str) -> bool:
        """Return whether `mark_watched` was called for this namespace and its record has not expired."""
        return bool(self._redis.exists(watch_key(namespace)))

    @contextmanager
    def single_flight(self, what: str) -> Iterator[bool]:
        """Yield True if no other block with the same name `what` began within the last 5 s; False otherwise.

        If several workers find the same work at the same time, only one worker does the work. The key is not a lock: if
        Redis loses the key or does not answer, several workers can get True. If the block raises an exception after
        True, the key is deleted, so that another worker can do the work at once.
        """
        key = f"ostler:single_flight:{what}"
        try:
            first = bool(self._redis.set(key, "1", nx=True, px=SINGLE_FLIGHT_MS))
        except redis.RedisError:
            first = True
        try:
            yield first
        except BaseException:
            if first:
                with suppress(redis.RedisError):
                    self._redis.delete(key)
            raise

    def reconcile(self, pool_id: int, *, after: float = 0, shared: bool = False, ended: bool = False) -> None:
        """Send a reconcile of this pool, unless one is waiting. The reconcile runs after at least `after` seconds.

        If `ended` is true, only Pods of the pool have ended, and the reconcile lists no other Pods. It does not replace
        a reconcile that lists all Pods, and has a key of its own.

        The reconcile of a large pool also waits for the time that `may_reconcile` requires. If `shared` is true, the
        reconcile is shared: it may use a list of all pools' Pods that was made for several reconciles. This list might
        be older than a wake. A waiting shared reconcile therefore does not replace a reconcile that a wake requests. A
        waiting shared reconcile only prevents that further shared reconciles are sent.
        """
        if shared:
            if self._redis.set(tick_key(pool_id), "1", nx=True, px=RECONCILE_MS):
                self.send(RECONCILE, after=after, pool_id=pool_id, shared=True)
            return
        if self._redis.set(_waiting_key(pool_id, ended=ended), "1", nx=True, px=RECONCILE_MS):
            rest = self._redis.pttl(rest_key(pool_id)) / 1000
            which = {"ended": True} if ended else {}
            self.send(RECONCILE, after=max(after, rest), pool_id=pool_id, **which)

    def autoscale(self) -> None:
        """Send a run of the autoscaler, unless two were sent within the last second.

        The first run in a second starts at once. The second run starts a second later, so that it processes changes
        that came after the first run.
        """
        if self._redis.set("ostler:autoscale", "1", nx=True, px=AUTOSCALE_MS):
            self.send(AUTOSCALE)
        elif self._redis.set("ostler:autoscale:next", "1", nx=True, px=AUTOSCALE_MS):
            self.send(AUTOSCALE, after=AUTOSCALE_MS / 1000)

    def send(self, name: TaskName, *, after: float = 0, retries: int = 0, **kwargs: Any) -> None:
        """Send a task to its queue. The task runs `after` seconds from now. Its arguments contain no secret (law L13).

        `retries` is the number of earlier attempts, which count against the retries of the task's policy.

        This method sends every message. For a dispatch, a reconcile or a run of the autoscaler, call `wake`,
        `reconcile` or `autoscale`. These methods send nothing while such a message waits.
        """
        self._app.send_task(
            name,
            kwargs=kwargs,
            queue=queue_of(name),
            countdown=after or None,
            retries=retries,
            expires=EXPIRES if name in HINTS else None,
            ignore_result=True,
        )

    def close(self) -> None:
        """Close the connections to Redis."""
        self._redis.close()
        self._redis_under_lock.close()
        self._app.close()

"""Wake-ups: how anything outside a worker asks for a task, by its documented name.

A wake is a hint (law L6): losing one costs seconds, since `resume` finds the same rows. Waking a pool is
`SET ostler:wake:<pool> NX PX 2000` and then the message, so that at most one dispatch runs and one waits.

Any web tier can do the same with Celery alone (docs/operations/waking.md): `send_task("ostler.dispatch",
kwargs={"pool": "small"})` with `ostler.task_names.ROUTES` as its `task_routes`; without the key it costs an extra run
of the matcher and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any

import redis
from celery import Celery

from ostler import transport
from ostler.secrets import Secret
from ostler.task_names import AUTOSCALE, DISPATCH, EXPIRES, HINTS, RECONCILE, ROUTES, TaskName, queue_of

WAKE_MS = 2000
RECONCILE_MS = 10_000
AUTOSCALE_MS = 1_000
REST_MS = 2
"""Milliseconds for each Pod of a pool between two of its reconciles."""
RESTS_FROM = 100
"""Pods; a smaller pool is reconciled as often as somebody asks."""
COUNT_MS = 60_000
SINGLE_FLIGHT_MS = 5_000

_TIMEOUT = 0.5
_TIMEOUT_UNDER_LOCK = 0.2


def wake_key(pool_id: int) -> str:
    """Return the Redis key that says that a dispatch of this pool is on its way."""
    return f"ostler:wake:{pool_id}"


def reconcile_key(pool_id: int) -> str:
    """Return the Redis key that says that a reconcile of this pool waits."""
    return f"ostler:reconcile:{pool_id}"


def tick_key(pool_id: int) -> str:
    """Return the Redis key that says that a reconcile of this pool by the list of a tick waits."""
    return f"ostler:tick:{pool_id}"


def rest_key(pool_id: int) -> str:
    """Return the Redis key that lives until the next reconcile of this pool may begin."""
    return f"ostler:rest:{pool_id}"


def count_key(pool_id: int) -> str:
    """Return the Redis key that holds how many Pods this pool had when it was last listed."""
    return f"ostler:pods:{pool_id}"


def watch_key(namespace: str) -> str:
    """Return the Redis key that says that the Pods of a namespace are watched."""
    return f"ostler:watched:{namespace}"


def producer(redis_url: Secret) -> Celery:
    """Return a Celery app that only sends: one quick try, JSON, no results."""
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
    """Sends wake-ups; one per process, from one thread at a time. Raises what redis and kombu raise."""

    def __init__(self, redis_url: Secret, *, app: Celery | None = None) -> None:
        self._app = app if app is not None else producer(redis_url)
        self._redis = redis.Redis.from_url(
            redis_url.reveal(), socket_timeout=_TIMEOUT, socket_connect_timeout=_TIMEOUT, health_check_interval=10
        )
        self._redis_under_lock = redis.Redis.from_url(
            redis_url.reveal(), socket_timeout=_TIMEOUT_UNDER_LOCK, socket_connect_timeout=_TIMEOUT_UNDER_LOCK
        )

    def wake(self, pool_id: int, *, after: float = 0) -> bool:
        """Send a dispatch of this pool, to run in `after` seconds, unless one is waiting; return whether it was."""
        if not self._redis.set(wake_key(pool_id), "1", nx=True, px=WAKE_MS):
            return False
        self.send(DISPATCH, after=after, pool_id=pool_id)
        return True

    def oldest(self, queue: str) -> datetime | None:
        """Return when the message was sent that comes next from a queue; None when none waits there."""
        return transport.head_of(self._redis.lrange(queue, *transport.HEAD))

    def clear_wake(self, pool_id: int) -> None:
        """Delete the wake key; the matcher calls it under the pool's lock, and a failure only costs a run."""
        self._redis_under_lock.delete(wake_key(pool_id))

    def clear_reconcile(self, pool_id: int, *, shared: bool = False) -> None:
        """Delete the key that says that a reconcile of this pool waits; its task calls it before it looks.

        `shared`: it is one by the list of a tick, which has a key of its own.
        """
        self._redis.delete(tick_key(pool_id) if shared else reconcile_key(pool_id))

    def record_pod_count(self, pool_id: int, *, pods: int) -> None:
        """Record how many Pods a pool has. The number sets the distance between its next reconciles."""
        with suppress(redis.RedisError):
            self._redis.set(count_key(pool_id), pods, px=COUNT_MS)

    def may_reconcile(self, pool_id: int) -> bool:
        """Return whether a reconcile may begin, and have the next one wait: each lists all Pods of the pool.

        The distance is 2 s for 1,000 Pods, and none for less than 100. Without Redis there is none.
        """
        try:
            pods = int(self._redis.get(count_key(pool_id)) or 0)
            rest = min(RECONCILE_MS, REST_MS * pods)
            return pods < RESTS_FROM or bool(self._redis.set(rest_key(pool_id), "1", nx=True, px=rest))
        except redis.RedisError:
            return True

    def mark_watched(self, namespace: str, *, seconds: float) -> None:
        """Record that for `seconds` the reconcilers of this namespace are woken when a Pod ends."""
        self._redis.set(watch_key(namespace), "1", px=round(seconds * 1000))

    def is_watched(self, namespace: str) -> bool:
        """Return whether the namespace is watched."""
        return bool(self._redis.exists(watch_key(namespace)))

    @contextmanager
    def single_flight(self, what: str) -> Iterator[bool]:
        """Yield whether nobody else does `what` now, or did it within the last 5 s.

        So those who saw the same work share it. It is no lock: Redis may forget it, and without Redis all do all of
        it. What fails may be done by others at once.
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

    def reconcile(self, pool_id: int, *, after: float = 0, shared: bool = False) -> None:
        """Send a reconcile of this pool, to run in `after` seconds or later, unless one is waiting.

        The reconcile of a large pool also waits until its rest is over. If `shared` is True, the reconcile may use the
        list of Pods of the last tick. That list is older than a wake, so a shared reconcile that waits suppresses only
        another shared one.
        """
        if shared:
            if self._redis.set(tick_key(pool_id), "1", nx=True, px=RECONCILE_MS):
                self.send(RECONCILE, after=after, pool_id=pool_id, shared=True)
            return
        if self._redis.set(reconcile_key(pool_id), "1", nx=True, px=RECONCILE_MS):
            rest = self._redis.pttl(rest_key(pool_id)) / 1000
            self.send(RECONCILE, after=max(after, rest), pool_id=pool_id)

    def autoscale(self) -> None:
        """Send a run of the autoscaler, unless two were sent within the last second.

        The first one of a second runs at once. The second one runs a second later, so that it sees what came after the
        first one.
        """
        if self._redis.set("ostler:autoscale", "1", nx=True, px=AUTOSCALE_MS):
            self.send(AUTOSCALE)
        elif self._redis.set("ostler:autoscale:next", "1", nx=True, px=AUTOSCALE_MS):
            self.send(AUTOSCALE, after=AUTOSCALE_MS / 1000)

    def send(self, name: TaskName, *, after: float = 0, **kwargs: Any) -> None:
        """Send a task to its queue, to run in `after` seconds; arguments are ids only (law L13).

        It sends every message. For a dispatch, a reconcile or a run of the autoscaler, call `wake`, `reconcile` or
        `autoscale`: they send nothing while such a message waits.
        """
        self._app.send_task(
            name,
            kwargs=kwargs,
            queue=queue_of(name),
            countdown=after or None,
            expires=EXPIRES if name in HINTS else None,
            ignore_result=True,
        )

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()
        self._redis_under_lock.close()
        self._app.close()

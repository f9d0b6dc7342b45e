"""Kombu's Redis transport, with one client per channel.

Kombu makes a `redis.Redis` for every command that it sends. The object holds nothing but the channel's connection pool
and a table of some hundred callbacks, and filling that table costs more than the command. Such a client may be
shared by threads, keeps no connection of its own, and finds broken ones as before: connections are the pool's.

Every message says when it was sent, so that a check of a queue's head tells which messages may still wait in it.

What is no message (no JSON, or JSON of another shape) is dropped and counted. Kombu's own consumer ends with it, and so
would one worker after the other.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from celery.signals import before_task_publish
from kombu import transport
from kombu.transport import redis
from redis import client

from ostler import telemetry
from ostler.clock import utcnow
from ostler.envelopes import problem_of
from ostler.logging import get_logger

log = get_logger(__name__)

SENT_AT = "sent_at"
"""Header of a message: when it was sent, Unix time."""


class Reading:
    """When this process last read its queues, by the monotonic clock; minus infinity before the first time.

    A worker that has as much work as it may hold reads nothing on purpose; that counts as well.
    """

    at = float("-inf")

    def mark(self) -> None:
        """Note that a queue was read now."""
        self.at = time.monotonic()

    def is_fresh(self, *, within: float) -> bool:
        """Return whether a queue was read in the last `within` seconds."""
        return time.monotonic() - self.at < within


reading = Reading()


class QoS(redis.QoS):
    """Unacknowledged messages of a channel."""

    def can_consume(self) -> bool:
        """Return whether one more message may be taken."""
        may: bool = super().can_consume()  # type: ignore[no-untyped-call]
        if not may:
            reading.mark()
        return may

    def restore_by_tag(self, tag: Any, client: Any = None, leftmost: bool = False) -> None:
        """Return a message of a dead worker to its queue, or drop an entry that is not a message."""
        with self.channel.conn_or_acquire(client) as redis_client:
            entry = redis_client.hget(self.unacked_key, tag)
            if entry is not None and not _may_be_restored(entry):
                _drop(self.unacked_key, "it is no unacknowledged message")
                redis_client.zrem(self.unacked_index_key, tag)
                redis_client.hdel(self.unacked_key, tag)
                return
            super().restore_by_tag(tag, redis_client, leftmost)  # type: ignore[no-untyped-call]


class Client(client.Redis):
    """A client whose BRPOP brings messages only: another entry is dropped and looks like an empty queue."""

    def parse_response(self, connection: Any, command_name: str, **options: Any) -> Any:
        """Return Redis's answer to a command."""
        answer = super().parse_response(connection, command_name, **options)  # type: ignore[no-untyped-call]
        if command_name != "BRPOP":
            return answer
        reading.mark()
        if answer:
            queue, entry = answer
            try:
                why = problem_of(_loads(entry), task=True)
            except (ValueError, RecursionError) as error:
                why = type(error).__name__
            if why is not None:
                _drop(_text(queue), why)
                return None
        return answer


def _loads(entry: bytes | str) -> Any:
    return json.loads(_text(entry), object_hook=_plain)


def _text(entry: bytes | str) -> str:
    return entry if isinstance(entry, str) else entry.decode()


def _plain(found: dict[str, Any]) -> dict[str, Any]:
    if "__type__" in found:  # kombu would make an object of it, or fail to
        raise ValueError("a value with a type")
    return found


def _may_be_restored(entry: bytes | str) -> bool:
    try:
        message, exchange, routing_key = _loads(entry)
    except (ValueError, TypeError, RecursionError):
        return False
    return problem_of(message, task=False) is None and isinstance(exchange, str) and isinstance(routing_key, str)


def _drop(where: str, why: str) -> None:
    telemetry.MESSAGES_MALFORMED.inc()
    log.warning("message.malformed", where=where, why=why)


class Channel(redis.Channel):
    """A channel that keeps its client for as long as it keeps its pool."""

    QoS = QoS

    _kept: Any = None

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        """Bind a queue. A queue of a fanout exchange is bound by its subscription alone, and leaves nothing in Redis.

        Kombu would store such bindings, renew them and clean them up, but nothing reads them. So a process that only
        listens to events needs no right to write.
        """
        if self.typeof(exchange).type == "fanout":  # type: ignore[no-untyped-call]
            self._fanout_queues[queue] = exchange, routing_key.replace("#", "*")
            self._expires.pop(queue, None)
        else:
            super()._queue_bind(exchange, routing_key, pattern, queue)  # type: ignore[no-untyped-call]

    def _delete(self, queue: str, exchange: str, *args: Any, **options: Any) -> None:
        if queue in self._fanout_queues:
            self.auto_delete_queues.discard(queue)
        else:
            super()._delete(queue, exchange, *args, **options)  # type: ignore[no-untyped-call]

    def _get_client(self) -> Any:
        made = super()._get_client()  # type: ignore[no-untyped-call]
        return Client if made is client.Redis else made

    def _create_client(self, asynchronous: bool = False) -> Any:
        if asynchronous:  # those that wait for messages have a connection each, and are kept by kombu
            return super()._create_client(asynchronous=True)  # type: ignore[no-untyped-call]
        kept = self._kept
        if kept is None or kept.connection_pool is not self.pool:
            kept = self._kept = super()._create_client()  # type: ignore[no-untyped-call]
        return kept


class Transport(redis.Transport):
    """What `redis://` and `rediss://` mean once `install` was called."""

    Channel = Channel


@before_task_publish.connect  # type: ignore[untyped-decorator]
def _date(headers: dict[str, Any] | None = None, **_: Any) -> None:
    if headers is not None:
        headers[SENT_AT] = utcnow().timestamp()


HEAD = -20, -1
"""Where in the list that is a queue the messages stand that come next, for LRANGE."""


def head_of(messages: Iterable[bytes | str]) -> datetime | None:
    """Return when the oldest of a queue's next messages was sent; None where there is none that says so."""
    return min(filter(None, map(_sent_at, messages)), default=None)


def _sent_at(message: bytes | str) -> datetime | None:
    try:
        return datetime.fromtimestamp(json.loads(message)["headers"][SENT_AT], UTC)
    except (ValueError, KeyError, TypeError, OverflowError):  # of a version of before, or nobody's
        return None


def install() -> None:
    """Let every Celery application of this process use it.

    By kombu's table of names, not by `broker_transport`: with that, Flower no longer knows a Redis when it sees one.
    """
    transport.TRANSPORT_ALIASES.update(dict.fromkeys(("redis", "rediss"), f"{__name__}:{Transport.__name__}"))

"""Redis transport of kombu with five changes.

One client per channel: this transport creates one `redis.Redis` object per channel. Kombu itself creates an object for
every command. Such an object contains only the channel's connection pool and a table of about a hundred callbacks.
Filling this table takes longer than the command itself. Threads can share one client, because all connections belong to
the pool. The pool also detects broken connections.

Send times: every message has a header with the time at which it was sent. Code that reads the oldest messages of a
queue can therefore decide which messages might still wait in the queue.

Malformed entries: the transport drops and counts a queue entry that is not JSON or has the wrong structure. Kombu's own
consumer raises an exception for such an entry, which would end one worker after another.

Read-only servers: the transport leaves a server that became a read-only replica (`ostler.redis_clients`).

Bindings: the transport stores no bindings of fanout exchanges, so that a process that only receives events needs no
write permission.
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

from ostler import redis_clients, telemetry
from ostler.clock import utcnow
from ostler.envelopes import problem_of
from ostler.logging import get_logger

log = get_logger(__name__)

SENT_AT = "sent_at"
"""Message header with the Unix time at which the message was sent."""


class Reading:
    """Time at which this process last read its queues, in seconds of the monotonic clock.

    The time is minus infinity before the first read. A worker that has reached its limit of messages reads no queue.
    Such a worker instead records the time at which it checked the limit.
    """

    at = float("-inf")

    def mark(self) -> None:
        """Record that a queue was read now."""
        self.at = time.monotonic()

    def is_fresh(self, *, within: float) -> bool:
        """Return whether a queue was read within the last `within` seconds."""
        return time.monotonic() - self.at < within


reading = Reading()


class QoS(redis.QoS):
    """Quality of service of a channel: the limit and the storage of its unacknowledged messages."""

    def can_consume(self) -> bool:
        """Return whether the channel can receive one more message."""
        may: bool = super().can_consume()  # type: ignore[no-untyped-call]
        if not may:
            reading.mark()
        return may

    def restore_by_tag(self, tag: Any, client: Any = None, leftmost: bool = False) -> None:
        """Return an unacknowledged message to its queue, or drop an entry that is not a message."""
        with self.channel.conn_or_acquire(client) as redis_client:
            entry = redis_client.hget(self.unacked_key, tag)
            if entry is not None and not _may_be_restored(entry):
                _drop(self.unacked_key, "the entry is not a valid unacknowledged message")
                redis_client.zrem(self.unacked_index_key, tag)
                redis_client.hdel(self.unacked_key, tag)
                return
            super().restore_by_tag(tag, redis_client, leftmost)  # type: ignore[no-untyped-call]


class Client(client.Redis):
    """Redis client whose BRPOP drops a malformed entry and then answers as if the queue were empty."""

    def parse_response(self, connection: Any, command_name: str, **options: Any) -> Any:
        """Return the answer of Redis to a command, or None for a BRPOP that returned a malformed entry."""
        answer = super().parse_response(connection, command_name, **options)  # type: ignore[no-untyped-call]
        if command_name != "BRPOP":
            return answer
        reading.mark()
        if answer:
            queue, entry = answer
            try:
                why = problem_of(_loads(entry), task=True)
            except (ValueError, RecursionError):
                why = "the message is not JSON, is nested too deeply, or contains an object of kombu (`__type__`)"
            if why is not None:
                _drop(_text(queue), why)
                return None
        return answer


def _loads(entry: bytes | str) -> Any:
    return json.loads(_text(entry), object_hook=_plain)


def _text(entry: bytes | str) -> str:
    return entry if isinstance(entry, str) else entry.decode()


def _plain(found: dict[str, Any]) -> dict[str, Any]:
    if "__type__" in found:  # kombu would convert the value to a Python object, or raise
        raise ValueError("the message contains an object with the key `__type__`")
    return found


def _may_be_restored(entry: bytes | str) -> bool:
    try:
        message, exchange, routing_key = _loads(entry)
    except (ValueError, TypeError, RecursionError):
        return False
    return problem_of(message, task=False) is None and isinstance(exchange, str) and isinstance(routing_key, str)


def _drop(where: str, why: str) -> None:
    telemetry.MESSAGES_MALFORMED.inc()
    log.warning("message.dropped_as_malformed", found_in=where, why=why)


class Channel(redis.Channel):
    """Kombu channel that uses one client for all commands until its connection pool is replaced."""

    QoS = QoS
    connection_class = redis_clients.Connection
    connection_class_ssl = redis_clients.SSLConnection

    _kept: Any = None

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        """Bind a queue to an exchange. Write nothing to Redis if the exchange is a fanout exchange.

        Kombu stores, renews and deletes the bindings of fanout exchanges, but no code reads them. The subscription in
        Redis delivers the messages. Without the stored bindings, a process that only receives events needs no write
        permission.
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
        if asynchronous:
            # Kombu itself reuses the clients that wait for messages. Each of these clients has its own connection.
            return super()._create_client(asynchronous=True)  # type: ignore[no-untyped-call]
        kept = self._kept
        if kept is None or kept.connection_pool is not self.pool:
            kept = self._kept = super()._create_client()  # type: ignore[no-untyped-call]
        return kept


class Transport(redis.Transport):
    """Transport for `redis://` and `rediss://` addresses. `install` makes kombu use this class."""

    Channel = Channel


@before_task_publish.connect  # type: ignore[untyped-decorator]
def _date(headers: dict[str, Any] | None = None, **_: Any) -> None:
    if headers is not None:
        headers[SENT_AT] = utcnow().timestamp()


HEAD = -20, -1
"""Arguments for LRANGE that select the next messages of a queue. Workers take messages from the end of the list."""


def head_of(messages: Iterable[bytes | str]) -> datetime | None:
    """Return the send time of the oldest of `messages`, or None if no message has a send time."""
    return min(filter(None, map(_sent_at, messages)), default=None)


def _sent_at(message: bytes | str) -> datetime | None:
    try:
        return datetime.fromtimestamp(json.loads(message)["headers"][SENT_AT], UTC)
    except (ValueError, KeyError, TypeError, OverflowError):  # sent by an older version, or not a message
        return None


def install() -> None:
    """Make every Celery application of this process use this transport.

    The function changes kombu's table of transport names. Celery's setting `broker_transport` is not used, because
    Flower would then not recognise the broker as Redis.
    """
    transport.TRANSPORT_ALIASES.update(dict.fromkeys(("redis", "rediss"), f"{__name__}:{Transport.__name__}"))

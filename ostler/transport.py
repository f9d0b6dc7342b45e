"""Kombu's Redis transport, with one client per channel.

Kombu makes a `redis.Redis` for every command that it sends. The object holds nothing but the channel's connection pool
and a table of some hundred callbacks, and filling that table costs more than the command. Such a client may be
shared by threads, keeps no connection of its own, and finds broken ones as before: connections are the pool's.

Every message says when it was sent, so that a look at a queue's head tells which messages may still wait in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from celery.signals import before_task_publish
from kombu import transport
from kombu.transport import redis

from ostler.clock import utcnow

SENT_AT = "sent_at"
"""Header of a message: when it was sent, Unix time."""


class Channel(redis.Channel):
    """A channel that keeps its client for as long as it keeps its pool."""

    _kept: Any = None

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

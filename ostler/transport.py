"""Kombu's Redis transport, with one client per channel.

Kombu makes a `redis.Redis` for every command that it sends. The object holds nothing but the channel's connection pool
and a table of some hundred callbacks, and filling that table costs more than the command. Such a client may be
shared by threads, keeps no connection of its own, and finds broken ones as before: connections are the pool's.
"""

from __future__ import annotations

from typing import Any

from kombu import transport
from kombu.transport import redis


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


def install() -> None:
    """Let every Celery application of this process use it.

    By kombu's table of names, not by `broker_transport`: with that, Flower no longer knows a Redis when it sees one.
    """
    transport.TRANSPORT_ALIASES.update(dict.fromkeys(("redis", "rediss"), f"{__name__}:{Transport.__name__}"))

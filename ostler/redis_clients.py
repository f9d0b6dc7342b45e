"""Redis clients that leave a server that refuses writes.

A managed Redis fails over by moving its DNS name, and the old primary might stay up as a read-only replica. An open
connection would stay at the old server for ever, because that server answers. These clients therefore close a
connection whose server answered `READONLY`. The next command opens a connection, which resolves the name again.
"""

from __future__ import annotations

from typing import Any

import redis
from redis.exceptions import ReadOnlyError, ResponseError


class _Leaving:
    """Connection that its pool closes after the server answered that it is a read-only replica."""

    def read_response(self, *args: Any, **options: Any) -> Any:
        """Return the answer of Redis. Raises every exception of redis."""
        try:
            return super().read_response(*args, **options)  # type: ignore[misc]
        except ResponseError as error:
            if is_read_only(error):
                self.mark_for_reconnect()  # type: ignore[attr-defined]
            raise


class Connection(_Leaving, redis.Connection):
    """Connection without TLS."""


class SSLConnection(_Leaving, redis.SSLConnection):
    """Connection with TLS."""


def is_read_only(error: ResponseError) -> bool:
    """Return True if an answer says that the server is a read-only replica.

    Redis before version 7 quotes the answer in the error of a script.
    """
    return isinstance(error, ReadOnlyError) or "-READONLY " in str(error)


def make_client(url: str, **options: Any) -> redis.Redis:
    """Return a client that leaves a read-only server. `options` are those of `redis.Redis.from_url`."""
    client = redis.Redis.from_url(url, **options)
    pool = client.connection_pool
    if pool.connection_class is redis.Connection:
        pool.connection_class = Connection
    elif pool.connection_class is redis.SSLConnection:
        pool.connection_class = SSLConnection
    return client

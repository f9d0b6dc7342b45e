"""How long a client waits for Postgres: never for ever.

libpq has no time limit for an answer. `statement_timeout` is the server's, and TCP's own limits do not see a peer that
acknowledges and says nothing (a frozen server, a proxy whose other side is gone): a thread that asks one would wait for
ever, and so would its lock, its claim and its place in the pool. So psycopg2 waits through `wait`, which gives up a
little after the server would have; psycopg2 then closes the connection, and the pool opens another.
"""

from __future__ import annotations

import select
import time
from typing import Any

import psycopg2
from psycopg2 import extensions

STATEMENT = 20.0
"""Seconds that Postgres lets a statement run."""
ANSWER = STATEMENT + 5
"""Seconds without an answer after which the connection is given up."""
CONNECT = 5.0
"""The same while a connection is made; libpq's `connect_timeout` does not hold where the client waits itself."""

_MADE = {extensions.STATUS_READY, extensions.STATUS_BEGIN, extensions.STATUS_PREPARED}


def wait(connection: Any) -> None:
    """Wait for what psycopg2 waits for; raises psycopg2.OperationalError when it does not come in time."""
    end = time.monotonic() + (ANSWER if connection.status in _MADE else CONNECT)
    while (state := connection.poll()) != extensions.POLL_OK:
        ready = select.poll()  # not select(): a web process that holds polls has descriptors beyond 1024
        ready.register(connection.fileno(), select.POLLIN if state == extensions.POLL_READ else select.POLLOUT)
        if not ready.poll(max(0.0, end - time.monotonic()) * 1000):
            raise psycopg2.OperationalError("Postgres did not answer in time; the connection is given up")


def install() -> None:
    """Let every psycopg2 connection of this process wait so."""
    extensions.set_wait_callback(wait)

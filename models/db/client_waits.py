"""Time limits on the client's waits for Postgres: for an answer, and for a locked row.

libpq has no time limit for an answer, and `statement_timeout` takes effect only while the server works. TCP's own
limits do not help if the peer acknowledges packets but never answers. Examples are a frozen server and a proxy without
a backend. A thread that queries such a peer would wait forever. It would never release its locks, its claim and its
connection.

psycopg2 therefore waits through the callback `wait`. The callback raises an error a few seconds after the server would
have cancelled the statement. psycopg2 then closes the connection, and the pool opens a new one.

By default, a session waits up to `LOCK` seconds for a row that another session has locked. A frozen process holds its
row locks for a longer time than `LOCK`. A loop that serves many rows in one thread therefore runs under `brief_waits`.
Under `brief_waits`, a transaction that needs a locked row soon fails, and the loop continues with the next row (law
L14).
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import psycopg2
from psycopg2 import extensions

STATEMENT = 20.0
"""Seconds after which Postgres cancels a statement."""
ANSWER = STATEMENT + 5
"""Seconds without an answer after which the client closes an open connection."""
CONNECT = 5.0
"""Seconds without an answer after which the client stops the attempt to open a connection.

libpq's `connect_timeout` has no effect if the client waits through a callback.
"""

LOCK = 5.0
"""Seconds that a session waits for a lock by default."""
BRIEF = 0.3
"""Seconds that a loop waits for the first locked row of a page."""
NEXT = 0.02
"""Seconds that a loop waits for each further locked row of a page.

The limit is short, so that many locked rows do not add up to a long wait.
"""

_MADE = {extensions.STATUS_READY, extensions.STATUS_BEGIN, extensions.STATUS_PREPARED}


def wait(connection: Any) -> None:
    """Wait until the pending operation of a psycopg2 connection is complete.

    Raises `psycopg2.OperationalError` if Postgres does not answer within `ANSWER` seconds. While the connection is
    being opened, the limit is `CONNECT` seconds.
    """
    limit = ANSWER if connection.status in _MADE else CONNECT
    end = time.monotonic() + limit
    while (state := connection.poll()) != extensions.POLL_OK:
        ready = select.poll()  # not select(): it fails for descriptors above 1023, and a web process has more
        ready.register(connection.fileno(), select.POLLIN if state == extensions.POLL_READ else select.POLLOUT)
        if not ready.poll(max(0.0, end - time.monotonic()) * 1000):
            raise psycopg2.OperationalError(f"Postgres did not answer within {limit:g} s; the connection is closed")


def install() -> None:
    """Make every psycopg2 connection of this process wait through `wait`."""
    extensions.set_wait_callback(wait)


@dataclass(slots=True)
class LockWaits:
    """Seconds that a transaction of one loop waits for a lock. The value falls to `NEXT` after the first timeout."""

    seconds: float = BRIEF

    def spent(self) -> None:
        """Shorten later waits, because a wait for a lock timed out."""
        self.seconds = min(self.seconds, NEXT)


_lock_waits: ContextVar[LockWaits | None] = ContextVar("lock_waits", default=None)


@contextmanager
def brief_waits() -> Iterator[None]:
    """Make the transactions in this block wait only briefly for locked rows."""
    token = _lock_waits.set(LockWaits())
    try:
        yield
    finally:
        _lock_waits.reset(token)


def renew() -> None:
    """Start a new page of the loop. The loop again waits up to `BRIEF` seconds for the first locked row of the page."""
    if (waits := _lock_waits.get()) is not None:
        waits.seconds = BRIEF


def lock_waits() -> LockWaits | None:
    """Return the lock waits of the surrounding `brief_waits` block, or None outside such a block."""
    return _lock_waits.get()

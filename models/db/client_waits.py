"""Limits of a client's waits for Postgres: for an answer, and for a locked row.

libpq has no time limit for an answer. `statement_timeout` is the server's, and TCP's own limits do not see a peer that
acknowledges and says nothing (a frozen server, a proxy whose other side is gone): a thread that asks one would wait for
ever, and so would its lock, its claim and its place in the pool. So psycopg2 waits through `wait`, which gives up a
little after the server would have; psycopg2 then closes the connection, and the pool opens another.

A session waits up to `LOCK` seconds for a row that another one has locked. A frozen process keeps its rows for longer
than that. A loop that serves many rows in one thread therefore runs under `brief_waits`: a locked row fails its own
transaction soon, and the loop goes on with the next row (law L14).
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
"""Seconds that Postgres lets a statement run."""
ANSWER = STATEMENT + 5
"""Seconds without an answer after which the connection is given up."""
CONNECT = 5.0
"""The same while a connection is made; libpq's `connect_timeout` does not hold where the client waits itself."""

LOCK = 5.0
"""Seconds that a session waits for a lock unless told otherwise."""
BRIEF = 0.3
"""Seconds that a page of a loop waits for the first locked row that it meets."""
NEXT = 0.02
"""Seconds that it waits for each further one: many locked rows must not add up to a long wait."""

_MADE = {extensions.STATUS_READY, extensions.STATUS_BEGIN, extensions.STATUS_PREPARED}


def wait(connection: Any) -> None:
    """Wait for what psycopg2 waits for; raises psycopg2.OperationalError when it does not come in time."""
    end = time.monotonic() + (ANSWER if connection.status in _MADE else CONNECT)
    while (state := connection.poll()) != extensions.POLL_OK:
        ready = select.poll()  # not select(): a web process that holds polls has descriptors beyond 1024
        ready.register(connection.fileno(), select.POLLIN if state == extensions.POLL_READ else select.POLLOUT)
        if not ready.poll(max(0.0, end - time.monotonic()) * 1000):
            raise psycopg2.OperationalError("Postgres did not answer in time; the connection is closed")


def install() -> None:
    """Let every psycopg2 connection of this process wait so."""
    extensions.set_wait_callback(wait)


@dataclass(slots=True)
class LockWaits:
    """How long the transactions of one loop wait for a lock, in seconds. Falls to `NEXT` after the first failure."""

    seconds: float = BRIEF

    def spent(self) -> None:
        """Shorten later waits, because a wait for a lock timed out."""
        self.seconds = min(self.seconds, NEXT)


_lock_waits: ContextVar[LockWaits | None] = ContextVar("lock_waits", default=None)


@contextmanager
def brief_waits() -> Iterator[None]:
    """Let the transactions of this block wait only briefly for locked rows."""
    token = _lock_waits.set(LockWaits())
    try:
        yield
    finally:
        _lock_waits.reset(token)


def renew() -> None:
    """Begin another page: its first locked row is waited for as long as that of the page before."""
    if (waits := _lock_waits.get()) is not None:
        waits.seconds = BRIEF


def lock_waits() -> LockWaits | None:
    """Return the limits of the block that this code runs in, None outside of any."""
    return _lock_waits.get()

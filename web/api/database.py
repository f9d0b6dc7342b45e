"""Threads for the calls of the API and of the metrics to Postgres.

Only the API and the metrics use these threads, so a long list does not delay the delivery of a JIT.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sqlalchemy import Connection, Engine

from models.db.engine import transaction
from models.db.sql import text
from web.api.problems import unavailable

T = TypeVar("T")

THREADS = 2
MOST_WAITING = 64
"""Maximum number of requests that use a thread or wait for a thread.

Any further request is answered with 503.
"""

MOST_SLOW = 8
"""Maximum number of slow reads that run or wait. Any further one is answered with 503."""

STATEMENT_MS = 4000


class Database:
    """Runs the transactions of the API on its own threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="api")
        self._waiting = 0
        self._turn, self._slow = asyncio.Lock(), 0

    async def run(self, body: Callable[[Connection], T]) -> T:
        """Return the result of `body`, which runs in one transaction.

        Raises Refusal (503) if already `MOST_WAITING` requests use a thread or wait for one. Errors of Postgres are
        raised unchanged.
        """
        if self._waiting >= MOST_WAITING:
            raise unavailable()

        def bounded(db: Connection) -> T:
            db.execute(text(f"SET LOCAL statement_timeout = {STATEMENT_MS}"))
            return body(db)

        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._threads, lambda: transaction(self._engine, bounded)
            )
        finally:
            self._waiting -= 1

    async def run_slow(self, body: Callable[[Connection], T]) -> T:
        """Return the result of `body`, which reads many rows. Only one such read runs at a time.

        A thread therefore stays free for other requests. Raises Refusal (503) if `MOST_SLOW` reads run or wait.
        """
        if self._slow >= MOST_SLOW:
            raise unavailable()
        self._slow += 1
        try:
            async with self._turn:
                return await self.run(body)
        finally:
            self._slow -= 1

    def stop(self) -> None:
        """Stop the threads. Running calls may finish. Waiting calls are cancelled."""
        self._threads.shutdown(cancel_futures=True)

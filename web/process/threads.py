"""Thread pools of a web process for blocking calls: few threads for Postgres, some for Kubernetes, none per poll.

Each lane has threads of its own, so that a slow call in one lane does not delay another: an API server that hangs does
not keep a delivery from its commit (law L15), and neither does a batch of offers or a row that is locked (law L14).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar

from sqlalchemy import Connection, Engine

from models.db.engine import transaction
from models.db.sql import text

T = TypeVar("T")

DELIVERY_THREADS = 3
OFFER_THREADS = 1
"""The task that writes offers runs one statement at a time."""
DATABASE_THREADS = 1
CLUSTER_THREADS = 16

OFFER_LOCK_WITHIN = 0.05
"""Seconds that a statement about offers waits for a lock. It skips rows that others hold, so it hardly ever waits."""
LOCK_WITHIN = 0.1
"""Seconds that any other transaction of these lanes waits for one lock."""


class Threads:
    """The thread pools of one web process."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._deliveries = ThreadPoolExecutor(DELIVERY_THREADS, thread_name_prefix="delivery")
        self._offers = ThreadPoolExecutor(OFFER_THREADS, thread_name_prefix="offers")
        self._database = ThreadPoolExecutor(DATABASE_THREADS, thread_name_prefix="database")
        self._cluster = ThreadPoolExecutor(CLUSTER_THREADS, thread_name_prefix="cluster")

    async def deliver(self, body: Callable[[Connection], T]) -> T:
        """Return what `body` returns from one transaction, run by a thread that only deliveries use.

        `body` must not wait for a row lock: there are `DELIVERY_THREADS` of these threads.
        """
        return await _run(self._deliveries, lambda: transaction(self.engine, body))

    async def offer(self, body: Callable[[Connection], T]) -> T:
        """Return what `body` returns from one transaction, run by the thread of the offers."""
        return await self._within(self._offers, body, OFFER_LOCK_WITHIN)

    async def transaction(self, body: Callable[[Connection], T]) -> T:
        """Return what `body` returns from one transaction that is neither a delivery nor about held polls."""
        return await self._within(self._database, body, LOCK_WITHIN)

    async def database(self, call: Callable[[], T]) -> T:
        """Return what a call to Postgres returns."""
        return await _run(self._database, call)

    async def cluster(self, call: Callable[[], T], *, within: float | None = None) -> T:
        """Return what a call to Kubernetes returns.

        Raises TimeoutError after `within` seconds; unlike the call's own time-out that bounds the wait for a thread.
        """
        async with asyncio.timeout(within):
            return await _run(self._cluster, call)

    def stop(self) -> None:
        """Let running calls end and the threads go."""
        for executor in (self._deliveries, self._offers, self._database):
            executor.shutdown()
        self._cluster.shutdown(cancel_futures=True)

    async def _within(self, executor: Executor, body: Callable[[Connection], T], seconds: float) -> T:
        def bounded(db: Connection) -> T:
            db.execute(text(f"SET LOCAL lock_timeout = {1000 * seconds:.0f}"))
            return body(db)

        return await _run(executor, lambda: transaction(self.engine, bounded))


async def _run(executor: Executor, call: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(executor, call)

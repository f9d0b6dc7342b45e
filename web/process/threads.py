"""Thread pools of a web process for blocking calls to Postgres and Kubernetes. A held poll needs no thread.

Each kind of call has its own threads, so that a slow call does not delay calls of another kind. If all calls shared
their threads, an API server that hangs would delay the commit of a delivery (law L15). A batch of offers or a locked
row would also delay the commit (law L14).
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
"""One thread, because the task that writes offers runs one statement at a time."""
DATABASE_THREADS = 1
CLUSTER_THREADS = 16

OFFER_LOCK_WITHIN = 0.05
"""Seconds that a statement about offers waits for a lock.

The statement skips locked rows, so it rarely waits.
"""
LOCK_WITHIN = 0.1
"""Seconds that a transaction of `Threads.transaction` waits for one lock."""


class Threads:
    """The thread pools of one web process."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._deliveries = ThreadPoolExecutor(DELIVERY_THREADS, thread_name_prefix="delivery")
        self._offers = ThreadPoolExecutor(OFFER_THREADS, thread_name_prefix="offers")
        self._database = ThreadPoolExecutor(DATABASE_THREADS, thread_name_prefix="database")
        self._cluster = ThreadPoolExecutor(CLUSTER_THREADS, thread_name_prefix="cluster")

    async def deliver(self, body: Callable[[Connection], T]) -> T:
        """Return the result of `body`, which runs in one transaction on a thread for deliveries only.

        `body` must not wait for a row lock, because there are only `DELIVERY_THREADS` such threads.
        """
        return await _run(self._deliveries, lambda: transaction(self.engine, body))

    async def offer(self, body: Callable[[Connection], T]) -> T:
        """Return the result of `body`, which runs in one transaction on the thread for offers."""
        return await self._within(self._offers, body, OFFER_LOCK_WITHIN)

    async def transaction(self, body: Callable[[Connection], T]) -> T:
        """Return the result of `body`, which runs in one transaction.

        Use `deliver` for a delivery and `offer` for offers instead.
        """
        return await self._within(self._database, body, LOCK_WITHIN)

    async def database(self, call: Callable[[], T]) -> T:
        """Return the result of `call`, which calls Postgres."""
        return await _run(self._database, call)

    async def cluster(self, call: Callable[[], T], *, within: float | None = None) -> T:
        """Return the result of `call`, which calls Kubernetes.

        Raises TimeoutError after `within` seconds. This time includes the wait for a free thread. If `within` is None,
        only the timeout of `call` itself applies. This timeout starts when a thread is free.
        """
        async with asyncio.timeout(within):
            return await _run(self._cluster, call)

    def stop(self) -> None:
        """End the thread pools. Running calls may finish. Queued calls to Kubernetes are cancelled."""
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

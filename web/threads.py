"""The web process's threads for calls that block: few for Postgres, some for Kubernetes, none per poll.

They are two pools, so that an API server that hangs cannot keep a delivery from its commit (law L15).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sqlalchemy import Connection, Engine

from models.engine import transaction

T = TypeVar("T")

DATABASE_THREADS = 4
CLUSTER_THREADS = 16


class Threads:
    """Both pools of one web process."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._database = ThreadPoolExecutor(DATABASE_THREADS, thread_name_prefix="database")
        self._cluster = ThreadPoolExecutor(CLUSTER_THREADS, thread_name_prefix="cluster")

    async def transaction(self, body: Callable[[Connection], T]) -> T:
        """Return what `body` returns from one transaction."""
        return await self.database(lambda: transaction(self.engine, body))

    async def database(self, call: Callable[[], T]) -> T:
        """Return what a call to Postgres returns."""
        return await asyncio.get_running_loop().run_in_executor(self._database, call)

    async def cluster(self, call: Callable[[], T], *, within: float | None = None) -> T:
        """Return what a call to Kubernetes returns.

        Raises TimeoutError after `within` seconds; unlike the call's own time-out that bounds the wait for a thread.
        """
        async with asyncio.timeout(within):
            return await asyncio.get_running_loop().run_in_executor(self._cluster, call)

    def stop(self) -> None:
        """Let running calls end and the threads go."""
        self._database.shutdown()
        self._cluster.shutdown(cancel_futures=True)

"""Reads of the database that several open pages share, so that many open pages cost no more than a few."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from ostler.clock import utcnow

T = TypeVar("T")


class Shared(Generic[T]):
    """Recent reads by key. A read is shared until it ends, and then during `max_age`, unless it failed."""

    def __init__(self) -> None:
        self._reads: dict[Hashable, tuple[asyncio.Future[T], datetime]] = {}

    async def get(
        self, key: Hashable, read: Callable[[datetime], Awaitable[T]], *, max_age: timedelta
    ) -> tuple[T, datetime]:
        """Return a recent result for this key, and the time of its read. `read` is called with the present time."""
        now = utcnow()
        self._reads = {
            each: (task, at)
            for each, (task, at) in self._reads.items()
            # While Postgres is slow, no second read begins. A read that failed is repeated at once.
            if not task.done() or (at > now - max_age and not task.cancelled() and task.exception() is None)
        }
        if key not in self._reads:
            self._reads[key] = asyncio.ensure_future(read(now)), now
        task, at = self._reads[key]
        return await asyncio.shield(task), at  # a reader that goes away must not cancel the read of the others

"""Health of the web process.

`/healthz` looks at nothing outside its own process: a restart cures no database. `/readyz` is 503 only
for what makes this process useless: Postgres out of reach, an older schema, a deaf listener, stopping.
Redis and beat are in its body; without them the process still takes webhooks and delivers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import redis.asyncio
from redis.exceptions import RedisError
from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from models import migrate
from ostler.secrets import Secret
from web.threads import Threads

BEAT_LOCK = "redbeat::lock"
_TIMEOUT = 1.0


@dataclass(frozen=True, slots=True)
class Vitals:
    """What the process knows of itself."""

    stopping: bool
    hearing: bool
    held_polls: int
    publisher_depth: int
    intake_depth: int


class Health:
    """Both routes."""

    def __init__(
        self, *, threads: Threads, redis_url: Secret, vitals: Callable[[], Vitals], counts: Counter[str]
    ) -> None:
        self._threads = threads
        self._vitals = vitals
        self._counts = counts
        self._head = migrate.head()
        self._known = frozenset(migrate.revisions())
        self._redis = redis.asyncio.Redis.from_url(
            redis_url.reveal(), socket_timeout=_TIMEOUT, socket_connect_timeout=_TIMEOUT
        )

    async def close(self) -> None:
        """Close the connection to Redis."""
        await self._redis.aclose()

    async def alive(self, _request: Request) -> Response:
        """Answer that the event loop turns."""
        return JSONResponse({"status": "alive"})

    async def ready(self, _request: Request) -> Response:
        """Answer whether requests should come here, and what is known of the rest."""
        vitals = self._vitals()
        (reachable, revision), beat = await asyncio.gather(self._schema(), self._beat())
        # A revision that this program does not know is a newer one: migrations go before a deploy.
        migrated = revision is not None and (revision == self._head or revision not in self._known)
        checks = {
            "postgres": reachable,
            "migrations": migrated,
            "listener": vitals.hearing,
            "not_stopping": not vitals.stopping,
        }
        ready = all(checks.values())
        body: dict[str, Any] = {
            "status": "ready" if ready else "not ready",
            "checks": checks,
            "revision": revision,
            "held_polls": vitals.held_polls,
            "publisher_depth": vitals.publisher_depth,
            "intake_depth": vitals.intake_depth,
            "counts": dict(self._counts),
            **beat,
        }
        return JSONResponse(body, status_code=200 if ready else 503)

    async def _schema(self) -> tuple[bool, str | None]:
        try:
            async with asyncio.timeout(2 * _TIMEOUT):
                return True, await self._threads.database(lambda: migrate.current(self._threads.engine))
        except (SQLAlchemyError, TimeoutError):
            return False, None

    async def _beat(self) -> dict[str, Any]:
        """Return whether Redis answers, and for how much longer the active beat holds its lock, in seconds."""
        try:
            async with asyncio.timeout(2 * _TIMEOUT):
                milliseconds = await self._redis.pttl(BEAT_LOCK)
        except (RedisError, OSError, TimeoutError):
            return {"redis": False, "beat_lock_seconds": None}
        # Redis says -2 for a key that is not there.
        return {"redis": True, "beat_lock_seconds": milliseconds / 1000 if milliseconds > 0 else None}

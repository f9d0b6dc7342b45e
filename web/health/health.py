"""Health of the web process.

`/healthz` checks only this process itself, because a restart of this process cannot repair a database. `/readyz`
answers 503 only if this process cannot serve requests. It cannot serve them if Postgres cannot be reached or has an
older schema, if the listener receives no notices from Postgres, or if the process is stopping. The body of `/readyz`
also shows the state of Redis, beat, late sweeps, gates and the epoch. A problem with any of these does not change the
status, because the process still accepts webhooks and delivers JITs.

Any client may call both routes, so the cost of a call is limited. Answers of Postgres and Redis are cached. For each
kind of query, at most one query runs at a time. Queries to Postgres have their own thread. The body shows nothing about
the fleet or its jobs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

import redis.asyncio
from redis.exceptions import RedisError
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from models.db import epochs, migrate
from models.db.engine import transaction
from models.sweeps import sweep_runs
from models.upstream import gates
from ostler.clock import utcnow
from ostler.secrets import Secret
from ostler.task_names import QUEUES
from ostler.transport import HEAD, head_of
from ostler.upstreams import Upstream
from web.health.watchdog import Watchdog

T = TypeVar("T")

BEAT_LOCK = "redbeat::lock"
WRITTEN = "ostler:readyz"
"""Redis key that each check writes, because a read-only Redis answers reads."""
_WRITTEN_MS = 10_000
KEPT = 1.0
"""Seconds for which an answer of Postgres or Redis is cached."""
SWEEPS_KEPT = 5.0
"""Seconds for which the rows of the sweeps are cached.

A late sweep is late by minutes, so a few seconds do not matter.
"""
_POSTGRES_WITHIN = 2.0
_REDIS_WITHIN = 0.3
"""Seconds to wait for an answer of Redis.

The time is below one second, because a probe of the kubelet times out after one second by default.
"""
_REDIS_TIMEOUT = 1.0


@dataclass(frozen=True, slots=True)
class Vitals:
    """State of this process. `hearing` is True while the listener receives notices."""

    stopping: bool
    hearing: bool


@dataclass(frozen=True, slots=True)
class Redis:
    """State of Redis. `answers` is True if Redis answers and accepts writes.

    `beat_lock_seconds` is the number of seconds until the lock of the active beat expires. It is None if no beat has
    the lock. For each queue that is not empty, `heads` has the time at which the first message of the queue was sent.
    """

    answers: bool = False
    beat_lock_seconds: float | None = None
    heads: tuple[datetime, ...] = ()

    def oldest_message_seconds(self, *, now: datetime) -> float | None:
        """Return the age in seconds of the oldest message in all queues. Return 0 if all queues are empty.

        Return None if Redis does not answer or refuses writes.
        """
        if not self.answers:
            return None
        return max((round(max(0.0, (now - head).total_seconds()), 1) for head in self.heads), default=0.0)


@dataclass(frozen=True, slots=True)
class Sweeps:
    """The late sweeps, the paused sweeps, the tripped gates and the epoch.

    All fields are None if Postgres did not answer. `last_tick` is the time at which any sweep last began. `last_tick`
    is also None if no sweep has ever begun. `epoch` shows whether Postgres might be older than the cluster.
    """

    late: tuple[str, ...] | None = None
    paused: tuple[str, ...] | None = None
    shut: tuple[gates.Shut, ...] | None = None
    last_tick: datetime | None = None
    epoch: epochs.EpochSeen | None = None

    def gates(self) -> dict[str, Any] | None:
        """Return the state of each gate in the form for the body of `/readyz`.

        Return None if Postgres did not answer.
        """
        if self.shut is None:
            return None
        shown: dict[str, Any] = {upstream: {"state": "ok", "open": True} for upstream in Upstream}
        for each in self.shut:
            shown[each.upstream] = {
                "state": "tripped",
                "open": False,
                "closed_at": each.since.isoformat(),
                "why": each.why,
            }
        return shown

    def nothing_is_killed(self) -> str | None:
        """Return the reason why no sweep may retire a Pod or deregister a runner now.

        Return None if there is no such reason, or if Postgres did not answer.
        """
        if self.epoch is not None and self.epoch.doubt is not None:
            return self.epoch.doubt
        return "; ".join(map(str, self.shut or ())) or None

    @property
    def epoch_confirmed_at(self) -> str | None:
        """Return the time at which the epoch was last written to the cluster.

        Return None if the epoch was never written to the cluster, or if Postgres did not answer.
        """
        at = None if self.epoch is None else self.epoch.confirmed_at
        return None if at is None else at.isoformat()

    def last_tick_seconds(self, *, now: datetime) -> float | None:
        """Return the number of seconds since any sweep last began.

        Return None if no sweep has ever begun, or if Postgres did not answer.
        """
        return None if self.last_tick is None else max(0.0, round((now - self.last_tick).total_seconds(), 1))


class Kept(Generic[T]):
    """A cached query to Postgres or Redis. `ask` makes the query. At most one call of `ask` runs at a time.

    If the query takes longer than `within` seconds, the result is `silent`. Any other result is cached for `kept`
    seconds.
    """

    def __init__(self, ask: Callable[[], Awaitable[T]], *, silent: T, within: float, kept: float = KEPT) -> None:
        self._kept = kept
        self._ask = ask
        self._silent = silent
        self._within = within
        self._asking: asyncio.Task[T] | None = None
        self._answer = silent
        self._until = -1.0

    async def get(self) -> T:
        """Return the cached result. If there is none, query Postgres or Redis and wait for the result.

        If the query takes longer than `within` seconds, return `silent`.
        """
        if time.monotonic() < self._until:
            return self._answer
        if self._asking is None:
            self._asking = asyncio.get_running_loop().create_task(self._renew())
        try:
            # The query continues after the timeout. If it were cancelled, each caller would send a new query to a
            # store that hangs.
            return await asyncio.wait_for(asyncio.shield(self._asking), self._within)
        except TimeoutError:
            return self._silent

    async def _renew(self) -> T:
        try:
            self._answer = await self._ask()
            self._until = time.monotonic() + self._kept
            return self._answer
        finally:
            self._asking = None


class Health:
    """The routes `/healthz` and `/readyz`."""

    def __init__(self, *, engine: Engine, redis_url: Secret, watchdog: Watchdog, vitals: Callable[[], Vitals]) -> None:
        self._engine = engine
        self._watchdog = watchdog
        self._vitals = vitals
        self._revisions = migrate.revisions()
        self._redis_client = redis.asyncio.Redis.from_url(
            redis_url.reveal(), socket_timeout=_REDIS_TIMEOUT, socket_connect_timeout=_REDIS_TIMEOUT
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="health")
        self._schema = Kept(self._ask_postgres, silent=(False, False), within=_POSTGRES_WITHIN)
        self._sweeps = Kept(self._ask_sweeps, silent=Sweeps(), within=_POSTGRES_WITHIN, kept=SWEEPS_KEPT)
        self._redis = Kept(self._ask_redis, silent=Redis(), within=_REDIS_WITHIN)

    async def close(self) -> None:
        """End the thread, and close the connection to Redis."""
        self._thread.shutdown(wait=False)
        await self._redis_client.aclose()

    async def alive(self, _request: Request) -> Response:
        """Answer 200. The answer proves that the event loop runs."""
        return JSONResponse({"status": "alive"})

    async def ready(self, _request: Request) -> Response:
        """Answer 200 if this process can serve requests, else 503. The body shows the state of all components."""
        (reachable, migrated), sweeps, broker = await asyncio.gather(
            self._schema.get(), self._sweeps.get(), self._redis.get()
        )
        vitals = self._vitals()
        checks = {
            "postgres": reachable,
            "migrations": migrated,
            "listener": vitals.hearing,
            "not_stopping": not vitals.stopping,
        }
        ready = all(checks.values())
        body = {
            "status": "ready" if ready else "not ready",
            "checks": checks,
            "redis": broker.answers,
            "beat_lock_seconds": broker.beat_lock_seconds,
            "oldest_message_seconds": broker.oldest_message_seconds(now=utcnow()),
            "last_tick_seconds": sweeps.last_tick_seconds(now=utcnow()),
            "sweeps_late": sweeps.late,
            "sweeps_paused": sweeps.paused,
            "gates": sweeps.gates(),
            "epoch": None if sweeps.epoch is None else sweeps.epoch.epoch.number,
            "epoch_confirmed_at": sweeps.epoch_confirmed_at,
            "database_older": None if sweeps.epoch is None else sweeps.epoch.older_since is not None,
            "nothing_is_killed": sweeps.nothing_is_killed(),
        }
        return JSONResponse(body, status_code=200 if ready else 503)

    async def _ask_postgres(self) -> tuple[bool, bool]:
        """Return two values. The first is True if Postgres answers.

        The second is True if the schema in Postgres has the revision of this code or a newer revision.
        """
        try:
            revision = await asyncio.get_running_loop().run_in_executor(
                self._thread, lambda: migrate.current(self._engine)
            )
        except SQLAlchemyError:
            return False, False
        return True, migrate.fits(revision, self._revisions)

    async def _ask_sweeps(self) -> Sweeps:
        """Return the late and paused sweeps, the gates, the time at which any sweep last began, and the epoch."""

        def read(db: Connection) -> Sweeps:
            found = self._watchdog.check(db)
            return Sweeps(
                late=tuple(each.name for each in found if each.late),
                paused=tuple(each.name for each in found if each.paused),
                shut=tuple(gates.shut(db)),
                last_tick=sweep_runs.last_tick(db),
                epoch=epochs.read(db, now=utcnow()),
            )

        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._thread, lambda: transaction(self._engine, read)
            )
        except SQLAlchemyError:  # an older schema also causes this error
            return Sweeps()

    async def _ask_redis(self) -> Redis:
        try:
            pipeline = self._redis_client.pipeline(transaction=False)
            # A replica that became read-only answers every read. Only a write shows that work can go on.
            pipeline.set(WRITTEN, "1", px=_WRITTEN_MS)
            pipeline.pttl(BEAT_LOCK)
            for queue in QUEUES:
                pipeline.lrange(queue, *HEAD)
            _, milliseconds, *queues = await pipeline.execute()
        except (RedisError, OSError):
            # The name of a failed server might lead to another server by now.
            await self._redis_client.connection_pool.disconnect()
            return Redis()
        heads = tuple(head for messages in queues if (head := head_of(messages)) is not None)
        # Redis answers -2 for a key that does not exist.
        lock = milliseconds / 1000 if milliseconds > 0 else None
        return Redis(answers=True, beat_lock_seconds=lock, heads=heads)

"""Health of the web process.

`/healthz` checks nothing outside its own process: a restart cures no database. `/readyz` is 503 only
if this process is useless: Postgres out of reach, an older schema, a deaf listener, stopping.
Redis, beat, late sweeps, gates and the epoch are in its body; without them the process still takes webhooks and
delivers.

Anybody may ask, so an answer costs the stores nothing: what they said is kept for a second, one question is out at a
time however many ask, in a thread of its own, and the body reveals nothing about the fleet or its jobs.
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
KEPT = 1.0
"""Seconds for which an answer of a store is used again."""
SWEEPS_KEPT = 5.0
"""The same for rows written by sweeps, which are late by minutes, not by seconds."""
_POSTGRES_WITHIN = 2.0
_REDIS_WITHIN = 0.3
"""Redis is no reason to be late: a probe gives up after a second by default."""
_REDIS_TIMEOUT = 1.0


@dataclass(frozen=True, slots=True)
class Vitals:
    """What the process knows of itself."""

    stopping: bool
    hearing: bool


@dataclass(frozen=True, slots=True)
class Redis:
    """Whether Redis answers, and for how much longer the active beat holds its lock, in seconds.

    `heads`: when the message was sent that comes next from each queue in which one waits.
    """

    answers: bool = False
    beat_lock_seconds: float | None = None
    heads: tuple[datetime, ...] = ()

    def oldest_message_seconds(self, *, now: datetime) -> float | None:
        """Return for how long the next message of any queue has waited; None when nobody knows."""
        if not self.answers:
            return None
        return max((round(max(0.0, (now - head).total_seconds()), 1) for head in self.heads), default=0.0)


@dataclass(frozen=True, slots=True)
class Sweeps:
    """Which sweeps are late and which are paused, and the closed gates; None where Postgres did not say.

    `last_tick` is when any sweep last began; None also when none ever did. `epoch`: whether Postgres may be older than
    the cluster.
    """

    late: tuple[str, ...] | None = None
    paused: tuple[str, ...] | None = None
    shut: tuple[gates.Shut, ...] | None = None
    last_tick: datetime | None = None
    epoch: epochs.EpochSeen | None = None

    def gates(self) -> dict[str, Any] | None:
        """Return each gate as the body shows it."""
        if self.shut is None:
            return None
        shown: dict[str, Any] = {upstream: {"open": True} for upstream in Upstream}
        for each in self.shut:
            shown[each.upstream] = {"open": False, "closed_at": each.since.isoformat(), "why": each.why}
        return shown

    def nothing_is_killed(self) -> str | None:
        """Return why no sweep may retire a Pod or deregister a runner now; None when it may, or nobody knows."""
        if self.epoch is not None and self.epoch.doubt is not None:
            return self.epoch.doubt
        return "; ".join(map(str, self.shut or ())) or None

    @property
    def epoch_confirmed_at(self) -> str | None:
        """Return when the epoch was last written to the cluster; None also when it never was."""
        at = None if self.epoch is None else self.epoch.confirmed_at
        return None if at is None else at.isoformat()

    def last_tick_seconds(self, *, now: datetime) -> float | None:
        """Return how long ago a sweep last began."""
        return None if self.last_tick is None else max(0.0, round((now - self.last_tick).total_seconds(), 1))


class Kept(Generic[T]):
    """One question to a store: asked by one at a time, its answer kept; `silent` is what no answer `within` means."""

    def __init__(self, ask: Callable[[], Awaitable[T]], *, silent: T, within: float, kept: float = KEPT) -> None:
        self._kept = kept
        self._ask = ask
        self._silent = silent
        self._within = within
        self._asking: asyncio.Task[T] | None = None
        self._answer = silent
        self._until = -1.0

    async def get(self) -> T:
        """Return the kept answer, or wait for the next one for a bounded time."""
        if time.monotonic() < self._until:
            return self._answer
        if self._asking is None:
            self._asking = asyncio.get_running_loop().create_task(self._renew())
        try:
            # A question that outlives our patience goes on, so that a silent store is not asked again and again.
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
    """Both routes."""

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
        """Close the connection to Redis."""
        self._thread.shutdown(wait=False)
        await self._redis_client.aclose()

    async def alive(self, _request: Request) -> Response:
        """Answer that the event loop turns."""
        return JSONResponse({"status": "alive"})

    async def ready(self, _request: Request) -> Response:
        """Answer whether requests should come here, and what is known of the rest."""
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
        """Return whether Postgres answers, and whether its schema is ours or a newer one."""
        try:
            revision = await asyncio.get_running_loop().run_in_executor(
                self._thread, lambda: migrate.current(self._engine)
            )
        except SQLAlchemyError:
            return False, False
        return True, migrate.fits(revision, self._revisions)

    async def _ask_sweeps(self) -> Sweeps:
        """Return which sweeps are late or paused, and what the gates are."""

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
        except SQLAlchemyError:  # or an older schema
            return Sweeps()

    async def _ask_redis(self) -> Redis:
        try:
            pipeline = self._redis_client.pipeline(transaction=False)
            pipeline.pttl(BEAT_LOCK)
            for queue in QUEUES:
                pipeline.lrange(queue, *HEAD)
            milliseconds, *queues = await pipeline.execute()
        except (RedisError, OSError):
            return Redis()
        heads = tuple(head for messages in queues if (head := head_of(messages)) is not None)
        # Redis says -2 for a key that is not there.
        lock = milliseconds / 1000 if milliseconds > 0 else None
        return Redis(answers=True, beat_lock_seconds=lock, heads=heads)

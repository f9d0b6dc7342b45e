"""Inputs of the checks: settings, clients, and rows that several checks share.

Each input is created once, when the first check needs it, even if several threads need it. If the creation fails, every
check that needs this input gets the same exception.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

from redis import Redis
from redis.exceptions import RedisError
from sqlalchemy.exc import DBAPIError

from cli.healthy import BEAT_LOCK
from cli.kubeconfigs import client_for
from github_adapters.client import GitHub
from k8s_adapters.pools.pools import list_pools
from models.browse import health
from models.browse.sweeps import list_sweeps
from models.claims import registrations
from models.db import epochs, migrate
from models.db.engine import assert_own_sessions, make_engine, transaction, why_away
from models.pools import runner_versions
from models.sweeps import sweep_runs
from models.upstream import backoffs
from models.upstream.backoffs import Standing
from ostler import clock
from ostler.clock import utcnow
from ostler.errors import StoreUnreachable
from ostler.reasons import endpoint, reason_and_cure
from ostler.settings import (
    AppAccess,
    Cluster,
    RedisAlone,
    Settings,
    load,
    load_app,
    load_cluster,
    load_stores,
    read,
)
from ostler.task_names import QUEUES
from ostler.transport import HEAD, head_of

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from github_adapters.endpoints.app import AppInstallation
    from k8s_adapters.calls.client import KubeClient
    from models.browse.health import Server
    from models.browse.sweeps import SweepSeen
    from models.db.epochs import EpochSeen, Lost
    from rules.pools.pool_spec import PoolSpec

T = TypeVar("T")

UNUSED_FOR = timedelta(days=1)
"""Time without a job after which the check of unused runners names a persistent runner."""

REDIS_WITHIN = 5.0
CALL_WITHIN = 8.0
"""Maximum seconds for one call to Redis, and for one call to Kubernetes or GitHub."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Contents of Postgres that the checks read.

    `revision` is the revision of the schema. `needed` is the revision that this version of Ostler needs, or None if the
    schema is compatible. The fields after `server` are filled only if the schema is compatible. `images` has the image
    of each pool, by the name of the pool. `versions` has the runner version that GitHub listed for each pool, also by
    the name of the pool. `pools` has the namespace and the name of each pool.
    """

    now: datetime
    revision: str | None
    needed: str | None
    server: Server
    epoch: EpochSeen | None = None
    lost: Lost | None = None
    last_tick: datetime | None = None
    sweeps: Sequence[SweepSeen] = ()
    web_beats: Sequence[datetime] = ()
    last_delivery: datetime | None = None
    images: Mapping[str, str] | None = None
    versions: Mapping[str, str] | None = None
    pools: Sequence[tuple[str, str]] = ()
    backoffs: Sequence[Standing] = ()
    unused_runners: Sequence[tuple[str, int]] = ()
    """Pools with persistent runners that had no job for `UNUSED_FOR`, with the number of these runners."""
    clock_ahead: float = 0.0
    """Seconds by which this machine's clock is ahead of the clock of Postgres; negative if behind."""


class Context:
    """Inputs that the checks share. All properties are thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[str, Callable[[], Any]] = {}

    def _once(self, name: str, make: Callable[[], T]) -> T:
        """Return the result of `make`. `name` identifies the input.

        Only the first call for a `name` runs `make`. If `make` raises an exception, every call for that `name` raises
        the same exception.
        """
        with self._lock:
            if name not in self._made:
                self._made[name] = _Kept(make)
        return cast("T", self._made[name]())

    @property
    def settings(self) -> Settings:
        """All settings. Raises `ConfigurationError` if one is missing or malformed."""
        return self._once("settings", load.__wrapped__)

    @property
    def app(self) -> AppAccess:
        """Settings of the GitHub App. Raises `ConfigurationError` if one is missing or malformed."""
        return self._once("app", load_app)

    @property
    def place(self) -> Cluster:
        """Settings of the cluster: the kubeconfig, and the namespaces of runner Pods."""
        return self._once("place", load_cluster)

    def pools(self) -> list[PoolSpec]:
        """Return the pools of every namespace of runner Pods. Raises what the Kubernetes client raises."""
        return [pool for each in self.place.namespaces for pool in list_pools(self.kube, namespace=each)]

    @property
    def rows(self) -> Rows:
        """Contents of Postgres.

        Raises `StoreUnreachable` if Postgres does not answer, or `ConfigurationError` if its address is not valid.
        """
        return self._once("rows", _rows)

    @property
    def redis_info(self) -> Mapping[str, Any]:
        """Answer of Redis to INFO, with two additional keys.

        Raises `StoreUnreachable` if Redis does not answer, and `ConfigurationError` if its address is missing or wrong.
        `lock` is true if a beat process holds the lock of beat. `heads` has the send time of the next message of each
        queue.
        """
        return self._once("redis", _redis)

    @property
    def kube(self) -> KubeClient:
        """Client of the cluster. Raises `ConfigurationError` if the kubeconfig cannot be read."""
        return self._once("kube", self._make_kube)

    @property
    def lab_cluster(self) -> bool:
        """True if the cluster is the lab's embedded API server, which has no admission and no authorization."""
        return self._once("version", lambda: self.kube.request("GET", "/version")).get("platform") == "embedded"

    @property
    def lab_github(self) -> bool:
        """True if GitHub is the lab's simulated GitHub, which has no runner versions."""
        return self._once("lab", lambda: self.github.get_app(deadline_seconds=CALL_WITHIN)).name == "ostler-lab"

    @property
    def github(self) -> GitHub:
        """Client of GitHub with the App's key. Raises `ConfigurationError` if a setting of the App is not valid."""
        return self._once("github", self._make_github)

    @property
    def installations(self) -> Sequence[AppInstallation]:
        """Installations of the App. Raises the exceptions of GitHub's adapter."""
        return self._once("installations", lambda: self.github.list_installations(deadline_seconds=CALL_WITHIN))

    def _make_kube(self) -> KubeClient:
        return client_for(pool_size=4)

    def _make_github(self) -> GitHub:
        return GitHub(
            api_url=self.app.github_api_url,
            app_id=self.app.github_app_id,
            private_key=self.app.github_private_key,
            timeout=CALL_WITHIN,
        )


class _Kept:
    """A value that one thread creates once. Other threads wait, and get the same value or the same exception."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._done: tuple[Any, BaseException | None] | None = None

    def __call__(self) -> Any:
        with self._lock:
            if self._done is None:
                try:
                    self._done = (self._make(), None)
                except Exception as error:  # noqa: BLE001  every caller raises the exception
                    self._done = (None, error)
        value, failure = self._done
        if failure is not None:
            raise failure
        return value


def _rows() -> Rows:
    url = load_stores().database_url
    engine = make_engine(url, pool_size=1, application="ostler-doctor")
    try:
        assert_own_sessions(engine)
        return transaction(engine, _read)
    except DBAPIError as error:
        if (why := why_away(error)) is not None:
            raise StoreUnreachable(f"Postgres at {endpoint(url.reveal())} does not answer: {why}") from None
        raise
    finally:
        engine.dispose()


def _read(db: Connection) -> Rows:
    now, known = utcnow(), migrate.revisions()
    revision = migrate.revision_of(db)
    fits = migrate.fits(revision, known)
    found = Rows(now, revision, None if fits else known[-1], health.server(db), clock_ahead=clock.process.skew())
    if not fits:
        return found
    return replace(
        found,
        epoch=epochs.read(db, now=now),
        lost=epochs.lost(db),
        last_tick=sweep_runs.last_tick(db),
        sweeps=list_sweeps(db, now=now),
        web_beats=health.web_beats(db),
        last_delivery=health.last_delivery(db),
        images=health.pool_images(db),
        pools=health.pool_places(db),
        backoffs=backoffs.in_force(db, now=now),
        unused_runners=registrations.unused(db, since=now - UNUSED_FOR),
        versions={each.pool: each.version for each in runner_versions.read(db)},
    )


def _redis() -> Mapping[str, Any]:
    url = read(RedisAlone).redis_url.reveal()
    try:
        with Redis.from_url(url, socket_timeout=REDIS_WITHIN, socket_connect_timeout=REDIS_WITHIN) as redis:
            heads = {queue: head_of(redis.lrange(queue, *HEAD)) for queue in QUEUES}
            return {**redis.info(), "lock": bool(redis.exists(BEAT_LOCK)), "heads": heads}
    except RedisError as error:
        raise StoreUnreachable(f"Redis at {endpoint(url)} does not answer: {reason_and_cure(error)}") from None

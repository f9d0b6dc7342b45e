"""The connection budget: the number of connections of each process, and the check of the budget at startup.

A worker opens one connection per thread. Some queues have tasks that mostly wait for GitHub or Kubernetes. A worker
that serves only such queues opens one connection per two threads, because a task holds no connection during a call (law
L15). A web process opens `WEB` connections.

`OSTLER_CONNECTION_BUDGET` is the number of connections of all replicas together. `admit` stops the start of a process
if Postgres does not allow this number. Otherwise Postgres would refuse connections later, when the load is highest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from models.db.engine import assert_isolation, assert_own_sessions, why_away
from models.db.sql import text
from ostler.errors import ConfigurationError, StoreUnreachable

WEB_POOL = 8
WEB = WEB_POOL + 1
"""Connections of a web process: its pool, and one for its listener.

The process has more threads than connections. At most six threads can use a connection for several seconds: intake,
announcements, two of the API, health and the reporter. Deliveries, offers and heartbeats never wait for a locked row.
They share the remaining connections.
"""

RESERVE = 10
"""Connections outside the budget: for migrations, an operator's psql, and the superuser reserve of Postgres."""

ANSWERS_WITHIN = 60.0
"""Seconds that a starting process waits for Postgres. The process then exits, and its supervisor restarts it."""

_ON_THE_NETWORK = {"github", "pools", "retire"}
_PAUSE = 1.0

log = structlog.get_logger(__name__)


def worker_pool(*, threads: int, queues: Sequence[str]) -> int:
    """Return the number of connections for a worker that has `threads` threads and serves these queues."""
    return (threads + 1) // 2 if set(queues) <= _ON_THE_NETWORK else threads


def admit(
    engine: Engine,
    *,
    needs: int,
    share: int,
    budget: int,
    within: float = ANSWERS_WITHIN,
    sleep: Callable[[float], None] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """Wait until Postgres answers, and check that this process fits into the connection budget.

    `needs` is the number of connections of this process. `share` and `budget` are `OSTLER_CONNECTION_SHARE` and
    `OSTLER_CONNECTION_BUDGET`.

    Raises `ConfigurationError` if `needs` exceeds `share`, if `share` exceeds `budget`, if `budget` plus `RESERVE`
    exceeds `max_connections` of Postgres, if the isolation level is not READ COMMITTED, or if a pooler shares sessions
    among connections. Raises `StoreUnreachable` if Postgres does not answer within `within` seconds.
    """
    if needs > share:
        raise ConfigurationError(
            f"OSTLER_CONNECTION_SHARE: found {share}, but this process needs {needs} connections; "
            "raise OSTLER_CONNECTION_SHARE and OSTLER_CONNECTION_BUDGET, or lower OSTLER_WORKER_THREADS of a worker"
        )
    if share > budget:
        raise ConfigurationError(
            f"OSTLER_CONNECTION_BUDGET: found {budget}, less than OSTLER_CONNECTION_SHARE ({share}); "
            "set it to the sum of the shares of all replicas of all processes"
        )
    most = _first_answer(engine, within=within, sleep=sleep, monotonic=monotonic)
    if budget + RESERVE > most:
        raise ConfigurationError(
            f"OSTLER_CONNECTION_BUDGET: found {budget}, but Postgres has max_connections = {most} and {RESERVE} of "
            f"them are reserved; the budget must be {most - RESERVE} at most: raise max_connections, or run fewer "
            "replicas or threads"
        )


def _first_answer(
    engine: Engine, *, within: float, sleep: Callable[[float], None], monotonic: Callable[[], float]
) -> int:
    """Check the isolation level and the pooler, and return `max_connections` of Postgres. Retry until Postgres answers.

    Raises `ConfigurationError` if one of them is wrong, and `StoreUnreachable` if Postgres does not answer within
    `within` seconds.
    """
    end = monotonic() + within
    while True:
        try:
            with engine.connect() as db:
                assert_isolation(db)
                most = int(db.execute(text("SHOW max_connections")).scalar_one())
            assert_own_sessions(engine)
            return most  # noqa: TRY300  an `else` would be further from the errors
        except OperationalError as error:
            said = why_away(error) or f"Postgres refused the query: {error.orig}"
            if monotonic() + _PAUSE > end:
                raise StoreUnreachable(
                    f"Postgres was not available for {within:.0f} s: {said}; check OSTLER_DATABASE_URL and the server"
                ) from None
            log.warning("postgres.not_available_retrying", error=said)
        sleep(_PAUSE)

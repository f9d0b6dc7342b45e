"""The connection budget: how many connections a process takes, and whether Postgres has them for it.

A worker takes one per thread, or half of that where it serves only queues that spend their time with GitHub and
Kubernetes (nothing is held across the network, law L15); web takes `WEB`. `OSTLER_CONNECTION_BUDGET` is the sum over
all replicas. `admit` refuses at the start what would otherwise fail at the worst moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from models.db.engine import assert_isolation
from models.db.sql import text
from ostler.errors import ConfigurationError, StoreUnreachable

WEB_POOL = 8
WEB = WEB_POOL + 1
"""The pool of a web process, and its listener.

The process has more threads than that, but at most six of them can keep a connection for seconds: the intake's, that of
announcements, two of the API, and those of health and of the reporter. Deliveries, offers and heartbeats wait for no
row and share the rest.
"""

RESERVE = 10
"""Connections beside the budget: migrations, an operator's psql, what Postgres reserves for superusers."""

ANSWERS_WITHIN = 60.0
"""Seconds that a starting process waits for Postgres before it ends, to be started again."""

_ON_THE_NETWORK = {"github", "pools", "retire"}
_PAUSE = 1.0

log = structlog.get_logger(__name__)


def worker_pool(*, threads: int, queues: Sequence[str]) -> int:
    """Return the connections of a worker with so many threads on these queues."""
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
    """Let a process start that takes `needs` connections, once Postgres answers.

    Raises `ConfigurationError` when the process needs more than its share, its share is more than the budget, the
    budget and `RESERVE` are more than Postgres has, or the isolation level is another; `StoreUnreachable` when
    Postgres does not answer `within` seconds.
    """
    if needs > share:
        raise ConfigurationError(
            f"OSTLER_CONNECTION_SHARE: found {share}, but this process needs {needs} connections; "
            "raise it and OSTLER_CONNECTION_BUDGET, or lower OSTLER_WORKER_THREADS"
        )
    if share > budget:
        raise ConfigurationError(
            f"OSTLER_CONNECTION_BUDGET: found {budget}, less than the {share} of OSTLER_CONNECTION_SHARE; "
            "it is the sum of the shares of all replicas of all processes"
        )
    most = _first_answer(engine, within=within, sleep=sleep, monotonic=monotonic)
    if budget + RESERVE > most:
        raise ConfigurationError(
            f"OSTLER_CONNECTION_BUDGET: found {budget}, and Postgres has max_connections = {most}; {RESERVE} "
            f"must stay free, so at most {most - RESERVE} is possible: raise max_connections, or run fewer replicas"
        )
    assert_isolation(engine)


def _first_answer(
    engine: Engine, *, within: float, sleep: Callable[[float], None], monotonic: Callable[[], float]
) -> int:
    """Return Postgres's `max_connections`, as soon as it says so."""
    end = monotonic() + within
    while True:
        try:
            with engine.connect() as db:
                return int(db.execute(text("SHOW max_connections")).scalar_one())
        except OperationalError as error:
            said = str(error.orig).strip().splitlines()[0]
            if monotonic() + _PAUSE > end:
                raise StoreUnreachable(f"Postgres did not answer for {within:.0f} s: {said}") from None
            log.warning("postgres.waiting", error=said)
        sleep(_PAUSE)

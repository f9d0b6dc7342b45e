"""The engine, and `transaction`, through which all tasks and requests open their transactions.

`transaction` has three duties that no other code has:

- It retries after a deadlock, a serialization failure, a statement on a dead connection, or `StartOver`.
- It stops the process before or after the commit of a transition if a test has requested a stop there (`ostler.halt`).
- It marks its thread as inside a transaction, so that clients can refuse a network call there (law L15).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from typing import TypeVar

import psycopg2
import structlog
from sqlalchemy import Connection, Engine, ExceptionContext, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError, InvalidatePoolError
from sqlalchemy.pool import ConnectionPoolEntry, NullPool

from models.db import client_waits
from models.db.sql import text
from ostler import clock, telemetry
from ostler.errors import ConfigurationError
from ostler.halt import halt
from ostler.secrets import Secret

T = TypeVar("T")


class StartOver(Exception):
    """Raised by the body of a transaction that finds more rows to lock than it has locked.

    `transaction` rolls back and runs the body again.
    """


ATTEMPTS = 4
"""Greatest number of runs of one transaction: the first run and up to three retries."""

PING_AFTER = 1.0
"""Seconds without use after which a connection of the pool is pinged before its next use."""

SKEW_WARNED = 2.0
"""Ostler logs a warning if the clocks of this machine and of Postgres differ by at least this number of seconds."""

WARN_EVERY = 60.0
"""Shortest time in seconds between two warnings of one process about its clock."""

READ_ONLY = "25006"  # read_only_sql_transaction
_LOCK_NOT_AVAILABLE = "55P03"
_UNKNOWN_AUTHORITY = ("certificate verify failed", "root certificate file")
"""Fragments of libpq's messages about a server certificate that libpq cannot verify with its root certificates."""
_RETRYABLE = {"40001": "serialization", "40P01": "deadlock"}
_local = threading.local()
log = structlog.get_logger(__name__)


def make_engine(url: Secret, *, pool_size: int, application: str) -> Engine:
    """Return an engine for one process. The engine opens a connection only when a connection is needed.

    `pool_size` is the greatest number of connections. `application` is the name that Postgres shows for them.
    """
    client_waits.install()
    engine = create_engine(
        url.reveal(),
        pool_size=pool_size,
        max_overflow=0,
        pool_use_lifo=True,  # prefer the most recently used connection, which needs no ping
        pool_timeout=10,
        hide_parameters=True,  # a JIT must not appear in an exception text (law L13)
        connect_args={
            "application_name": application,
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
        },
    )
    event.listen(engine, "connect", _limit_waits)
    event.listen(engine, "handle_error", _leave_a_read_only_server)
    _ping_after_a_while(engine)
    _measure_the_clock(engine)
    return engine


def _limit_waits(connection: DBAPIConnection, _: object) -> None:
    """Set the time limits of a new session, and its time zone, because pages and texts show times in UTC.

    PgBouncer refuses these settings, or ignores them silently, if they are in the startup parameter `options`.
    """
    cursor = connection.cursor()
    cursor.execute(
        f"SET lock_timeout = {client_waits.LOCK * 1000:.0f}; SET idle_in_transaction_session_timeout = 30000; "
        f"SET statement_timeout = {client_waits.STATEMENT * 1000:.0f}; SET timezone = 'UTC'"
    )
    cursor.close()
    connection.commit()


def _ping_after_a_while(engine: Engine) -> None:
    """Ping each connection that was idle for `PING_AFTER` seconds, before the connection is used again.

    If the ping fails, the pool discards this connection and every connection that was opened before the failure. A
    connection that was used more recently is not pinged. If such a connection has died, `transaction` retries.
    """

    def remember(_: object, record: ConnectionPoolEntry) -> None:
        record.info["in_pool_since"] = time.monotonic()

    def ping(connection: DBAPIConnection, record: ConnectionPoolEntry, _: object) -> None:
        since = record.info.get("in_pool_since")  # None for a new connection
        if since is None or time.monotonic() - since < PING_AFTER:
            return
        try:
            engine.dialect.do_ping(connection)
        except psycopg2.Error as error:
            raise InvalidatePoolError from error

    event.listen(engine, "checkin", remember)
    event.listen(engine, "checkout", ping)


def _measure_the_clock(engine: Engine) -> None:
    """Compare this machine's clock with the clock of Postgres on each new connection, and every ten seconds."""

    def measure(connection: DBAPIConnection, *_: object) -> None:
        if clock.process.is_due():
            try:
                clock.process.measure(partial(_time_of, connection))
            except psycopg2.Error as error:
                raise InvalidatePoolError from error
            _report_skew(clock.process.skew())

    event.listen(engine, "connect", lambda *_: clock.process.connected())
    event.listen(engine, "checkout", measure)


def _time_of(connection: DBAPIConnection) -> datetime:
    """Return the time of the Postgres server, read in a transaction of its own."""
    cursor = connection.cursor()
    try:
        cursor.execute("SELECT clock_timestamp()")
        (found,) = cursor.fetchone() or (None,)
    finally:
        cursor.close()
        connection.rollback()
    assert isinstance(found, datetime)  # noqa: S101  the server answers a SELECT of one row
    return found


_warned_at = float("-inf")


def _report_skew(skew: float) -> None:
    """Set the metric of the clock skew, and log a warning at most once a minute if the skew is large."""
    global _warned_at  # noqa: PLW0603  one per process, as the clock is
    telemetry.CLOCK_SKEW.set(abs(skew))
    if abs(skew) >= SKEW_WARNED and time.monotonic() - _warned_at >= WARN_EVERY:
        _warned_at = time.monotonic()
        log.warning(
            "clock.differs_from_postgres",
            ahead_by_seconds=round(skew, 1),
            remedy="synchronise the clocks of this node and of the Postgres server by NTP",
        )


def _leave_a_read_only_server(context: ExceptionContext) -> None:
    """Make the pool replace its connections when a statement fails because the server is read-only.

    After a failover, open connections might still lead to the demoted server. This server answers a ping, so nothing
    else would close these connections. The exception gets the attribute `in_recovery`, because a primary with
    `default_transaction_read_only` refuses writes with the same error code as a standby.
    """
    refused = context.original_exception
    if getattr(refused, "pgcode", None) != READ_ONLY:
        return
    context.is_disconnect = True
    if context.connection is not None:
        with suppress(psycopg2.Error):  # the server is gone by now
            refused.in_recovery = _is_in_recovery(context.connection.connection.dbapi_connection)  # type: ignore[attr-defined]


def _is_in_recovery(connection: DBAPIConnection | None) -> bool | None:
    """Return True if the server of a connection is a standby. The transaction of the connection is rolled back."""
    if connection is None:
        return None
    connection.rollback()
    cursor = connection.cursor()
    cursor.execute("SELECT pg_is_in_recovery()")
    (found,) = cursor.fetchone() or (None,)
    return found if isinstance(found, bool) else None


def is_locked(error: BaseException) -> bool:
    """Return True if a statement failed because it waited too long for a row lock or an advisory lock."""
    return isinstance(error, DBAPIError) and getattr(error.orig, "pgcode", None) == _LOCK_NOT_AVAILABLE


def why_away(error: DBAPIError) -> str | None:
    """Return one line that says why Postgres did not answer, or None if Postgres answered.

    A statement that Postgres refuses has an error code, which proves that Postgres answered.
    """
    if not error.connection_invalidated and getattr(error.orig, "pgcode", None) is not None:
        return None
    told = (str(error.orig).strip().splitlines() or ["no reason was given"])[0]
    unknown = any(each in told for each in _UNKNOWN_AUTHORITY)
    return f"{told}; add sslmode=verify-full&sslrootcert=FILE to OSTLER_DATABASE_URL" if unknown else told


def assert_isolation(db: Connection) -> None:
    """Raise `ConfigurationError` if the isolation level of a connection is not READ COMMITTED.

    The matcher locks rows in one statement and counts in a later statement. The later statement must see the changes
    that were committed before the lock.
    """
    level = db.execute(text("SHOW transaction_isolation")).scalar_one()
    if level != "read committed":
        raise ConfigurationError(
            f"OSTLER_DATABASE_URL: default_transaction_isolation is {level!r} and must be 'read committed': change it "
            "in the options of the URL, or with ALTER ROLE or ALTER DATABASE"
        )


def assert_own_sessions(engine: Engine) -> None:
    """Raise `ConfigurationError` if a pooler gives the session of a connection to other clients between transactions.

    Two connections that are open at the same time have the same backend only behind such a pooler. Notifications,
    prepared statements and the time limits of a session are then lost. While other clients use the pooler, the check
    might find two different backends and pass.
    """
    alone = create_engine(engine.url, poolclass=NullPool)
    with alone.connect() as first, alone.connect() as second:
        backend = _backend_of(first)
        first.rollback()
        shared = _backend_of(second) == backend or _backend_of(first) != backend
    if shared:
        raise ConfigurationError(
            "OSTLER_DATABASE_URL: a pooler, such as PgBouncer in transaction mode, shares one session among several "
            "connections; connect to Postgres directly, or set the pooler to session mode"
        )


def _backend_of(db: Connection) -> int:
    return int(db.execute(text("SELECT pg_backend_pid()")).scalar_one())


def in_transaction() -> bool:
    """Return True if this thread is inside `transaction`, and False otherwise."""
    return getattr(_local, "depth", 0) > 0


@contextmanager
def _mark() -> Iterator[None]:
    _local.depth = getattr(_local, "depth", 0) + 1
    try:
        yield
    finally:
        _local.depth -= 1


def record_point(db: Connection, point: str, *, machine: str, rows: int) -> None:
    """Record that the open transaction will commit the transition `point` of `machine` for this number of rows.

    The code of each transition calls this function. After the commit, a metric counts the recorded transitions. The
    records also name the points at which a test can stop the process.
    """
    db.info.setdefault("points", []).append((point, machine, rows))


def after_commit(db: Connection, act: Callable[[], object]) -> None:
    """Call `act` in this process after the open transaction has committed, for example to count a metric."""
    db.info.setdefault("after_commit", []).append(act)


def transaction(engine: Engine, body: Callable[[Connection], T]) -> T:
    """Run `body` in one transaction and return its result.

    After a deadlock, a serialization failure or `StartOver`, `body` runs again, up to `ATTEMPTS` runs in total. If a
    statement of the first run fails on a dead connection, `body` runs again once. `body` must therefore do nothing
    outside Postgres. A failed commit is not retried, because it might have succeeded.

    Raises the last error if all runs fail. Raises every other error of the database without a second run. Inside
    `client_waits.brief_waits`, a locked row soon causes an error that `is_locked` recognises.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _once(engine, body)
        except (DBAPIError, StartOver) as error:
            why = _why_again(error, attempt)
            if attempt == ATTEMPTS or why is None:
                raise
            telemetry.TRANSACTION_RETRIES.labels(why).inc()
            # In normal operation, a transaction of a webhook starts over if it finds more rows to lock. Only other
            # retries, such as a retry after a deadlock, are worth a warning.
            level = logging.INFO if isinstance(error, StartOver) else logging.WARNING
            log.log(level, "transaction.retried", why=why, attempt=attempt)
    raise AssertionError("unreachable")


def _why_again(error: DBAPIError | StartOver, attempt: int) -> str | None:
    """Return the reason to retry a transaction that failed with this error, or None if it must not be retried."""
    if isinstance(error, StartOver):
        return "start_over"
    code = getattr(error.orig, "pgcode", None)
    # A failed commit has no statement. It is not retried, because it might have succeeded.
    # After a failure the pool replaces all its connections, so one retry is enough. Each run can wait 25 s for an
    # answer.
    if error.connection_invalidated and error.statement is not None and code != READ_ONLY and attempt == 1:
        return "lost_connection"
    return _RETRYABLE.get(code or "")


def _run(db: Connection, body: Callable[[Connection], T]) -> T:
    """Run `body` with the lock waits of the surrounding `brief_waits` block, if there is one."""
    waits = client_waits.lock_waits()
    if waits is None:
        return body(db)
    db.exec_driver_sql(f"SET LOCAL lock_timeout = {waits.seconds * 1000:.0f}")
    try:
        return body(db)
    except DBAPIError as error:
        if is_locked(error):
            waits.spent()
        raise


def _once(engine: Engine, body: Callable[[Connection], T]) -> T:
    with engine.connect() as db, _mark():
        points: list[tuple[str, str, int]] = []
        db.info["points"] = points
        later: list[Callable[[], object]] = []
        db.info["after_commit"] = later
        with db.begin():
            result = _run(db, body)
            for point, _, _ in points:
                halt(f"{point}.before_commit")
        for point, machine, rows in points:
            telemetry.TRANSITIONS.labels(machine, point).inc(rows)
            halt(f"{point}.after_commit")
        for act in later:
            act()
        return result

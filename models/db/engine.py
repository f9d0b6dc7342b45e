"""The engine and the one way to open a transaction.

`transaction` retries deadlocks, serialization failures and statements that met a dead connection (the only place that
does), halts at the kill points of the transitions that ran in it, and marks its thread as inside a transaction, so that
`forbid_in_transaction` (called by every adapter call in the tests) proves law L15.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import TypeVar

import psycopg2
import structlog
from sqlalchemy import Connection, Engine, ExceptionContext, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError, InvalidatePoolError
from sqlalchemy.pool import ConnectionPoolEntry

from models.db import client_waits
from models.db.sql import text
from ostler import clock, telemetry
from ostler.errors import ConfigurationError
from ostler.halt import halt
from ostler.secrets import Secret

T = TypeVar("T")


class StartOver(Exception):
    """Raised by a body that found more rows to lock than it had: `transaction` rolls back and runs it again."""


ATTEMPTS = 4
"""Greatest number of runs of a transaction: the first one, and three after a deadlock or serialization failure."""

PING_AFTER = 1.0
"""Seconds in the pool after which a connection is asked whether it lives, before it is used again."""

SKEW_WARNED = 2.0
"""Seconds between this machine's clock and that of Postgres from which on it is logged."""

WARN_EVERY = 60.0
"""Seconds between two such lines of one process."""

READ_ONLY = "25006"  # read_only_sql_transaction
_LOCK_NOT_AVAILABLE = "55P03"
_UNKNOWN_AUTHORITY = ("certificate verify failed", "root certificate file")
"""What libpq says of a certificate whose authority it does not know, or that it was given none to check with."""
_RETRYABLE = {"40001": "serialization", "40P01": "deadlock"}
_local = threading.local()
log = structlog.get_logger(__name__)


def make_engine(url: Secret, *, pool_size: int, application: str) -> Engine:
    """Return an engine for one process; it opens connections when they are first needed."""
    client_waits.install()
    engine = create_engine(
        url.reveal(),
        pool_size=pool_size,
        max_overflow=0,
        pool_use_lifo=True,  # the latest used first: it needs no ping
        pool_timeout=10,
        hide_parameters=True,  # a JIT never appears in an exception text (L13)
        connect_args={
            "application_name": application,
            "options": (
                f"-c lock_timeout={client_waits.LOCK * 1000:.0f} -c idle_in_transaction_session_timeout=30000 "
                f"-c statement_timeout={client_waits.STATEMENT * 1000:.0f}"
            ),
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
        },
    )
    event.listen(engine, "handle_error", _leave_a_read_only_server)
    _ping_after_a_while(engine)
    _measure_the_clock(engine)
    return engine


def _ping_after_a_while(engine: Engine) -> None:
    """Have a connection that was idle for a while asked whether it lives; a dead one takes all that are as old with it.

    One that was used a moment ago is believed: where it has died meanwhile, `transaction` begins anew.
    """

    def remember(_: object, record: ConnectionPoolEntry) -> None:
        record.info["in_pool_since"] = time.monotonic()

    def ping(connection: DBAPIConnection, record: ConnectionPoolEntry, _: object) -> None:
        since = record.info.get("in_pool_since")  # None: it was just made
        if since is None or time.monotonic() - since < PING_AFTER:
            return
        try:
            engine.dialect.do_ping(connection)
        except psycopg2.Error as error:
            raise InvalidatePoolError from error

    event.listen(engine, "checkin", remember)
    event.listen(engine, "checkout", ping)


def _measure_the_clock(engine: Engine) -> None:
    """Compare this machine's clock with that of Postgres at each new connection, and every ten seconds."""

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
    """Return the time of the server, in a transaction of its own."""
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
    """Show the skew as a metric, and log one of two seconds or more once a minute."""
    global _warned_at  # noqa: PLW0603  of the process, as its clock is
    telemetry.CLOCK_SKEW.set(abs(skew))
    if abs(skew) >= SKEW_WARNED and time.monotonic() - _warned_at >= WARN_EVERY:
        _warned_at = time.monotonic()
        log.warning(
            "clock.skewed",
            ahead_by=round(skew, 1),
            cure="synchronise the clock of this node by NTP",
        )


def _leave_a_read_only_server(context: ExceptionContext) -> None:
    """Have the pool open new connections when one of them may only read.

    After a failover its sessions may go on at the demoted server. A ping succeeds there: nothing else would end them.
    """
    if getattr(context.original_exception, "pgcode", None) == READ_ONLY:
        context.is_disconnect = True


def is_locked(error: BaseException) -> bool:
    """Return whether a statement failed because another session had locked a row, or an advisory lock, for too long."""
    return isinstance(error, DBAPIError) and getattr(error.orig, "pgcode", None) == _LOCK_NOT_AVAILABLE


def why_away(error: DBAPIError) -> str | None:
    """Return in a line why Postgres did not answer; None when it did: it names a reason for all that it refuses."""
    if not error.connection_invalidated and getattr(error.orig, "pgcode", None) is not None:
        return None
    told = (str(error.orig).strip().splitlines() or ["no reason was given"])[0]
    unknown = any(each in told for each in _UNKNOWN_AUTHORITY)
    return f"{told}; add sslmode=verify-full&sslrootcert=FILE to OSTLER_DATABASE_URL" if unknown else told


def assert_isolation(engine: Engine) -> None:
    """Refuse to start on anything but READ COMMITTED: the matcher counts in a later statement than it locks."""
    with engine.connect() as db:
        level = db.execute(text("SHOW transaction_isolation")).scalar_one()
    if level != "read committed":
        raise ConfigurationError(
            f"OSTLER_DATABASE_URL: default_transaction_isolation is {level!r}; Ostler needs 'read committed'"
        )


def in_transaction() -> bool:
    """Return whether this thread is inside `transaction`."""
    return getattr(_local, "depth", 0) > 0


@contextmanager
def _mark() -> Iterator[None]:
    _local.depth = getattr(_local, "depth", 0) + 1
    try:
        yield
    finally:
        _local.depth -= 1


def note(db: Connection, point: str, *, machine: str, rows: int) -> None:
    """Record that the open transaction commits `point` for so many rows; called for each transition."""
    db.info.setdefault("points", []).append((point, machine, rows))


def after_commit(db: Connection, act: Callable[[], object]) -> None:
    """Have something done in this process once the open transaction has committed, as a metric counted."""
    db.info.setdefault("after_commit", []).append(act)


def transaction(engine: Engine, body: Callable[[Connection], T]) -> T:
    """Run `body` in one transaction and return what it returns.

    A deadlock or serialization failure runs it again, up to `ATTEMPTS` times, and so does, once, a statement of it that
    met a dead connection: `body` must not do anything outside Postgres. A commit that met one is not repeated: it may
    have been made. Raises whatever else the database raised. Inside `client_waits.brief_waits` that is soon the case
    (`is_locked`) where a row is locked.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _once(engine, body)
        except (DBAPIError, StartOver) as error:
            why = _why_again(error, attempt)
            if attempt == ATTEMPTS or why is None:
                raise
            telemetry.TRANSACTION_RETRIES.labels(why).inc()
            # Starting over is part of how a webhook locks what it may touch; a deadlock is not.
            level = logging.INFO if isinstance(error, StartOver) else logging.WARNING
            log.log(level, "transaction.retried", why=why, attempt=attempt)
    raise AssertionError("unreachable")


def _why_again(error: DBAPIError | StartOver, attempt: int) -> str | None:
    """Return why a transaction that failed so is run again, or None."""
    if isinstance(error, StartOver):
        return "start_over"
    code = getattr(error.orig, "pgcode", None)
    # A commit is no statement. Once: the pool makes every connection anew then, and what waits longest waits 25 s.
    if error.connection_invalidated and error.statement is not None and code != READ_ONLY and attempt == 1:
        return "lost_connection"
    return _RETRYABLE.get(code or "")


def _run(db: Connection, body: Callable[[Connection], T]) -> T:
    """Run `body` with the lock waits of the block that it is called in."""
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

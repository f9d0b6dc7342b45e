"""The engine and the one way to open a transaction.

`transaction` retries deadlocks and serialization failures (the only place that does), halts at the
kill points of the transitions that ran in it, and marks its thread as inside a transaction, so that
`forbid_in_transaction` (called by every adapter call in the tests) proves law L15.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import structlog
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError

from ostler.errors import ConfigurationError
from ostler.halt import halt
from ostler.secrets import Secret

T = TypeVar("T")


class StartOver(Exception):
    """Raised by a body that found more rows to lock than it had: `transaction` rolls back and runs it again."""


ATTEMPTS = 4
"""Runs of a transaction at most: the first and three retries (DESIGN section 4, Locks)."""

_RETRYABLE = ("40001", "40P01")  # serialization_failure, deadlock_detected
_local = threading.local()
log = structlog.get_logger(__name__)


def make_engine(url: Secret, *, pool_size: int, application: str) -> Engine:
    """Return an engine for one process; it opens connections when they are first needed."""
    return create_engine(
        url.reveal(),
        pool_size=pool_size,
        max_overflow=0,
        pool_pre_ping=True,
        pool_timeout=10,
        hide_parameters=True,  # a JIT never appears in an exception text (L13)
        connect_args={
            "application_name": application,
            "connect_timeout": 5,
            "options": "-c lock_timeout=5000 -c idle_in_transaction_session_timeout=30000 -c statement_timeout=20000",
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
        },
    )


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


def note(db: Connection, point: str) -> None:
    """Record that the open transaction commits `point`; called for each transition."""
    db.info.setdefault("points", []).append(point)


def transaction(engine: Engine, body: Callable[[Connection], T]) -> T:
    """Run `body` in one transaction and return what it returns.

    A deadlock or serialization failure runs it again, up to `ATTEMPTS` times: `body` must not do
    anything outside Postgres. Raises whatever else the database raised.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _once(engine, body)
        except (DBAPIError, StartOver) as error:
            code = getattr(getattr(error, "orig", None), "pgcode", None)
            if attempt == ATTEMPTS or not (isinstance(error, StartOver) or code in _RETRYABLE):
                raise
            log.warning("transaction.retried", code=code, attempt=attempt)
    raise AssertionError("unreachable")


def _once(engine: Engine, body: Callable[[Connection], T]) -> T:
    with engine.connect() as db, _mark():
        points: list[str] = []
        db.info["points"] = points
        with db.begin():
            result = body(db)
            for point in points:
                halt(f"{point}.before_commit")
        for point in points:
            halt(f"{point}.after_commit")
        return result

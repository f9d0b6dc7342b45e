"""A row that another session has locked, and the waits of the lanes for it, measured by Postgres."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from sqlalchemy import Engine, create_engine, text

from ostler.secrets import Secret

LONGEST = 1.5
"""Longest wait in seconds of a lane for a locked row: one, and half of one more on a busy server."""

EVERY = 0.02


class Waits(threading.Thread):
    """Samples of the sessions that wait for a lock. `longest` is in seconds, by the clock of Postgres."""

    def __init__(self, url: Secret) -> None:
        super().__init__(name="waits", daemon=True)
        self.longest = 0.0
        self.waiting = ""
        self._engine = create_engine(url.reveal(), isolation_level="AUTOCOMMIT")
        self._stopped = threading.Event()
        self._sampling = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        assert self._sampling.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self.join()
        self._engine.dispose()

    def run(self) -> None:
        """Take samples until stopped."""
        statement = text("""
            SELECT extract(epoch FROM clock_timestamp() - l.waitstart)::float AS seconds, l.locktype, a.query
            FROM pg_locks l JOIN pg_stat_activity a USING (pid)
            WHERE NOT l.granted AND l.waitstart IS NOT NULL AND a.datname = current_database()
            ORDER BY 1 DESC LIMIT 1
        """)
        with self._engine.connect() as db:
            while not self._stopped.wait(EVERY):
                self._sampling.set()
                row = db.execute(statement).one_or_none()
                if row is not None and row.seconds > self.longest:
                    self.longest = row.seconds
                    self.waiting = f"{row.locktype}: {' '.join(row.query.split())}"

    def assert_short(self) -> None:
        """Fail if a session waited for longer than a lane may."""
        assert self.longest <= LONGEST, f"waited {self.longest:.1f} s for a {self.waiting}"


@contextmanager
def locked(url: Secret, statement: str, **values: Any) -> Iterator[Waits]:
    """Hold the rows that a statement locks during the block, as a frozen process does, and sample who waits."""
    engine: Engine = create_engine(url.reveal(), connect_args={"options": "-c idle_in_transaction_session_timeout=0"})
    try:
        with engine.connect() as holder, Waits(url) as waits:
            assert holder.execute(text(statement), values).all(), f"there is no such row: {statement}"
            yield waits
            holder.rollback()
    finally:
        engine.dispose()

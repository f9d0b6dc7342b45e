"""The thread of each process that writes down what the process saw of its upstreams, for the gates.

A process that is killed loses some seconds of counts, and one without Postgres those of that time: nothing is reaped
without Postgres either.
"""

from __future__ import annotations

import threading

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from models.db.engine import transaction
from models.upstream import gates
from ostler.clock import utcnow
from ostler.logging import get_logger
from ostler.reasons import words_of
from ostler.upstreams import TALLY, Tally

EVERY = 5.0
"""Seconds between two reports; a process that made no call writes nothing."""

log = get_logger(__name__)


def report(engine: Engine, *, tally: Tally = TALLY) -> None:
    """Write down what was counted since the last time; what cannot be written is lost."""
    counts = tally.take()
    if not counts:
        return
    try:
        transaction(engine, lambda db: gates.report(db, counts, now=utcnow()))
    except SQLAlchemyError as error:
        log.warning("upstreams.not_reported", error=words_of(error))


class Reporter:
    """The thread; `stop` has it write what is left."""

    def __init__(self, engine: Engine, *, every: float = EVERY) -> None:
        self._engine = engine
        self._every = every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="upstreams", daemon=True)

    def start(self) -> None:
        """Start."""
        self._thread.start()

    def stop(self) -> None:
        """End after the report that it is at."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            self._try()
        self._try()

    def _try(self) -> None:
        try:
            report(self._engine)
        except Exception:
            log.exception("upstreams.report_failed")  # the next one may do better; the thread stays

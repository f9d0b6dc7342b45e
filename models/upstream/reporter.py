"""Reporter thread of each process: it writes the counts of the process's upstream calls for the gates.

If a process is killed, its counts since the last report are lost. If a process cannot reach Postgres, its counts are
lost for as long as the outage lasts. This loss is harmless, because no sweep deletes anything without Postgres.
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
"""Seconds between two reports. A process that made no call since its last report writes nothing."""

log = get_logger(__name__)


def report(engine: Engine, *, tally: Tally = TALLY) -> None:
    """Write the counts since the last report. Counts that cannot be written are lost."""
    counts = tally.take()
    if not counts:
        return
    try:
        transaction(engine, lambda db: gates.report(db, counts, now=utcnow()))
    except SQLAlchemyError as error:
        log.warning("upstream_call_counts.not_stored", error=words_of(error))


class Reporter:
    """The reporter thread of a process. `stop` writes the remaining counts."""

    def __init__(self, engine: Engine, *, every: float = EVERY) -> None:
        self._engine = engine
        self._every = every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="upstreams", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Write the remaining counts and end the thread."""
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
            log.exception("upstream_call_counts.not_stored")  # the thread continues with the next report

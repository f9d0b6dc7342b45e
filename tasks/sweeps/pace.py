"""How a tick of a sweep reads and goes on: whole lists, one row after the other, while time, lease and switch allow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from models import sweep_runs
from models.engine import transaction
from models.sweep_runs import Counts, Standing
from ostler.clock import utcnow
from ostler.errors import UpstreamError
from tasks.base import DEADLINE, begin_page, remaining, stopping
from tasks.runtime import Runtime

T = TypeVar("T")
log = structlog.get_logger(__name__)

RENEW_AFTER = 5.0
"""Seconds after which a lease is renewed before the next row."""

RESERVE = 3.0
"""Seconds of a tick that are left for the row that is looked at."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """What the frame knows of a sweep.

    `quiet`: its ticks are so frequent that only those that repaired something, or went wrong, have a run row.
    `again`: a tick that finds another at work has the sweep run once more after that. `longest`: seconds of all pages
    of one tick together.
    """

    name: str
    quiet: bool
    again: bool
    lease: float
    longest: float


class Aborted(Exception):
    """Ends a tick in which nothing more may be changed, because what was read cannot be trusted (law L8)."""


class Overtaken(Exception):
    """Another tick has the lease."""


class Paused(Exception):
    """The sweep was paused while it ran."""


class Pace:
    """What a tick may still do: it ends when a list cannot be trusted, time is up, or its lease or switch is gone."""

    def __init__(self, rt: Runtime, spec: Sweep, *, lease_no: int, dry: bool) -> None:
        self.rt = rt
        self.dry = dry
        self.trouble: str | None = None
        self._spec = spec
        self._lease_no = lease_no
        self._began = utcnow()
        self._renewed_at = time.monotonic()
        self._ends_at = time.monotonic() + spec.longest
        self._counts = Counts()
        self._looked = 0

    @property
    def got_nowhere(self) -> bool:
        """Whether everything that the tick tried failed: it may not count as one that ran."""
        return self._counts.skipped > 0 and self._looked == 0 and self._counts.listed == 0

    @property
    def lease_no(self) -> int:
        """The number that fences what this tick writes outside the ledger."""
        return self._lease_no

    # Reading

    def read(self, query: Callable[[Connection], T]) -> T:
        """Return what a query finds."""
        return transaction(self.rt.engine, query)

    def listing(
        self, what: str, call: Callable[[], Iterable[T]], *, counted: Callable[[T], bool] = lambda _: True
    ) -> list[T]:
        """Return a whole list of an upstream; one that fails ends the tick (law L8).

        Those that are `counted` (default: all) are what the budget is a part of.
        """
        try:
            found = list(call())
        except UpstreamError as error:
            raise Aborted(f"{what} could not be listed: {type(error).__name__}") from error
        self.listed(sum(1 for each in found if counted(each)))
        return found

    def listed(self, many: int) -> None:
        """Add to what the tick listed: the budget is a part of that."""
        self._counts.listed += many

    def doubt(self, suspicious: bool, why: str) -> None:
        """End the tick when what was read is suspicious, as an empty list while rows are open (law L8)."""
        if suspicious:
            raise Aborted(why)

    def abort(self, why: str) -> NoReturn:
        """End the tick: what was read cannot be trusted."""
        raise Aborted(why)

    def incomplete(self, why: str) -> None:
        """Say that this tick leaves something to the next, without ending it."""
        self.trouble = self.trouble or why

    # Going on

    def each(self, rows: Iterable[T], look: Callable[[T], object], *, reserve: float = RESERVE) -> bool:
        """Look at one row after the other while there is time; one that fails stops no other (law L14).

        False when rows were left to the next tick.
        """
        for row in rows:
            if not self.goes_on(reserve=reserve):
                return False
            try:
                look(row)
            except (UpstreamError, DBAPIError) as error:
                self.skipped(error, row=_named(row))
            else:
                self._looked += 1
        return True

    def skipped(self, error: Exception, **what: Any) -> None:
        """Count and log a row that could not be looked at or repaired."""
        self._counts.skipped += 1
        log.warning("sweep.row_skipped", sweep=self._spec.name, error=type(error).__name__, **what)

    def goes_on(self, *, reserve: float = RESERVE) -> bool:
        """Return whether there is time for another row, and keep the lease until then."""
        if remaining() < reserve or time.monotonic() > self._ends_at:
            self.incomplete("its time was up")
            return False
        if stopping():
            self.incomplete("its process stops")
            return False
        if time.monotonic() - self._renewed_at > RENEW_AFTER:
            self._renew()
        return True

    def page(self) -> bool:
        """Begin another page: renew the lease, and give it a deadline of its own while `longest` lasts."""
        if stopping() or time.monotonic() + RESERVE > self._ends_at:
            return self.goes_on(reserve=DEADLINE)
        self._renew()
        begin_page()
        return True

    def _renew(self) -> None:
        held = transaction(
            self.rt.engine,
            lambda db: sweep_runs.renew(db, self._spec.name, self._lease_no, lease=self._spec.lease, now=utcnow()),
        )
        self._stand(held)
        self._renewed_at = time.monotonic()

    def _stand(self, standing: Standing) -> None:
        if not standing.held:
            raise Overtaken
        if standing.paused and not self.dry:
            raise Paused


def _named(row: Any) -> Any:
    return next((value for name in ("claim_id", "id", "guid") if (value := getattr(row, name, None)) is not None), None)

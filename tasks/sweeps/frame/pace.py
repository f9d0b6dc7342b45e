"""Pace of a sweep's tick: read complete lists, then check row by row.

A tick continues while time is left, its lease is valid, the sweep is not paused, and the worker is not stopping.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

import structlog
from kombu.exceptions import KombuError, OperationalError
from redis.exceptions import RedisError
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from models.db.engine import StartOver
from models.intake.binding_locks import Contended
from models.sweeps import sweep_runs
from models.sweeps.sweep_runs import Counts, Standing
from ostler.clock import utcnow
from ostler.errors import NotInstalled, RateLimited, Retryable, Suspended, UpstreamError
from ostler.reasons import cause_of, meaning_of
from tasks.claims.github import Lookups
from tasks.worker.base import DEADLINE, begin_page, remaining, stopping
from tasks.worker.runtime import Runtime
from tasks.worker.transactions import NOW

P = ParamSpec("P")
T = TypeVar("T")
log = structlog.get_logger(__name__)

RENEW_AFTER = 5.0
"""Smallest age of the lease in seconds at which the lease is renewed before the next row."""

RESERVE = 3.0
"""Seconds of a tick that are reserved for the row under check."""

LONGEST = 300.0
"""Longest time in seconds of one tick of a sweep that reads many pages or scopes."""

UNAVAILABLE = (Retryable, RateLimited, Suspended, NotInstalled)
"""Errors that the next call for the same installation would get too."""

EXPECTED = (UpstreamError, StartOver, RedisError, KombuError, OperationalError, OSError)
"""Expected errors of a row's check: an upstream failed, the row kept changing, or Redis is unavailable.

If a message cannot be sent, the committed change stays, and `resume` sends the message again (law L6).
"""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Configuration of a sweep in the frame.

    `quiet`: True for a sweep with frequent ticks. A run row is then stored only for a tick that repaired something or
    failed, that an operator requested, or that is a dry run. `again`: True if a tick that is refused because another
    tick runs must be repeated after the other tick. `lease`: duration of the lease in seconds. `longest`: longest time
    in seconds of all pages of one tick together.

    `fenced`: True if no other tick can take over the lease, and no operator can pause the sweep, while the transaction
    of a repair runs. If `fenced` is False, a repair that hangs does not block later ticks. Only a sweep whose ticks may
    run at the same time sets `fenced` to False.
    """

    name: str
    quiet: bool
    again: bool
    lease: float
    longest: float
    fenced: bool = True


class Ended(Exception):
    """Ends a tick, not only the check of one row."""


class Aborted(Ended):
    """Ends a tick that must change nothing more, because a list or row that it read cannot be trusted (law L8)."""


class Overtaken(Ended):
    """Another tick has the lease."""


class Paused(Ended):
    """The sweep was paused during the tick."""


class Pace:
    """Progress of a tick.

    The tick ends when a list cannot be trusted, time is up, the lease is lost, the sweep is paused, or the worker
    stops.
    """

    def __init__(self, rt: Runtime, spec: Sweep, *, lease_no: int, dry: bool) -> None:
        self.rt = rt
        self.dry = dry
        self.trouble: str | None = None
        self.lookups = Lookups()
        self.bug: Exception | None = None
        """The first unexpected error in the check of a row, or None.

        After this error, the other rows are still checked. The error is raised after all checks.
        """
        self._spec = spec
        self._lease_no = lease_no
        self._began = utcnow()
        self._renewed_at = time.monotonic()
        self._ends_at = time.monotonic() + spec.longest
        self._counts = Counts()
        self._checked = 0
        self._failed = 0
        self._left = False

    @property
    def got_nowhere(self) -> str | None:
        """Return why the tick does not count as a run, or None if it counts as a run.

        A tick does not count if every check failed, or if it ended before the first row because its time was up or the
        worker was stopping. A tick counts if at least one row was checked, or if there was no row to check.
        """
        if self._checked or self._counts.repaired:
            return None
        if self._left:
            return f"{self.trouble} before the first check"
        if self._failed or (self._counts.skipped and not self._counts.listed):
            return "every check failed"
        return None

    @property
    def lease_no(self) -> int:
        """Return the number of this tick's lease.

        Writes outside of the ledger compare this number with the number of the current lease. A tick that lost its
        lease therefore writes nothing.
        """
        return self._lease_no

    # Read

    def read(self, query: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a query with these arguments in a transaction and return its result."""
        return self.rt.transaction(query, *args, **kwargs)

    def whole(self, what: str, pages: Iterable[Sequence[T]]) -> Iterator[Sequence[T]]:
        """Yield the pages of a list that is evidence only if it is complete.

        The caller must change nothing before it has read the last page. Each page has its own deadline, and the checks
        after the last page have another deadline. Otherwise a slow list would leave no time for the checks in any tick.
        If a page fails, if the time `longest` of the sweep is used up, or if the worker stops, the tick ends (law L8).
        """
        following = iter(pages)
        while True:
            try:
                page = next(following, None)
            except UpstreamError as error:
                raise Aborted(f"{what} could not be listed: {meaning_of(error)}") from error
            if page is None:
                return
            self.listed(len(page))
            yield page
            if not self.page():
                raise Aborted(f"the list of {what} is incomplete: {self.trouble}")

    def listed(self, many: int) -> None:
        """Add `many` to the number of listed objects. The budget is a share of this number."""
        self._counts.listed += many

    def doubt(self, suspicious: bool, why: str) -> None:
        """End the tick if the data that it read is suspicious, for example an empty list with open rows (law L8)."""
        if suspicious:
            raise Aborted(why)

    def abort(self, why: str) -> NoReturn:
        """End the tick, because the data that was read cannot be trusted."""
        raise Aborted(why)

    def incomplete(self, why: str) -> None:
        """Record why this tick leaves work to the next tick. The tick continues."""
        self.trouble = self.trouble or why

    # Continue

    def each(self, rows: Iterable[T], check: Callable[[T], object]) -> bool:
        """Check one row after the other until the time of the tick is used up or the worker stops.

        A failed check does not stop the checks of other rows (law L14). Returns True if all rows were checked; False if
        rows are left to the next tick.
        """
        row = None
        for row in rows:
            if not self.goes_on():
                return False
            self.attempt(check, row, row=_named(row))
        if row is None:
            self.mark_checked()  # an empty result is a check too
        return True

    def attempt(self, check: Callable[[T], object], subject: T, **what: Any) -> Exception | None:
        """Check one row and return the error of the check, or None.

        The error does not stop the checks of other rows (law L14). Errors that end the tick are raised: the lease is
        lost, the sweep was paused, or the database is unavailable for every row. An unexpected error is stored in
        `bug`.
        """
        try:
            check(subject)
        except Ended:
            raise
        except Exception as error:  # noqa: BLE001  raised at the end of the tick, where it is a bug
            self._failed += 1
            self.skipped(error, **what)
            if isinstance(error, DBAPIError | PoolTimeoutError):
                self._renew()  # raises if the database is unavailable, not only this row
            elif not isinstance(error, EXPECTED):
                self.bug = self.bug or error
            return error
        self._checked += 1
        return None

    def part(self, name: str, act: Callable[[], object]) -> None:
        """Run one part of a sweep.

        If the part fails, the other parts still run, and the tick fails after the last part.
        """
        error = self.attempt(lambda _: act(), None, part=name)
        self.bug = self.bug or error

    def mark_checked(self) -> None:
        """Count a completed check that belongs to no row."""
        self._checked += 1

    def skipped(self, error: Exception, **what: Any) -> None:
        """Count and log a row whose check or repair failed."""
        self._counts.skipped += 1
        log.warning("sweep.row_skipped", sweep=self._spec.name, error=_cause(error), **what)

    def goes_on(self, *, reserve: float = RESERVE) -> bool:
        """Return True if another row may begin; False if too little time is left or the worker is stopping.

        The lease is renewed if needed.

        `reserve`: seconds that must be left.
        """
        if remaining() < reserve or time.monotonic() > self._ends_at:
            self.incomplete("the time of the tick was used up")
            self._left = True
            return False
        if stopping():
            self.incomplete("the worker is stopping")
            self._left = True
            return False
        if time.monotonic() - self._renewed_at > RENEW_AFTER:
            self._renew()
        return True

    def page(self) -> bool:
        """Begin another page: renew the lease and set a new deadline, and return True.

        Return False if `longest` is used up or the worker is stopping.
        """
        if stopping() or time.monotonic() + RESERVE > self._ends_at:
            return self.goes_on(reserve=DEADLINE)
        self._turn()
        return True

    def _turn(self) -> None:
        self._renew()
        begin_page()

    def _renew(self) -> None:
        """Renew the lease. In a dry run, which has no lease, only verify that the database answers."""
        held = self.rt.transaction(sweep_runs.renew, self._spec.name, self._lease_no, lease=self._spec.lease, now=NOW)
        self._stand(held)
        self._renewed_at = time.monotonic()

    def _stand(self, standing: Standing) -> None:
        if self.dry:
            return
        if not standing.held:
            raise Overtaken
        if standing.paused:
            raise Paused


def _named(row: Any) -> Any:
    names = ("claim_id", "id", "guid", "name")
    return next((value for name in names if (value := getattr(row, name, None)) is not None), None)


def _cause(error: Exception) -> str:
    if isinstance(error, Contended):
        return "another session has locked the rows"
    return "other sessions changed the rows during each attempt" if isinstance(error, StartOver) else cause_of(error)

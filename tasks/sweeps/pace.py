"""Pace of a sweep's tick: whole lists, then one row after the other, while time, lease and switch allow."""

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
from models.sweeps import sweep_runs
from models.sweeps.sweep_runs import Counts, Standing
from ostler.clock import utcnow
from ostler.errors import NotInstalled, RateLimited, Retryable, Suspended, UpstreamError
from ostler.reasons import meaning_of
from tasks.claims.github import Lookups
from tasks.worker.base import DEADLINE, begin_page, remaining, stopping
from tasks.worker.runtime import Runtime
from tasks.worker.transactions import NOW

P = ParamSpec("P")
T = TypeVar("T")
log = structlog.get_logger(__name__)

RENEW_AFTER = 5.0
"""Seconds after which a lease is renewed before the next row."""

RESERVE = 3.0
"""Seconds of a tick that are left for the row that is checked."""

LONGEST = 300.0
"""Seconds of all pages, or scopes, of one tick together, in a sweep that goes through many."""

UNAVAILABLE = (Retryable, RateLimited, Suspended, NotInstalled)
"""Errors that the next question about the same installation would meet too."""

EXPECTED = (UpstreamError, StartOver, RedisError, KombuError, OperationalError, OSError)
"""What the check of a row may meet: an upstream, rows that kept moving, and a Redis that is away. What was committed
before a message could not be sent stays: `resume` sends it again (L6)."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """What the frame knows of a sweep.

    `quiet`: its ticks are so frequent that only those that repaired something, or went wrong, have a run row.
    `again`: a tick that finds another at work has the sweep run once more after that. `longest`: seconds of all pages
    of one tick together. `fenced`: a repair keeps others from taking over or pausing until it has committed. Without
    it a frozen repair stops no later tick; only for sweeps of which two ticks at once do no harm.
    """

    name: str
    quiet: bool
    again: bool
    lease: float
    longest: float
    fenced: bool = True


class Ended(Exception):
    """Ends a tick, not only the check one row."""


class Aborted(Ended):
    """Ends a tick in which nothing more may be changed, because what was read cannot be trusted (law L8)."""


class Overtaken(Ended):
    """Another tick has the lease."""


class Paused(Ended):
    """The sweep was paused while it ran."""


class Pace:
    """What a tick may still do: it ends when a list cannot be trusted, time is up, or its lease or switch is gone."""

    def __init__(self, rt: Runtime, spec: Sweep, *, lease_no: int, dry: bool) -> None:
        self.rt = rt
        self.dry = dry
        self.trouble: str | None = None
        self.lookups = Lookups()
        self.bug: Exception | None = None
        """An error that nobody expected at one row: it stopped no other, and is raised when the tick is through."""
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
        """Why the tick may not count as one that ran: all that it tried failed, or it came to no row in its time.

        None when it checked something, or when there was nothing to be checked.
        """
        if self._checked or self._counts.repaired:
            return None
        if self._left:
            return f"{self.trouble} before it had checked anything"
        if self._failed or (self._counts.skipped and not self._counts.listed):
            return "nothing could be checked"
        return None

    @property
    def lease_no(self) -> int:
        """The number that fences what this tick writes outside the ledger."""
        return self._lease_no

    # Reading

    def read(self, query: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a query finds with these arguments, as `Transactions.transaction` does."""
        return self.rt.transaction(query, *args, **kwargs)

    def whole(self, what: str, pages: Iterable[Sequence[T]]) -> Iterator[Sequence[T]]:
        """Yield each page of a list of which only the whole says anything; nothing may be changed before its end.

        Each page has a deadline of its own, as have the rows that follow, or a slow list would leave them no time,
        tick after tick. One that fails, or time that is up, ends the tick (law L8).
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

    def each(self, rows: Iterable[T], check: Callable[[T], object]) -> bool:
        """Look at one row after the other while there is time; one that fails stops no other (law L14).

        False when rows were left to the next tick.
        """
        row = None
        for row in rows:
            if not self.goes_on():
                return False
            self.attempt(check, row, row=_named(row))
        if row is None:
            self.mark_checked()  # and found that there is nothing
        return True

    def attempt(self, check: Callable[[T], object], subject: T, **what: Any) -> Exception | None:
        """Look at one row; return the error for which that failed, which stops no other row (law L14).

        What goes on is the end of the tick: its lease, its switch, and a database that is gone, which no other row
        would find there either. An error that nobody expected is kept in `bug`.
        """
        try:
            check(subject)
        except Ended:
            raise
        except Exception as error:  # noqa: BLE001  raised at the end of the tick, where it is a bug
            self._failed += 1
            self.skipped(error, **what)
            if isinstance(error, DBAPIError | PoolTimeoutError):
                self._renew()  # raises where it was not the row but the database
            elif not isinstance(error, EXPECTED):
                self.bug = self.bug or error
            return error
        self._checked += 1
        return None

    def part(self, name: str, act: Callable[[], object]) -> None:
        """Run one part of a sweep. One that fails stops no other; the tick fails when all of them have run."""
        error = self.attempt(lambda _: act(), None, part=name)
        self.bug = self.bug or error

    def mark_checked(self) -> None:
        """Count a check that was no row's: it came to something."""
        self._checked += 1

    def skipped(self, error: Exception, **what: Any) -> None:
        """Count and log a row that could not be checked or repaired."""
        self._counts.skipped += 1
        log.warning("sweep.row_skipped", sweep=self._spec.name, error=type(error).__name__, **what)

    def goes_on(self, *, reserve: float = RESERVE) -> bool:
        """Return whether there is time for another row, and keep the lease until then."""
        if remaining() < reserve or time.monotonic() > self._ends_at:
            self.incomplete("its time was up")
            self._left = True
            return False
        if stopping():
            self.incomplete("its process stops")
            self._left = True
            return False
        if time.monotonic() - self._renewed_at > RENEW_AFTER:
            self._renew()
        return True

    def page(self) -> bool:
        """Begin another page: renew the lease, and give it a deadline of its own while `longest` lasts."""
        if stopping() or time.monotonic() + RESERVE > self._ends_at:
            return self.goes_on(reserve=DEADLINE)
        self._turn()
        return True

    def _turn(self) -> None:
        self._renew()
        begin_page()

    def _renew(self) -> None:
        """Keep the lease; a dry run has none, and only sees that the database is there."""
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
    return next((value for name in ("claim_id", "id", "guid") if (value := getattr(row, name, None)) is not None), None)

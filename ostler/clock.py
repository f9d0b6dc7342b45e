"""Clocks of a process, collected in one module so that tests can replace them.

`utcnow` returns this machine's time, corrected by the measured offset between this machine and Postgres. Processes on
machines with different clocks therefore agree on when something expires. `models.db.engine` measures the offset at each
new connection and every ten seconds.

For tests and chaos runs, the developer variable `OSTLER_CLOCK_OFFSET` shifts the time that this module reads from the
machine's clock. The variable affects one process only. Celery and other libraries read the machine's clock directly, so
the variable does not shift their times.

As a rule, a function that compares times takes `now` as an argument, and its outermost caller uses this module. Code
uses `machine_now` for a time that a third system compares with its own clock. An example is the `iat` of a JWT for
GitHub.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ostler.errors import ConfigurationError
from ostler.variables import CLOCK_OFFSET

MEASURE_EVERY = 10.0
"""Seconds between two measurements of the offset."""

JUMP = 2.0
"""Maximum difference in seconds between the time that passed on Postgres and the time that passed on this machine.

A larger difference between two measurements counts as a jump of the clock of Postgres. The clock jumps, for example, at
a failover of Postgres.
"""

UNSTEADY_FOR = 120.0
"""Seconds after a jump of the clock of Postgres during which the ages of rows are not trusted.

Every poll, heartbeat and lease is renewed within this time.
"""

LARGEST_OFFSET = 86400.0
"""Largest number of seconds by which `OSTLER_CLOCK_OFFSET` may move a clock in either direction."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of the clock of Postgres.

    `theirs` is the time that Postgres returned. `asked` is the start of the query, and `answered` is the end of the
    query. `asked` and `answered` are seconds of a monotonic clock.
    """

    theirs: datetime
    asked: float
    answered: float


def _since_boot() -> float:
    """Return the seconds since boot, including the time during which the machine was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Clock:
    """The corrected clock of one process.

    `machine` returns the time of day of the machine. `monotonic` returns the seconds of a clock that cannot be set.
    """

    def __init__(
        self,
        machine: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = _since_boot,
    ) -> None:
        self.machine = machine
        self.monotonic = monotonic
        self.offset = timedelta()
        self._last: Reading | None = None
        self._jump = 0.0
        self._jumped_at: float | None = None
        self._is_new = False
        self._lock = threading.Lock()

    def now(self) -> datetime:
        """Return the current time by the clock of Postgres.

        Before the first measurement, return the machine's own time.
        """
        return self.machine() + self.offset

    def is_due(self) -> bool:
        """Return True if the offset must be measured again; False if the last measurement is still valid.

        A measurement is due at the first use, `MEASURE_EVERY` seconds after the last measurement, after a new
        connection, and after the machine's clock was set.
        """
        last = self._last
        if last is None:
            return True
        passed = self.monotonic() - last.answered
        shown = (self.machine() + self.offset - last.theirs).total_seconds()
        slow = last.answered - last.asked
        return self._is_new or passed >= MEASURE_EVERY or abs(shown - passed) > JUMP + slow

    def connected(self) -> None:
        """Request that the offset of Postgres's clock is measured at the next use of a connection.

        A new connection might lead to another server.
        """
        self._is_new = True

    def measure(self, ask: Callable[[], datetime]) -> None:
        """Read the clock of Postgres with `ask` and correct the offset.

        The start and the end of the query give a lower and an upper bound of the offset. If the present offset is
        outside these bounds, the method sets the offset to the nearer bound. Every exception of `ask` is passed on.
        """
        self._is_new = False
        asked, before = self.monotonic(), self.machine()
        theirs = ask()
        after, answered = self.machine(), self.monotonic()
        with self._lock:
            last = self._last
            if last is not None and asked < last.answered:
                return  # another thread completed a newer measurement
            self._last = Reading(theirs, asked, answered)
            # Postgres read its clock between `before` and `after`, so the true offset is within these two bounds.
            self.offset = min(max(self.offset, theirs - after), theirs - before)
            if last is None:
                return
            shown = (theirs - last.theirs).total_seconds()
            # The time between the two readings of Postgres is within these bounds, even if its answers were slow.
            least, most = asked - last.answered, answered - last.asked
            if shown > most + JUMP or shown < least - JUMP:
                self._jump, self._jumped_at = shown - (most if shown > most else least), answered

    def leeway(self) -> float:
        """Return the seconds by which ages are too high because the clock of Postgres jumped forward.

        Only the ages of rows from before the jump are too high. The value is 0 if the clock of Postgres did not jump
        forward within the last `UNSTEADY_FOR` seconds.
        """
        return max(self._jump, 0.0) if self.is_unsteady() else 0.0

    def is_unsteady(self) -> bool:
        """Return whether the clock of Postgres jumped within the last `UNSTEADY_FOR` seconds."""
        return self._jumped_at is not None and self.monotonic() - self._jumped_at < UNSTEADY_FOR

    def skew(self) -> float:
        """Return the seconds by which the machine's clock is ahead of the clock of Postgres; negative if behind."""
        return -self.offset.total_seconds()


process = Clock()
"""The corrected clock of this process."""


def offset_of(environment: Mapping[str, str]) -> float:
    """Return the seconds by which `OSTLER_CLOCK_OFFSET` moves the machine's clock as this process reads it.

    Return 0 if the variable is not set or is empty. Raises `ConfigurationError` for any other value that is not a
    number of seconds.
    """
    written = environment.get(CLOCK_OFFSET, "").strip()
    try:
        offset = float(written or 0)
    except ValueError:
        offset = float("nan")
    if not abs(offset) <= LARGEST_OFFSET:  # true for NaN too
        raise ConfigurationError(
            f"{CLOCK_OFFSET}: found {written!r}; must be a number of seconds from -{LARGEST_OFFSET:.0f} to "
            f"{LARGEST_OFFSET:.0f}, and is only for tests"
        )
    return offset


def move(seconds: float) -> None:
    """Move the machine's clock as this process reads it. A positive number of seconds puts the clock ahead."""
    moved_by = timedelta(seconds=seconds)
    process.machine = lambda: datetime.now(UTC) + moved_by


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Sleep, clock and random numbers of a retry layer. Times are in seconds. Tests replace the functions."""

    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    roll: Callable[[], float] = random.random


def utcnow() -> datetime:
    """Return the current time by the clock of Postgres, as an aware datetime in UTC."""
    return process.now()


def machine_now() -> datetime:
    """Return the current time by this machine's own clock, as an aware datetime in UTC."""
    return process.machine()

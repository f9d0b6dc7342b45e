"""The clocks, in one place so that tests can bring their own.

`utcnow` is this machine's clock, corrected by its measured offset to the clock of Postgres, so that processes on
machines with different clocks agree on expiry. `models.db.engine` measures the offset at a new connection and every ten
seconds. Functions that compare times take `now`; only the outermost callers use this module. A time that is compared
with the clock of another system (the `iat` of a JWT for GitHub) uses `machine_now`.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

MEASURE_EVERY = 10.0
"""Seconds after which the offset is measured again."""

JUMP = 2.0
"""Seconds that the clock of Postgres may gain against the time that passed here. More is a jump, as at a failover."""

UNSTEADY_FOR = 120.0
"""Seconds after a jump during which ages are not trusted: by then every poll, beat and lease is renewed."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The clock of Postgres, which was read between `asked` and `answered`: seconds of a clock that nobody sets."""

    theirs: datetime
    asked: float
    answered: float


def _since_boot() -> float:
    """Return seconds that also pass while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Clock:
    """The correction of one process. `machine` and `monotonic` are the two clocks of the machine."""

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
        """Return the current time by the clock of Postgres, as far as it is known."""
        return self.machine() + self.offset

    def is_due(self) -> bool:
        """Return whether the offset has to be measured: it is old, or the machine's clock was set since."""
        last = self._last
        if last is None:
            return True
        passed = self.monotonic() - last.answered
        shown = (self.machine() + self.offset - last.theirs).total_seconds()
        slow = last.answered - last.asked
        return self._is_new or passed >= MEASURE_EVERY or abs(shown - passed) > JUMP + slow

    def connected(self) -> None:
        """Have the offset measured at the next use of a connection: another server may be at its end."""
        self._is_new = True

    def measure(self, ask: Callable[[], datetime]) -> None:
        """Ask Postgres for its time, and correct ours by no more than the round trip leaves no doubt of.

        Raises what `ask` raises.
        """
        self._is_new = False
        asked, before = self.monotonic(), self.machine()
        theirs = ask()
        after, answered = self.machine(), self.monotonic()
        with self._lock:
            last = self._last
            if last is not None and asked < last.answered:
                return  # another thread has measured meanwhile
            self._last = Reading(theirs, asked, answered)
            # Their clock was read at some time between `before` and `after`: an offset within these bounds fits.
            self.offset = min(max(self.offset, theirs - after), theirs - before)
            if last is None:
                return
            shown = (theirs - last.theirs).total_seconds()
            # The time between the two readings of their clock is within these bounds, however slow the answers were.
            least, most = asked - last.answered, answered - last.asked
            if shown > most + JUMP or shown < least - JUMP:
                self._jump, self._jumped_at = shown - (most if shown > most else least), answered

    def leeway(self) -> float:
        """Return the seconds by which every age is too high after a jump of the clock of Postgres; mostly 0.

        Read from rows that were written before the jump. It lasts for `UNSTEADY_FOR`.
        """
        return max(self._jump, 0.0) if self.is_unsteady() else 0.0

    def is_unsteady(self) -> bool:
        """Return whether the clock of Postgres jumped a short while ago."""
        return self._jumped_at is not None and self.monotonic() - self._jumped_at < UNSTEADY_FOR

    def skew(self) -> float:
        """Return the seconds by which the machine's clock is ahead of that of Postgres; negative when it is behind."""
        return -self.offset.total_seconds()


process = Clock()
"""The clock of this process."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Sleep, clock and randomness of a retry layer, in seconds; tests bring their own."""

    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    roll: Callable[[], float] = random.random


def utcnow() -> datetime:
    """Return the current time by the clock of Postgres, aware, in UTC."""
    return process.now()


def machine_now() -> datetime:
    """Return the current time by this machine's own clock, aware, in UTC."""
    return process.machine()

"""The watchdog of the sweeps. It finds the sweeps that have missed three periods.

The cause might be beat, Redis or the workers. The watchdog reads only the rows that the sweeps wrote, so it works as
long as web and Postgres work. The body of `/readyz` and the metrics show the late sweeps. A late sweep never makes web
unready, because a restart of web cannot repair a sweep.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from models.browse.sweeps import list_sweeps
from models.db import epochs
from ostler.clock import utcnow
from ostler.logging import get_logger
from rules.sweeps.limits import is_late, switched_off

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SweepStanding:
    """The state of one sweep. `lag` is the number of seconds since the last success of the sweep.

    If the sweep never succeeded, `lag` begins at the start of the watchdog or at the detection of a restore, whichever
    is later.
    """

    name: str
    lag: float
    late: bool
    paused: bool


class Watchdog:
    """Finds late sweeps. `periods` has the period of each sweep in seconds, `off` the value of `OSTLER_SWEEPS_PAUSED`.

    A sweep can be late only after this process has run for three periods of the sweep. After a restore of Postgres,
    this time is counted from the detection of the restore, because the restored rows are old.
    """

    def __init__(
        self, periods: Mapping[str, float], *, off: Collection[str] = (), since: datetime | None = None
    ) -> None:
        self._periods = periods
        self._off = off
        self._since = since if since is not None else utcnow()
        self._reported: frozenset[str] = frozenset()

    def check(self, db: Connection) -> Sequence[SweepStanding]:
        """Return the state of every sweep.

        Write a log line for each sweep that has become late, and for each late sweep that is on time again.
        """
        now = utcnow()
        lost = epochs.lost(db)
        since = self._since if lost is None else max(self._since, lost.until)
        found = []
        for each in list_sweeps(db, now=now):
            last = each.succeeded_at if each.succeeded_at is not None else since
            paused = each.paused_at is not None or switched_off(each.name, by_setting=self._off)
            late = is_late(last=last, since=since, period=self._periods[each.name], paused=paused, now=now)
            found.append(SweepStanding(each.name, max(0.0, (now - last).total_seconds()), late, paused))
        late_now = frozenset(each.name for each in found if each.late)
        for name in sorted(late_now - self._reported):
            log.error("sweep.late", sweep=name)
        for name in sorted(self._reported - late_now):
            log.info("sweep.on_time_again", sweep=name)
        self._reported = late_now
        return found

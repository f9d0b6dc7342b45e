"""The watchdog of the sweeps: which of them missed three periods, whatever the cause (beat, Redis, the workers).

It reads what the sweeps themselves wrote last, so it works wherever web and Postgres do. It reports, in `/readyz`'s
body and as metrics, and never makes web unready: a restart of web cures no sweep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from models.browse.sweeps import list_sweeps
from models.db import epochs
from ostler.clock import utcnow
from ostler.logging import get_logger
from rules.sweeps.reaping import is_late

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SweepStanding:
    """One sweep: seconds since its last success (or since somebody watches, when there was none)."""

    name: str
    lag: float
    late: bool
    paused: bool


class Watchdog:
    """Looks at the sweeps; `periods` are theirs in seconds.

    Lateness counts from the start of this process, and from the detection of restored rows.
    """

    def __init__(self, periods: Mapping[str, float], *, since: datetime | None = None) -> None:
        self._periods = periods
        self._since = since if since is not None else utcnow()
        self._told: frozenset[str] = frozenset()

    def check(self, db: Connection) -> Sequence[SweepStanding]:
        """Return every sweep, and log which have become late or are late no more."""
        now = utcnow()
        lost = epochs.lost(db)
        since = self._since if lost is None else max(self._since, lost.until)
        found = []
        for each in list_sweeps(db, now=now):
            last = each.succeeded_at if each.succeeded_at is not None else since
            paused = each.paused_at is not None
            late = is_late(last=last, since=since, period=self._periods[each.name], paused=paused, now=now)
            found.append(SweepStanding(each.name, max(0.0, (now - last).total_seconds()), late, paused))
        late_now = frozenset(each.name for each in found if each.late)
        for name in sorted(late_now - self._told):
            log.error("sweep.late", sweep=name)
        for name in sorted(self._told - late_now):
            log.info("sweep.on_time_again", sweep=name)
        self._told = late_now
        return found

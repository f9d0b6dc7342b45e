"""Waits of a chosen span, as `ostler stats` prints them: the page *Waits* of the dashboard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

from models.browse.waits import By, StillWaiting, Waits, still_waiting, waits
from web.api.database import Database
from web.api.shared import Shared

SHARED_FOR = timedelta(minutes=1)
"""Maximum age of the waits of a span that are shown to other readers of the same accounts."""


class Span(StrEnum):
    """Span of a page. Days are days in UTC."""

    HOUR = "last hour"
    TODAY = "today"
    YESTERDAY = "yesterday"
    WEEK = "last 7 days"

    def limits(self, now: datetime) -> tuple[datetime, datetime]:
        """Return the begin and the end of the span."""
        day = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        match self:
            case Span.HOUR:
                return now - timedelta(hours=1), now
            case Span.TODAY:
                return day, now
            case Span.YESTERDAY:
                return day - timedelta(days=1), day
            case Span.WEEK:
                return day - timedelta(days=7), now


class WaitsOf(BaseModel):
    """The span of the waits, and the groups of jobs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    since: Span = Field(default=Span.YESTERDAY)
    by: By = Field(default=By.POOL)


class WaitsOfSpans:
    """Waits of spans. The waits of a span are read once for all readers of the same accounts, during `SHARED_FOR`."""

    def __init__(self, database: Callable[[], Database]) -> None:
        self._database = database
        self._reads: Shared[tuple[Sequence[Waits], Sequence[StillWaiting]]] = Shared()

    async def read(
        self, wanted: WaitsOf, accounts: frozenset[int] | None
    ) -> tuple[tuple[Sequence[Waits], Sequence[StillWaiting]], datetime]:
        """Return the waits, the jobs that have not begun, and the time of the read.

        Raises Refusal (503) if too many slow reads wait.
        """

        async def read(now: datetime) -> tuple[Sequence[Waits], Sequence[StillWaiting]]:
            since, until = wanted.since.limits(now)
            return await self._database().run_slow(
                lambda db: (
                    waits(db, since=since, until=until, by=wanted.by, now=now, accounts=accounts),
                    still_waiting(db, until=until, by=wanted.by, accounts=accounts),
                )
            )

        return await self._reads.get((wanted, accounts), read, max_age=SHARED_FOR)

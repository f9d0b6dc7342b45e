"""`/v1/usage`: the use of runners in a month, and the starts of its jobs against the targets of their pools."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from models.browse import usage
from models.browse.usage import month_of, told, usage_of
from ostler.clock import utcnow
from rules.waiting.blame import Blame
from web.api.database import Database
from web.api.limited import Visible
from web.api.shared import Shared

SHARED_FOR = timedelta(minutes=5)
"""Maximum age of the usage that is shown to other readers of the same accounts. Its queries read a whole month."""


class Month(BaseModel):
    """The month of a usage."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    month: str | None = Field(
        default=None,
        pattern=r"^20[0-9]{2}-(0[1-9]|1[0-2])$",
        description="month in UTC; by default the present month",
        examples=["2026-11"],
    )


class UsedByAccount(BaseModel):
    """Use of runners by one account, or the idle time of all pools."""

    account: str | None = Field(description="login; null for the idle time of warm Pods")
    jobs: int = Field(description="jobs that ran in the span, completely or in part")
    runner_minutes: float
    idle_minutes: float = Field(description="time of warm Pods without a job")
    vcpu_minutes: float = Field(description="both times multiplied by the vCPU of the Pod: multiply it by your price")


class Used(UsedByAccount):
    """Use of the runners of a pool by one account and repository, or the idle time of the pool."""

    pool: str | None = Field(description="null if the job had no pool")
    repository: str | None


class Starts(BaseModel):
    """Starts of jobs of one pool with a target (`startTarget`)."""

    pool: str
    target_seconds: float
    jobs: int = Field(description="jobs that began in the span")
    late: int = Field(description="jobs that began later than the target after they were queued")
    blamed: dict[Blame, int] = Field(description="late jobs by cause, at most the latest 5,000 of all pools")


class Usage(BaseModel):
    """Use of runners in a month."""

    since_at: datetime
    until_at: datetime = Field(description="end of the month, or the present time")
    rows_since_at: datetime | None = Field(
        description="end of the oldest stored job that the token may see: work before this time might be missing; null "
        "without a stored job"
    )
    accounts: list[UsedByAccount] = Field(description="sums of `items` by account")
    items: list[Used] = Field(description="idle time comes last, and is left out for a limited token")
    starts: list[Starts]


class Usages:
    """Usages of months. A usage is read once for all readers of the same accounts, during `SHARED_FOR`."""

    def __init__(self, database: Callable[[], Database]) -> None:
        self._database = database
        self._reads: Shared[usage.Usage] = Shared()

    async def read(self, month: str | None, accounts: frozenset[int] | None) -> usage.Usage:
        """Return the usage of a month such as 2026-11, or of the present month."""
        since, until = month_of(month, now=utcnow())

        async def read(now: datetime) -> usage.Usage:
            return await self._database().run_slow(
                lambda db: usage_of(db, since=since, until=until, now=now, accounts=accounts)
            )

        found, _ = await self._reads.get((since, accounts), read, max_age=SHARED_FOR)
        return found


def router(database: Callable[[], Database]) -> APIRouter:
    """Return the route of the usage."""
    routes, usages = APIRouter(prefix="/v1/usage", tags=["usage"]), Usages(database)

    @routes.get("", summary="Show the use of runners in a month", response_model=Usage)
    async def read_usage(query: Annotated[Month, Query()], accounts: Visible) -> dict[str, Any]:
        return told(await usages.read(query.month, accounts))

    return routes

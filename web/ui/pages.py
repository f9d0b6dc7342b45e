"""Pages of the dashboard: the overview, the jobs, one job, and the repairs.

Each page reads its rows in one transaction. The page is made after the transaction has ended (law L15).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import urlencode

from pydantic import BaseModel
from sqlalchemy import Connection, Row
from starlette.requests import Request
from starlette.responses import Response

from models.browse.accounts import AccountFilter, list_accounts
from models.browse.api_tokens import Holder
from models.browse.fleet import AccountLine, PoolLine, account_lines, pool_lines
from models.browse.health import obstacles
from models.browse.jobs import JobFilter, job_story, list_jobs
from models.browse.page import LARGEST, Page
from models.browse.pools import PoolFilter, list_pools
from models.browse.repairs import RepairFilter, list_repairs
from models.browse.waits import By, Waits, waits
from models.claims.pod_ends import end_of
from ostler.clock import utcnow
from ostler.settings import Settings
from rules.claims.machines import JobState
from rules.claims.pod_ends import describe
from rules.waiting import explain
from web.api.cursors import Cursors
from web.api.database import Database
from web.api.jobs import Jobs
from web.api.problems import Refusal
from web.api.schema import BIGGEST_ID
from web.api.sweeps import Repairs
from web.ui import drawings
from web.ui.rendering import HOLDER, REFRESH, page

WAITS_OF = timedelta(hours=1)
MOST = 200
"""Number of pools and of accounts that the overview shows. Each open page renders them every 2 seconds."""

SHARED_FOR = timedelta(seconds=1)
"""Maximum age of an overview that is shown to other readers of the same accounts."""

Query = TypeVar("Query", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Attention:
    """One line of the list of problems. `href` leads to more about it, or is None."""

    title: str
    detail: str
    href: str | None = None


@dataclass(frozen=True, slots=True)
class Overview:
    """The rows of the overview. `pools` is None if the reader sees only some accounts."""

    pools: Sequence[PoolLine] | None
    accounts: Sequence[AccountLine]
    waits: Sequence[Waits]
    attention: Sequence[Attention]


class Pages:
    """The pages that need a session. The scope of a request contains the holder of the session's token."""

    def __init__(self, settings: Settings, *, database: Callable[[], Database]) -> None:
        self._settings = settings
        self._database = database
        self._cursors = Cursors(settings.encryption_keys)
        self._overviews: dict[frozenset[int] | None, tuple[asyncio.Future[Overview], datetime]] = {}

    async def overview(self, request: Request) -> Response:
        """Answer with the state of the fleet, or with the state of the reader's accounts."""
        found, now = await self._recent_overview(_holder(request))
        bars = {
            each.id: drawings.bar(each.pods, replicas=each.replicas) for each in (found.pools or ())[:MOST] if each.pods
        }
        return page(request, "overview.html", found=found, bars=bars, most=MOST, now=now)

    async def _recent_overview(self, holder: Holder) -> tuple[Overview, datetime]:
        """Return the overview of the holder of a token, and the time at which it was read.

        Readers of the same accounts share one overview during `SHARED_FOR`, so that many open pages cost no more than
        a few. The session of each of them was verified before.
        """
        now = utcnow()
        self._overviews = {
            key: (task, at)
            for key, (task, at) in self._overviews.items()
            if at > now - SHARED_FOR or not task.done()  # while Postgres is slow, no second read begins
        }
        if holder.accounts not in self._overviews:
            reading = self._database().run(lambda db: read_overview(db, holder, now=now))
            self._overviews[holder.accounts] = asyncio.ensure_future(reading), now
        task, at = self._overviews[holder.accounts]
        return await asyncio.shield(task), at  # a reader that goes away must not cancel the read of the others

    async def jobs(self, request: Request) -> Response:
        """Answer with one page of jobs, newest first."""
        query, holder, now = _query(request, Jobs), _holder(request), utcnow()
        listing = query.identity()
        after = self._cursors.read(listing, query.cursor)
        wanted = JobFilter(**query.filters(), accounts=holder.accounts)
        refreshes = "hx-request" in request.headers  # a refresh does not replace the form of the filters

        def body(db: Connection) -> tuple[Page, Sequence[Row[Any]], Sequence[Row[Any]]]:
            jobs = list_jobs(db, wanted, after=after, limit=query.limit)
            if refreshes:
                return jobs, (), ()
            accounts = list_accounts(db, AccountFilter(accounts=holder.accounts), limit=LARGEST)
            # A limited token does not show which pools serve other accounts.
            whole = holder.accounts is None
            pools = list_pools(db, PoolFilter(deleted=False), limit=LARGEST).rows if whole else ()
            return jobs, accounts.page.rows, pools

        jobs, accounts, pools = await self._database().run(body)
        return page(
            request,
            "jobs.html",
            query=query,
            jobs=jobs.rows,
            accounts=accounts,
            pools=pools,
            states=list(JobState),
            next_page=_next(request, self._cursors.make(listing, jobs.next_id)),
            now=now,
        )

    async def job(self, request: Request) -> Response:
        """Answer with one job: its state, the reason, its time axis, its claims and its events."""
        given, holder, now = request.path_params["job_id"], _holder(request), utcnow()
        job_id = int(given) if given.isascii() and given.isdigit() and len(given) <= len(str(BIGGEST_ID)) else 0
        story = None
        if 1 <= job_id <= BIGGEST_ID:
            timings = self._settings.timings
            story = await self._database().run(
                lambda db: job_story(db, job_id, timings=timings, now=now, accounts=holder.accounts)
            )
        if story is None:
            raise Refusal(
                HTTPStatus.NOT_FOUND,
                "not-found",
                "There is no job with this id",
                "Ostler never received the job, deleted its row after the retention time, or hides it from your token.",
            )
        return page(
            request,
            "job.html",
            job=story.job,
            why=explain(story.facts),
            ahead=story.facts.ahead,
            claims=[(each, describe(end_of(each))) for each in story.claims],
            events=story.events,
            axis=drawings.axis(story.job, story.claims, story.events, now=now),
            github=self._settings.github_url,
            now=now,
        )

    async def repairs(self, request: Request) -> Response:
        """Answer with one page of repairs, newest first."""
        _need_fleet(_holder(request))
        query = _query(request, Repairs)
        listing = query.identity()
        after = self._cursors.read(listing, query.cursor)
        wanted = RepairFilter(**query.filters())
        repairs = await self._database().run(lambda db: list_repairs(db, wanted, after=after, limit=query.limit))
        return page(
            request,
            "repairs.html",
            filtered=bool(query.model_dump(exclude={"limit"}, exclude_none=True)),
            repairs=repairs.rows,
            next_page=_next(request, self._cursors.make(listing, repairs.next_id)),
        )


def read_overview(db: Connection, holder: Holder, *, now: datetime) -> Overview:
    """Return the rows of the overview that the holder of a token may see."""
    seen = holder.accounts
    accounts = account_lines(db, accounts=seen)
    since = now - WAITS_OF
    groups = By.POOL if seen is None else By.ACCOUNT
    found_waits = waits(db, since=since, until=now, by=groups, now=now, accounts=seen)
    pools = pool_lines(db) if seen is None else None
    found = []
    if pools is not None:
        found += [Attention(each.effect[:1].upper() + each.effect[1:], each.cause) for each in obstacles(db, now=now)]
        found += _of_pools(pools, now=now)
    if held := sum(each.held for each in accounts):
        what = "1 queued job is held" if held == 1 else f"{held:,} queued jobs are held"
        found.append(
            Attention(what, "Ostler matches no held job. The page of a job says why it is held.", "/ui/jobs?held=true")
        )
    return Overview(pools, accounts, found_waits, found)


def _of_pools(pools: Sequence[PoolLine], *, now: datetime) -> Sequence[Attention]:
    found = [
        Attention(f"Pool {each.name} is degraded", each.problem, f"#pool-{each.id}")
        for each in pools
        if each.problem is not None
    ]
    found += [
        Attention(
            f"The numbers of pool {each.name} are old",
            "Its Pods were never counted."
            if each.counted_at is None
            else f"Its Pods were last counted at {each.counted_at:%Y-%m-%d %H:%M:%S} UTC.",
            f"#pool-{each.id}",
        )
        for each in pools
        if each.is_old(now=now)
    ]
    return found


def _holder(request: Request) -> Holder:
    holder: Holder = request.scope[HOLDER]
    return holder


def _need_fleet(holder: Holder) -> None:
    """Raise Refusal (403) if the token of the session is limited to some accounts."""
    if holder.accounts is not None:
        raise Refusal(
            HTTPStatus.FORBIDDEN,
            "limited-token",
            "Your token does not allow this page",
            "This page shows the whole fleet, and your token is limited to some accounts. Log in with a token that was "
            "created without `--account`.",
        )


def _query(request: Request, model: type[Query]) -> Query:
    """Return the filters of a list. A filter with an empty value is not set, because a form sends every field."""
    given = {name: value for name, value in request.query_params.items() if value and name != REFRESH}
    return model.model_validate(given)


def _next(request: Request, cursor: str | None) -> str | None:
    """Return the address of the next page of a list, or None on the last page."""
    if cursor is None:
        return None
    kept = {name: value for name, value in request.query_params.items() if value and name != "cursor"}
    return f"?{urlencode({**kept, 'cursor': cursor})}"

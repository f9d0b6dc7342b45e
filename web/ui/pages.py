"""Pages of the dashboard: the overview, lists of jobs, repairs and sweeps, and one job, Pod, pool or account.

Each page reads its rows in one transaction. The page is made after the transaction has ended (law L15). Readers of the
same accounts share the stream of a page, so many open pages cost little more than one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any, Literal, TypeVar
from urllib.parse import urlencode

from pydantic import BaseModel
from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response

from beat_schedule import periods
from models.api_tokens import Holder
from models.browse import diagnoses
from models.browse.accounts import AccountStory, account_choices, account_story
from models.browse.changes import ChangeFilter, list_changes
from models.browse.health import Obstacle, obstacles
from models.browse.jobs import JobFilter, job_story, list_jobs
from models.browse.nodes import read_nodes
from models.browse.page import LARGEST, Choice, Page
from models.browse.pods import PodFilter, PodStory, list_pods, pod_story
from models.browse.pods import shown as pods_shown
from models.browse.pools import PoolStory, pool_choices, pool_story, told
from models.browse.repairs import DailyChanges, RepairCount, RepairFilter, count_repairs, list_repairs, summary
from models.browse.sweeps import SweepSeen, list_sweeps
from models.browse.versions import PoolVersions, pool_versions
from models.browse.waits import By, Waits, expected, waits
from models.claims.pod_ends import end_of
from ostler.clock import utcnow
from ostler.settings import Settings
from ostler.task_names import SWEEPS
from rules.changes import ChangeKind, in_words
from rules.claims.machines import JobState
from rules.claims.pod_ends import describe
from rules.pools.pod_states import PodState
from rules.sweeps.limits import Repaired
from rules.waiting.blame import Blame
from rules.waiting.steps import Diagnosis, Expected
from web.api.changes import Changes
from web.api.cursors import Cursors
from web.api.database import Database
from web.api.jobs import Jobs
from web.api.pods import Pods
from web.api.problems import Refusal
from web.api.shared import Shared
from web.api.sweeps import Repairs
from web.api.usage import Month, Usages
from web.ui import drawings
from web.ui.overview import MOST, WAITS_OF, Overview, OverviewWaits, Schedule, read_overview, read_waits
from web.ui.rendering import HOLDER, REFRESH, Shown, address, full_page, live_part, number, wants_stream
from web.ui.sessions import SESSION
from web.ui.streams import MEDIA_TYPE, OVER, Content, Streams
from web.ui.waits import Span, WaitsOf, WaitsOfSpans

SHARED_FOR = timedelta(seconds=1)
"""Maximum age of an overview that is shown to other readers of the same accounts."""

WAITS_SHARED_FOR = timedelta(seconds=15)
"""Maximum age of the waits of an overview. They change slowly, and are read from all jobs of the last hour."""

Query = TypeVar("Query", bound=BaseModel)
Show = Callable[[Request], Awaitable[Shown]]
"""A page: the function that reads what it shows."""


class RepairsSeen(Repairs):
    """Filters of the page of repairs: those of the API, the first day (UTC), and deletions."""

    day: Literal["today", "yesterday"] | None = None
    kills: bool | None = None

    def wanted(self, now: datetime) -> RepairFilter:
        """Return the filter of the rows."""
        filters = self.filters()
        day = filters.pop("day")
        return RepairFilter(**filters if day is None else filters | {"since": Span(day).limits(now)[0]})


FULL_AGAIN_IN = 10
"""Seconds after which a page is loaded again if the process has no room for its stream."""


class Pages:
    """The pages that need a session. The scope of a request contains the holder of the session's token."""

    def __init__(self, settings: Settings, *, database: Callable[[], Database], streams: Callable[[], Streams]) -> None:
        self._settings = settings
        self._database = database
        self._streams = streams
        self._cursors = Cursors(settings.encryption_keys)
        self._overviews: Shared[Overview] = Shared()
        self._waits: Shared[OverviewWaits] = Shared()
        self._schedule = Schedule(periods(settings.timings), settings.sweeps_paused)
        self._usages = Usages(database)
        self._spans = WaitsOfSpans(database)

    def route(self, show: Show, *, live: bool = True) -> Callable[[Request], Awaitable[Response]]:
        """Return the function that answers requests for a page, and for its stream.

        The session of each reader was verified before. `live` is False if the page never changes while it is open. Its
        rows are then not read for a stream.
        """

        async def answer(request: Request) -> Response:
            streams = self._streams()
            is_full = streams.is_full(request.scope[SESSION])
            if not wants_stream(request):
                return await full_page(request, await show(request), again=FULL_AGAIN_IN if is_full else None)
            if not live:
                return Response(OVER, media_type=MEDIA_TYPE)
            if is_full:
                return Response(status_code=HTTPStatus.SERVICE_UNAVAILABLE)
            kept = Request(dict(request.scope))  # without the connection of the first reader, who might go away

            async def read() -> Content:
                shown = await show(kept)
                return Content(await live_part(kept, shown), shown.now, shown.live)

            return streams.open((_holder(request).accounts, address(request)), request.scope[SESSION], read=read)

        return answer

    async def overview(self, request: Request) -> Shown:
        """Answer with the state of the fleet, or with the state of the reader's accounts.

        Readers of the same accounts share the reads. The session of each of them was verified before.
        """
        holder, run = _holder(request), self._database().run
        found, now = await self._overviews.get(
            holder.accounts,
            lambda at: run(lambda db: read_overview(db, holder, self._schedule, now=at)),
            max_age=SHARED_FOR,
        )
        waited, _ = await self._waits.get(
            holder.accounts,
            lambda at: run(lambda db: read_waits(db, holder, self._settings.timings, now=at)),
            max_age=WAITS_SHARED_FOR,
        )
        curve = drawings.Curve(waited.until - WAITS_OF, waited.until, waited.ages)
        attention = [*found.attention, *waited.attention]
        values = {
            "found": found,
            "attention": attention,
            "reasons": waited.reasons,
            "waits": waited.groups,
            "curve": curve,
            "most": MOST,
        }
        return Shown("overview.html", now, values)

    async def jobs(self, request: Request) -> Shown:
        """Answer with one page of jobs, newest first."""
        query, holder, now = _query(request, Jobs), _holder(request), utcnow()
        listing = query.identity()
        after = self._cursors.read(listing, query.cursor)
        wanted = JobFilter(**query.filters(), accounts=holder.accounts)
        streamed = wants_stream(request)  # a stream does not replace the form of the filters

        def body(db: Connection) -> tuple[Page, Sequence[Choice], Sequence[Choice]]:
            jobs = list_jobs(db, wanted, order=query.sort, after=after, limit=query.limit)
            if streamed:
                return jobs, (), ()
            accounts = account_choices(db, accounts=holder.accounts, limit=LARGEST)
            # A limited token does not show which pools serve other accounts.
            whole = holder.accounts is None
            return jobs, accounts, pool_choices(db, limit=LARGEST) if whole else ()

        jobs, accounts, pools = await self._database().run(body)
        values = {
            "query": query,
            "jobs": jobs.rows,
            "accounts": accounts,
            "pools": pools,
            "states": list(JobState),
            "next_page": _next(request, self._cursors.make(listing, jobs.next_id)),
        }
        return Shown("jobs.html", now, values)

    async def job(self, request: Request) -> Shown:
        """Answer with one job: its state, the reason, its time axis, its claims and its events."""
        job_id, holder, now = number(request.path_params["job_id"]), _holder(request), utcnow()
        timings = self._settings.timings
        story = (
            await self._database().run(
                lambda db: job_story(db, job_id, timings=timings, now=now, accounts=holder.accounts)
            )
            if job_id
            else None
        )
        if story is None:
            raise _missing("job")
        values = {
            "job": story.job,
            "why": story.why,
            "ahead": story.facts.ahead,
            "claims": [(each, describe(end_of(each))) for each in story.claims],
            "timeline": story.timeline,
            "axis": drawings.axis(story.job, story.claims, story.events, now=now, timeline=story.timeline),
            "github": self._settings.github_url,
        }
        return Shown("job.html", now, values, live=story.job.state != JobState.COMPLETED)

    async def pod(self, request: Request) -> Shown:
        """Answer with one Pod: how it ended, its facts, its claims and its timeline."""
        name, holder, now = request.path_params["name"], _holder(request), utcnow()
        found = None

        def body(db: Connection) -> tuple[PodStory, Diagnosis] | None:
            story = pod_story(db, name, accounts=holder.accounts)
            if story is None:
                return None
            timings = self._settings.timings
            return story, diagnoses.of_pod(db, story, timings=timings, now=now, accounts=holder.accounts)

        if "\x00" not in name:
            found = await self._database().run(body)
        if found is None:
            raise _missing("Pod")
        story, why = found
        return Shown("pod.html", now, {"pod": story.pod, "story": story, "why": why}, live=story.pod.gone_at is None)

    async def pods(self, request: Request) -> Shown:
        """Answer with one page of Pods, newest first."""
        _need_fleet(_holder(request))
        query, now = _query(request, Pods), utcnow()
        listing = query.identity()
        after = self._cursors.read(listing, query.cursor)
        wanted = PodFilter(**query.filters())
        streamed = wants_stream(request)  # a stream does not replace the form of the filters

        def body(db: Connection) -> tuple[Page, list[dict[str, Any]], Sequence[Choice]]:
            page = list_pods(db, wanted, order=query.sort, after=after, limit=query.limit)
            return page, pods_shown(db, page.rows), () if streamed else pool_choices(db, limit=LARGEST)

        page, pods, pools = await self._database().run(body)
        values = {
            "query": query,
            "pods": pods,
            "pools": pools,
            "next_page": _next(request, self._cursors.make(listing, page.next_id)),
        }
        return Shown("pods.html", now, values)

    async def pools(self, request: Request) -> Shown:
        """Answer with the image and the runner version of every pool, and what a deploy of Ostler would meet now."""
        _need_fleet(_holder(request))
        now = utcnow()

        def body(db: Connection) -> tuple[Sequence[PoolVersions], Sequence[Obstacle]]:
            return pool_versions(db), obstacles(db, now=now)

        found, stopped = await self._database().run(body)
        sums = {name: sum(getattr(each, name) or 0 for each in found) for name in ("with_job", "replaced", "old_pods")}
        return Shown("pools.html", now, {"pools": found, "obstacles": stopped, "sums": sums, "most": MOST})

    async def pool(self, request: Request) -> Shown:
        """Answer with one pool: its problem, its Pods and jobs, its conditions, and the autoscaler's decision."""
        _need_fleet(_holder(request))
        pool_id, now = number(request.path_params["pool_id"]), utcnow()

        def body(db: Connection) -> tuple[PoolStory, Page, list[dict[str, Any]], Expected, Diagnosis] | None:
            story = pool_story(db, pool_id, now=now)
            if story is None:
                return None
            pods = list_pods(db, PodFilter(pool_id=pool_id, gone=False), limit=MOST)
            usual = expected(db, pool_id, since=now - WAITS_OF)
            return story, pods, pods_shown(db, pods.rows), usual, diagnoses.of_pool(db, story, now=now)

        found = await self._database().run(body) if pool_id else None
        if found is None:
            raise _missing("pool")
        story, page, pods, usual, why = found
        shown = told(story, now=now)
        counts = None if shown["status"] is None else {each: shown["status"][each] for each in PodState}
        values = {
            "pool": shown,
            "why": why,
            "counts": counts,
            "pods": pods,
            "more": page.next_id is not None,
            "usual": usual,
        }
        return Shown("pool.html", now, values, live=shown["deleted_at"] is None)

    async def account(self, request: Request) -> Shown:
        """Answer with one account: its use of its budget, its queue, and the waits of its jobs."""
        account_id, holder, now = number(request.path_params["account_id"]), _holder(request), utcnow()
        streamed = wants_stream(request)  # a stream does not replace the waits of the day

        def body(db: Connection) -> tuple[AccountStory, Diagnosis, Sequence[Waits], Sequence[Waits]] | None:
            story = account_story(db, account_id, accounts=holder.accounts)
            if story is None:
                return None
            timings = self._settings.timings
            why = diagnoses.of_account(db, story, timings=timings, now=now, accounts=holder.accounts)
            only = frozenset({account_id})
            hour = waits(db, since=now - WAITS_OF, until=now, by=By.ACCOUNT, now=now, accounts=only)
            if streamed:
                return story, why, hour[-1:], ()
            return (
                story,
                why,
                hour[-1:],
                waits(db, since=now - timedelta(days=1), until=now, by=By.REPOSITORY, now=now, accounts=only),
            )

        found = await self._database().run(body) if account_id else None
        if found is None:
            raise _missing("account")
        story, why, hour, day = found
        values = {"account": story.account, "story": story, "why": why, "hour": hour, "day": day, "most": MOST}
        return Shown("account.html", now, values)

    async def usage(self, request: Request) -> Shown:
        """Answer with the use of runners in a month, and the starts of its jobs against the targets."""
        now = utcnow()
        found = await self._usages.read(_query(request, Month).month, _holder(request).accounts)
        after = (found.since + timedelta(days=32)).replace(day=1)
        values = {
            "found": found,
            "blames": list(Blame),
            "month": f"{found.since:%Y-%m}",
            "before": f"{found.since - timedelta(days=1):%Y-%m}",
            "after": f"{after:%Y-%m}" if after <= now else None,
            "most": LARGEST,
        }
        return Shown("usage.html", now, values, live=False)

    async def waits(self, request: Request) -> Shown:
        """Answer with the waits of a span, by pool or by another group."""
        query = _query(request, WaitsOf)
        (found, waiting), now = await self._spans.read(query, _holder(request).accounts)
        since, until = query.since.limits(now)
        values = {
            "query": query,
            "spans": list(Span),
            "groups": list(By),
            "found": found,
            "waiting": waiting,
            "since": since,
            "until": until,
            "most": MOST,
        }
        return Shown("waits.html", now, values, live=False)

    async def nodes(self, request: Request) -> Shown:
        """Answer with the nodes that have runner Pods, those with lost Pods first."""
        _need_fleet(_holder(request))
        now = utcnow()
        return Shown("nodes.html", now, {"found": await self._database().run(read_nodes), "most": MOST})

    async def sweeps(self, request: Request) -> Shown:
        """Answer with all sweeps: their last ticks, their pauses, and the repairs of the last day."""
        _need_fleet(_holder(request))
        now = utcnow()
        since = (now - timedelta(days=1)).replace(microsecond=0)

        def body(db: Connection) -> tuple[Sequence[SweepSeen], Sequence[RepairCount]]:
            return list_sweeps(db, now=now), count_repairs(db, since=since)

        sweeps, counts = await self._database().run(body)
        repairs: dict[str, dict[str, int]] = {}
        for row in counts:
            repairs.setdefault(row.sweep, {})[row.outcome] = row.repairs
        return Shown("sweeps.html", now, {"sweeps": sweeps, "repairs": repairs, "since": since.isoformat()})

    async def repairs(self, request: Request) -> Shown:
        """Answer with one page of repairs, newest first."""
        _need_fleet(_holder(request))
        query, now = _query(request, RepairsSeen), utcnow()
        listing = query.identity()
        after = self._cursors.read(listing, query.cursor)
        wanted = query.wanted(now)
        since = wanted.since
        # The summary counts every sweep and outcome, so it is shown only if no other filter hides a part of the list.
        whole = replace(wanted, since=None) == RepairFilter() and query.cursor is None

        def body(db: Connection) -> tuple[Page, Sequence[DailyChanges]]:
            page = list_repairs(db, wanted, order=query.sort, after=after, limit=query.limit)
            return page, summary(db, since=since) if whole and since is not None else ()

        repairs, counts = await self._database().run(body)
        values = {
            "filtered": bool(query.model_dump(exclude={"limit", "sort"}, exclude_none=True)),
            "query": query,
            "sweeps": SWEEPS,
            "outcomes": list(Repaired),
            "counts": counts,
            "counted": whole and since is not None,
            "since": since,
            "repairs": repairs.rows,
            "next_page": _next(request, self._cursors.make(listing, repairs.next_id)),
        }
        return Shown("repairs.html", now, values)

    async def changes(self, request: Request) -> Shown:
        """Answer with one page of changes, newest first."""
        _need_fleet(_holder(request))
        query, now = _query(request, Changes), utcnow()
        listing = query.identity()
        after = self._cursors.read(listing, query.cursor)
        wanted = ChangeFilter(**query.filters())
        changes = await self._database().run(lambda db: list_changes(db, wanted, after=after, limit=query.limit))
        values = {
            "query": query,
            "kinds": list(ChangeKind),
            "changes": [(each, in_words(each.old, each.new)) for each in changes.rows],
            "next_page": _next(request, self._cursors.make(listing, changes.next_id)),
        }
        return Shown("changes.html", now, values)


def _missing(what: str) -> Refusal:
    return Refusal(
        HTTPStatus.NOT_FOUND,
        "not-found",
        f"There is no {what} at this address",
        f"Ostler never knew the {what}, deleted its row after the retention time, or hides it from your token.",
    )


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

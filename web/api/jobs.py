"""`/v1/jobs`: the queue, and the reason why a job waits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import Field

from models.browse.jobs import JobFilter, JobStory, job_story, list_jobs, shown, told
from models.browse.timeline import Moment
from models.sweeps import requeues
from ostler.clock import utcnow
from ostler.task_names import RELEASE
from ostler.timings import Timings
from rules.changes import Author
from rules.claims.machines import JobState
from rules.claims.requeues import Requeue
from rules.routing.holds import HoldReason
from rules.waiting.jobs import UNKNOWN_JOB
from rules.waiting.steps import Explanation
from web.api.cursors import Cursors
from web.api.database import Database
from web.api.gate import author
from web.api.limited import Visible
from web.api.problems import Refusal, not_found, problem_of
from web.api.schema import Event, FilterId, Id, Name, Page, Shown, Sorted
from web.process.publisher import Publisher


class Jobs(Sorted):
    """Filters of the list of jobs. A job failed if its conclusion is `failure`, `timed_out` or `startup_failure`."""

    state: JobState | None = Field(default=None, description="only jobs in this state")
    hold_reason: HoldReason | None = Field(default=None, description="only jobs that are held for this reason")
    held: bool | None = Field(default=None, description="true: only held jobs; false: only jobs that are not held")
    account_id: FilterId | None = Field(default=None, description="only jobs of this account, by GitHub's id")
    pool_id: FilterId | None = Field(default=None, description="only jobs of this pool, by Ostler's id")
    repository: Name | None = Field(
        default=None, description="only jobs of this repository, as `owner/name`", examples=["acme/shop"]
    )
    workflow: Name | None = Field(default=None, description="only jobs of workflows with this name", examples=["CI"])
    label: Name | None = Field(
        default=None, description="only jobs that ask for this label, in upper or lower case", examples=["gpu"]
    )


class Job(Shown):
    """One `workflow_job` of GitHub."""

    id: int = Field(description="GitHub's id of the job", examples=[31415926535])
    account_id: int
    account: str = Field(examples=["acme"])
    repository: str = Field(examples=["acme/shop"])
    run_id: int
    run_attempt: int
    name: str = Field(examples=["build"])
    workflow_name: str | None = Field(examples=["CI"])
    head_branch: str | None = Field(examples=["main"])
    labels: list[str] = Field(examples=[["self-hosted", "linux"]])
    state: JobState
    conclusion: str | None
    pool_id: int | None
    pool: str | None = Field(examples=["small"])
    hold_reason: HoldReason | None
    hold_detail: str | None
    not_before: datetime | None
    queued_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    runner: str | None = Field(
        description="name of the runner that executes or executed the job; null before its begin",
        examples=["small-0a1b2c3d-5e6f7a8b"],
    )
    age_seconds: float = Field(description="seconds from `queued_at` to now, or to the end of the job", examples=[12.5])


class JobClaim(Shown):
    """One claim of the job. It is live or has ended."""

    id: int
    state: str = Field(examples=["executing"])
    pod: str = Field(examples=["small-0a1b2c3d"])
    runner_name: str | None
    created_at: datetime
    delivered_at: datetime | None
    ended_at: datetime | None
    end_reason: str | None
    pod_uid: str
    pod_end: str | None = Field(description="how its Pod ended, as far as this was observed; null before its end")
    poller_exit_code: int | None
    runner_exit_code: int | None
    exit_reason: str | None = Field(description="Kubernetes' reason for the end of the Pod", examples=["OOMKilled"])


class JobDetail(Job):
    """A job with its claims, its transitions and the reason for its present state."""

    why: Explanation
    claims: list[JobClaim]
    events: list[Event]
    timeline: list[Moment] = Field(description="transitions of the job and its claims, oldest first")


class Requeued(Shown):
    """Result of a request to queue a job again. A claimed job is queued when GitHub has removed its runner."""

    action: Requeue
    message: str = Field(examples=["The hold of the job is cleared. It gets the next free Pod of its turn."])
    why: Explanation


async def queue_again(database: Database, publisher: Publisher, job_id: int, *, by: Author) -> requeues.Requeued:
    """Queue a job again as far as this is safe, and send the hints for its next steps.

    Raises Refusal (404) if there is no such job, and Refusal (409) if the job cannot be queued again.
    """
    done = await database.run(lambda db: requeues.requeue(db, job_id, by=by))
    if done is None:
        raise not_found("job")
    if done.action.refused:
        raise Refusal(HTTPStatus.CONFLICT, "not-queued-again", "The job cannot be queued again", done.message)
    if done.wakes is not None:
        publisher.wake([done.wakes])
    if done.releases is not None:
        publisher.send(RELEASE, claim_id=done.releases)
    return done


def router(
    database: Callable[[], Database], cursors: Cursors, publisher: Callable[[], Publisher], timings: Timings
) -> APIRouter:
    """Return the routes of jobs. `timings` are those of the matcher."""
    routes = APIRouter(prefix="/v1/jobs", tags=["jobs"])

    @routes.get("", summary="List jobs", response_model=Page[Job])
    async def jobs(query: Annotated[Jobs, Query()], accounts: Visible) -> dict[str, Any]:
        listing = query.identity()
        after = cursors.read(listing, query.cursor)
        wanted = JobFilter(**query.filters(), accounts=accounts)
        page = await database().run(lambda db: list_jobs(db, wanted, order=query.sort, after=after, limit=query.limit))
        now = utcnow()
        return {
            "items": [shown(row, now=now) for row in page.rows],
            "next_cursor": cursors.make(listing, page.next_id),
        }

    async def read(job_id: int, accounts: frozenset[int] | None, *, now: datetime) -> JobStory:
        story = await database().run(lambda db: job_story(db, job_id, timings=timings, now=now, accounts=accounts))
        if story is None:
            raise not_found("job", cure=f"GET /api/v1/jobs lists all of them. {UNKNOWN_JOB}")
        return story

    @routes.get("/{job_id}/explanation", summary="Explain what a job waits for", response_model=Explanation)
    async def explanation(job_id: Id, accounts: Visible) -> Explanation:
        return (await read(job_id, accounts, now=utcnow())).why

    @routes.post(
        "/{job_id}/requeue",
        summary="Clear the holds of a job, or ask for the release of its claim",
        response_model=Requeued,
        responses={409: problem_of("The job is completed, waits for GitHub, or is executed by a runner")},
    )
    async def ask_requeue(job_id: Id, request: Request) -> dict[str, Any]:
        now = utcnow()
        done = await queue_again(database(), publisher(), job_id, by=author(request))
        story = await read(job_id, None, now=now)
        return {"action": done.action, "message": done.message, "why": story.why}

    @routes.get("/{job_id}", summary="Show a job: its state, the reason and its history", response_model=JobDetail)
    async def job(job_id: Id, accounts: Visible) -> dict[str, Any]:
        now = utcnow()
        story = await read(job_id, accounts, now=now)
        return told(story, now=now)

    return routes

"""`/v1/pods`: one runner Pod, its claims, and how the Pod ended."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import Field

from models.browse.pods import pod_story
from models.claims.pod_ends import end_of
from rules.claims.machines import ClaimState, EndReason, Purpose
from rules.claims.pod_ends import describe
from web.api.database import Database
from web.api.limited import Visible
from web.api.problems import not_found
from web.api.schema import Event, Name, Shown

PodName = Annotated[Name, Path(description="name or UID", examples=["small-0a1b2c3d"])]


class PodClaim(Shown):
    """One claim of the Pod."""

    id: int
    purpose: Purpose
    state: ClaimState
    job_id: int | None
    runner_name: str | None
    created_at: datetime
    delivered_at: datetime | None
    ended_at: datetime | None
    end_reason: EndReason | None
    release_reason: str | None
    last_error: str | None


class PodJob(Shown):
    """One job that a runner of the Pod began to execute."""

    job_id: int
    claim_id: int
    runner_name: str
    started_at: datetime
    ended_at: datetime | None


class ClaimEvent(Event):
    """One transition of a claim of the Pod."""

    claim_id: int


class Pod(Shown):
    """A runner Pod as its row describes it, with its claims and the transitions of these claims."""

    namespace: str
    name: str = Field(examples=["small-0a1b2c3d"])
    uid: str | None = Field(description="null until the answer to the creation of the Pod, or its first poll")
    pool_id: int
    pool: str = Field(examples=["small"])
    created_at: datetime
    first_polled_at: datetime | None
    polled_at: datetime | None = Field(description="last poll, recorded at most once a minute")
    poller_ended_at: datetime | None
    over_at: datetime | None = Field(description="first observation that poller and runner have ended")
    deletion_at: datetime | None = Field(description="time of the deletion request, if the watch observed it")
    node_gone_at: datetime | None = Field(description="first observation that its node is gone")
    gone_at: datetime | None = Field(description="time of the proof that the Pod is gone")
    poller_exit_code: int | None
    runner_exit_code: int | None
    exit_reason: str | None = Field(description="Kubernetes' reason for the end of the Pod", examples=["OOMKilled"])
    event_reason: str | None = Field(
        description="reason of the Event that best explains the end of the Pod, if a job lost the Pod",
        examples=["ScaleDown"],
    )
    event_by: str | None = Field(description="component that wrote the Event", examples=["cluster-autoscaler"])
    event_message: str | None = Field(description="message of the Event, at most 200 characters")
    end: str | None = Field(description="how the Pod ended, as far as this was observed; null before its end")
    claims: list[PodClaim]
    events: list[ClaimEvent]
    executions: list[PodJob] = Field(description="the newest 100 jobs that the Pod's runner began to execute")


def router(database: Callable[[], Database]) -> APIRouter:
    """Return the route of Pods."""
    routes = APIRouter(prefix="/v1/pods", tags=["pods"])

    @routes.get("/{pod}", summary="Show a runner Pod, how it ended, and its claims", response_model=Pod)
    async def show(pod: PodName, accounts: Visible) -> dict[str, Any]:
        story = await database().run(lambda db: pod_story(db, pod, accounts=accounts))
        if story is None:
            raise not_found(
                "Pod",
                by="name or UID",
                cure="Check the name or the UID. Ostler deletes the rows of old Pods after OSTLER_KEEP_JOBS seconds.",
            )
        return {
            **story.pod._mapping,
            "end": describe(end_of(story.pod), pod="it"),
            "claims": story.claims,
            "events": story.events,
            "executions": story.executions,
        }

    return routes

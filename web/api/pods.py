"""`/v1/pods`: runner Pods, and one Pod with its claims and its end."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import Field
from sqlalchemy import Connection

from models.browse.diagnoses import told_pod
from models.browse.pods import PodFilter, list_pods, shown
from models.browse.timeline import Moment
from ostler.clock import utcnow
from ostler.timings import Timings
from rules.claims.machines import ClaimState, EndReason, Purpose
from rules.waiting.steps import Diagnosis
from web.api.cursors import Cursors
from web.api.database import Database
from web.api.limited import Visible
from web.api.problems import not_found
from web.api.schema import Event, FilterId, Name, Page, Shown, Sorted

PodName = Annotated[Name, Path(description="name or UID", examples=["small-0a1b2c3d"])]


class Pods(Sorted):
    """Filters of the list of Pods.

    A Pod failed if its node is gone, if a container ended with an error, or if the Pod ended before its job or was
    deleted by another client.
    """

    pool_id: FilterId | None = Field(default=None, description="only Pods of this pool, by Ostler's id")
    gone: bool | None = Field(default=None, description="true: only Pods that are gone; false: only other Pods")


class ListedPod(Shown):
    """A runner Pod as its row describes it, with its live claim."""

    id: int
    namespace: str
    name: str = Field(examples=["small-0a1b2c3d"])
    uid: str | None
    pool_id: int
    pool: str = Field(examples=["small"])
    state: str = Field(
        description="the state of the live job claim, or starting, free, retiring, ending, over, node gone or gone. "
        "Only the status of the pool says which Pods are warm",
        examples=["free"],
    )
    claim_id: int | None
    purpose: Purpose | None
    job_id: int | None
    created_at: datetime
    first_polled_at: datetime | None
    polled_at: datetime | None
    over_at: datetime | None
    node_gone_at: datetime | None
    gone_at: datetime | None
    reason: str | None = Field(
        description="why a starting Pod does not poll yet, from the last shared list of Pods; null for other Pods",
        examples=["ImagePullBackOff"],
    )
    end: str | None = Field(description="how the Pod ended, as far as this was observed; null before its end")


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


class HookPod(Shown):
    """A hook Pod, in which a container job runs."""

    name: str = Field(examples=["small-0a1b2c3d-workflow"])
    phase: str = Field(description="its phase, or Terminating", examples=["Running"])
    node: str | None = Field(description="null before it has a node, and for a token with limited accounts")
    problem: str | None = Field(description="why a container does not start, or how it failed")
    created_at: datetime
    seen_at: datetime = Field(description="when the watch saw its last change")
    gone: bool


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
    last_node: str | None = Field(description="the node that it had, once it is gone; null for limited tokens")
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
    hook_pods: list[HookPod] = Field(description="the hook Pods of its jobs, as the watch saw them last, oldest first")
    executions: list[PodJob] = Field(description="the newest 100 jobs that the Pod's runner began to execute")
    timeline: list[Moment] = Field(description="what happened to the Pod and its claims, oldest first")
    why: Diagnosis


def router(database: Callable[[], Database], cursors: Cursors, timings: Timings) -> APIRouter:
    """Return the routes of Pods. `timings` are those of the sweeps."""
    routes = APIRouter(prefix="/v1/pods", tags=["pods"])

    @routes.get("", summary="List runner Pods", response_model=Page[ListedPod])
    async def pods(query: Annotated[Pods, Query()]) -> dict[str, Any]:
        listing = query.identity()
        after = cursors.read(listing, query.cursor)
        wanted = PodFilter(**query.filters())

        def body(db: Connection) -> tuple[list[dict[str, Any]], int | None]:
            page = list_pods(db, wanted, order=query.sort, after=after, limit=query.limit)
            return shown(db, page.rows), page.next_id

        items, next_id = await database().run(body)
        return {"items": items, "next_cursor": cursors.make(listing, next_id)}

    async def read(pod: str, accounts: Visible) -> dict[str, Any]:
        now = utcnow()
        found = await database().run(lambda db: told_pod(db, pod, timings=timings, now=now, accounts=accounts))
        if found is None:
            raise not_found(
                "Pod",
                by="name or UID",
                cure="Check the name or the UID. Ostler deletes the rows of old Pods after OSTLER_KEEP_JOBS seconds.",
            )
        return found

    @routes.get("/{pod}/explanation", summary="Explain the state and the end of a Pod", response_model=Diagnosis)
    async def explanation(pod: PodName, accounts: Visible) -> Any:
        return (await read(pod, accounts))["why"]

    @routes.get("/{pod}", summary="Show a runner Pod, how it ended, and its claims", response_model=Pod)
    async def show(pod: PodName, accounts: Visible) -> dict[str, Any]:
        return await read(pod, accounts)

    return routes

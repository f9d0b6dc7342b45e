"""`/v1/pools`: the pools as their rows describe them, and requests to pause or resume them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import AliasChoices, BaseModel, ConfigDict, Field
from sqlalchemy import Connection

from models.browse import page as listing_page
from models.browse.diagnoses import told_pool
from models.browse.pools import PoolFilter, list_pools, shown
from models.browse.versions import PoolVersions, pool_versions
from models.pools import pause_requests
from ostler.clock import utcnow
from ostler.task_names import POOL_CHANGED
from rules.changes import Author
from rules.pools.scaling import Verdict
from rules.waiting.steps import Diagnosis
from web.api.cursors import Cursors
from web.api.database import Database
from web.api.gate import author
from web.api.problems import Refusal, not_found, problem_of
from web.api.schema import Id, Listing, Name, Page, Shown
from web.process.publisher import Publisher


class Pools(Listing):
    """Filters of the list of pools. The oldest pool comes first."""

    name: Name | None = Field(default=None, description="only pools with this name", examples=["small"])
    deleted: bool | None = Field(
        default=None, description="true: only pools whose RunnerPool is gone; false: only other pools"
    )


class Decision(BaseModel):
    """One decision of the autoscaler about a pool, with the numbers that led to the decision."""

    at: datetime
    verdict: Verdict
    replicas: int = Field(description="replicas that the autoscaler decided on", examples=[6])
    why: str = Field(examples=["3 with jobs + 2 queued + 1 warm = 6"])
    load: int = Field(description="Pods that have or had a job, are not terminal and are not being retired")
    queue: int = Field(description="queued jobs that budgets allow to run")
    usual: int = Field(description="95th percentile of the peaks of live job claims in each minute of the last hour")


class Condition(BaseModel):
    """One condition of the pool's status, as Ostler last wrote it to the RunnerPool object."""

    type: str = Field(examples=["Degraded"])
    status: str = Field(examples=["True"])
    reason: str = Field(examples=["PodsDoNotStart"])
    message: str
    since: datetime = Field(validation_alias=AliasChoices("lastTransitionTime", "since"))


class PoolStatus(BaseModel):
    """The numbers of the pool's runner Pods in the status of the RunnerPool object, as Ostler last wrote them.

    Each Pod is in one of the numbers `starting` to `spent`, except lost Pods.
    """

    at: datetime = Field(description="when a reconcile last found these numbers to be current")
    age_seconds: int = Field(description="seconds since `at`", examples=[4])
    observed_generation: int = Field(description="generation of the RunnerPool object that was reconciled")
    replicas: int = Field(description="Pods that are neither spent nor lost", examples=[14])
    starting: int = Field(description="Pods that have never polled")
    warm: int = Field(description="Pods that poll and are free, and persistent runners that are online and free")
    reserved: int = Field(description="Pods with a claim that is not delivered, or whose runner is not online yet")
    busy: int = Field(description="Pods that execute a job or might have got one")
    ending: int = Field(description="Pods whose job is over and whose containers still run")
    retiring: int = Field(description="Pods that Ostler deletes")
    unresponsive: int = Field(description="Pods that stopped polling")
    spent: int = Field(description="Pods whose poller and runner have terminated")
    stale: int = Field(description="Pods of an older template")
    lost: int = Field(description="Pods on nodes that are gone, except spent Pods; they are in no other number")


class PauseRequest(BaseModel):
    """A request to pause or resume a pool that no worker has carried out yet."""

    paused: bool = Field(description="true: pause the pool; false: resume it")
    by: str = Field(examples=["alice (dashboard)"])
    at: datetime


class Paused(BaseModel):
    """The pause of a pool. A paused pool creates and retires no Pods. Its warm Pods still serve jobs."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"paused": True}]})

    paused: bool = Field(strict=True)


class Pool(Shown):
    """One RunnerPool."""

    id: int = Field(examples=[1])
    namespace: str = Field(examples=["ostler-runners"])
    name: str = Field(examples=["small"])
    image: str
    labels: list[str] = Field(examples=[["self-hosted", "linux"]])
    vcpu: float = Field(description="vCPU of one Pod", examples=[2])
    memory_gib: float = Field(description="memory of one Pod in GiB", examples=[4])
    replicas: int = Field(description="desired number of Pods", examples=[14])
    allowed_accounts: list[int]
    allowed_repositories: list[str]
    routing_priority: int
    draining: bool
    paused: bool
    pause_request: PauseRequest | None = Field(
        description="request that a worker carries out within seconds; null: there is none"
    )
    autoscaled: bool = Field(description="true: the autoscaler sets the replicas")
    min_warm: int = Field(
        description="warm Pods that the autoscaler provides in addition to Pods with jobs", examples=[1]
    )
    max_replicas: int = Field(description="maximum number of Pods of an autoscaled pool", examples=[10])
    scaled_up_at: datetime | None = Field(description="last scale-up by the autoscaler")
    scaled_down_at: datetime | None
    scaling: Decision | None = Field(description="last recorded decision of the autoscaler; null if there is none")
    status: PoolStatus | None = Field(
        description="null before the first reconcile, and after the RunnerPool object is gone"
    )
    conditions: list[Condition] = Field(description="Ready, Draining and Degraded; empty before the first check")
    created_at: datetime
    deleted_at: datetime | None


class Versions(Shown):
    """The version of the runner of a pool, and the Pods that a change of the Pod template would replace."""

    runner: str | None = Field(
        description="version that GitHub listed last, or that of the tag of the image; null if it is not known",
        examples=["2.330.0"],
    )
    ends_at: datetime | None = Field(description="GitHub refuses the version from then on; null: it has named no time")
    warning: str | None = Field(description="message of the condition RunnerOutdated")
    old_pods: int | None = Field(description="Pods of an older template; null before the first reconcile")
    with_job: int | None = Field(description="Pods that have a job or are about to get it")
    replaced: int | None = Field(description="starting and warm Pods, which a new template replaces")


class ListedPool(Pool):
    """A pool of the list, with the version of its runner."""

    versions: Versions | None = Field(description="null for a deleted pool")


class PoolCounts(Shown):
    """The numbers of queued jobs of the pool, at the time of the request."""

    queued: int = Field(description="jobs that wait for a Pod of the pool")
    held: int = Field(description="queued jobs of the pool with a hold reason")
    oldest_queued_at: datetime | None


class PoolDetail(Pool):
    """A pool, and how many jobs wait for it."""

    counts: PoolCounts
    state: str = Field(
        description="gone, draining, paused, degraded, ready, starting or not ready; frozen or gate tripped if a "
        "problem of the whole fleet stops a ready pool",
        examples=["ready"],
    )
    trouble: str = Field(description="problem of the pool, or the progress of its drain; empty without a problem")
    why: Diagnosis


async def ask_pause(database: Database, publisher: Publisher, pool_id: int, *, paused: bool, by: Author) -> None:
    """Write a request to pause or resume a pool, and send the hint to a worker.

    Raises Refusal (404) if there is no such pool, and Refusal (409) if the pool cannot be paused.
    """
    asked = await database.run(lambda db: pause_requests.ask(db, pool_id, paused=paused, by=by))
    if asked is None:
        raise not_found("pool")
    if asked.refused:
        raise Refusal(
            HTTPStatus.CONFLICT,
            "pool-drains",
            "The pool drains and cannot be paused",
            "A drain cannot be cancelled. Create the pool again after its deletion.",
        )
    publisher.send(POOL_CHANGED, namespace=asked.namespace, pool=asked.name)


def router(database: Callable[[], Database], cursors: Cursors, publisher: Callable[[], Publisher]) -> APIRouter:
    """Return the routes of pools."""
    routes = APIRouter(prefix="/v1/pools", tags=["pools"])

    @routes.get("", summary="List pools", response_model=Page[ListedPool])
    async def pools(query: Annotated[Pools, Query()]) -> dict[str, Any]:
        listing = query.identity()
        after = cursors.read(listing, query.cursor)
        wanted = PoolFilter(name=query.name, deleted=query.deleted)

        def body(db: Connection) -> tuple[listing_page.Page, Mapping[int, PoolVersions]]:
            page = list_pools(db, wanted, after=after, limit=query.limit)
            return page, {each.id: each for each in pool_versions(db, ids=[row.id for row in page.rows])}

        page, versions = await database().run(body)
        now = utcnow()
        return {
            "items": [shown(row, now=now) | {"versions": versions.get(row.id)} for row in page.rows],
            "next_cursor": cursors.make(listing, page.next_id),
        }

    async def read(pool_id: int) -> dict[str, Any]:
        now = utcnow()
        found = await database().run(lambda db: told_pool(db, pool_id, now=now))
        if found is None:
            raise not_found("pool")
        return found

    @routes.get("/{pool_id}/explanation", summary="Explain the state of a pool", response_model=Diagnosis)
    async def explanation(pool_id: Id) -> Any:
        return (await read(pool_id))["why"]

    @routes.get("/{pool_id}", summary="Show a pool with its numbers", response_model=PoolDetail)
    async def pool(pool_id: Id) -> dict[str, Any]:
        return await read(pool_id)

    @routes.put(
        "/{pool_id}/paused",
        summary="Ask for the pause of a pool, or for its end",
        response_model=PoolDetail,
        responses={409: problem_of("The pool drains and cannot be paused")},
    )
    async def pause(pool_id: Id, new: Paused, request: Request) -> dict[str, Any]:
        await ask_pause(database(), publisher(), pool_id, paused=new.paused, by=author(request))
        return await read(pool_id)

    return routes

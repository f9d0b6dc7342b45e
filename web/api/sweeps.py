"""`/v1/sweeps` and `/v1/repairs`: the pause switches of the sweeps, and the ledger of their repairs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection

from models.browse.repairs import RepairFilter, list_repairs
from models.browse.sweeps import SweepSeen, list_sweeps, one_sweep
from models.sweeps import sweep_runs
from ostler.clock import utcnow
from ostler.task_names import SWEEPS
from rules.sweeps.limits import Expect, Outcome, Repaired
from web.api.cursors import Cursors
from web.api.database import Database
from web.api.gate import author
from web.api.problems import not_found
from web.api.schema import FilterId, Name, Page, Shown, Sorted

SweepName = Annotated[str, Path(max_length=100, description="name", examples=["stale_claims"])]


class Sweep(Shown):
    """One sweep, with its pause switch and its last tick. A tick is one run of a sweep."""

    name: str = Field(examples=["stale_claims"])
    paused_at: datetime | None
    paused_by: str | None
    paused_why: str | None
    runs_in: str | None = Field(description="worker that runs the sweep now; null if none does")
    began_at: datetime | None = Field(description="start of its last tick")
    succeeded_at: datetime | None = Field(description="end of its last successful tick")
    outcome: Outcome | None = Field(description="outcome of its last tick")
    why: str | None


class Sweeps(BaseModel):
    """All sweeps."""

    items: list[Sweep]


class Switch(BaseModel):
    """The pause switch of a sweep. A request that sets the present value changes nothing."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"paused": True, "why": "we restore Postgres"}]}
    )

    paused: bool = Field(strict=True)
    why: str = Field(default="", max_length=200, pattern=r"^[^\x00]*$", description="reason, shown to all operators")


class Repairs(Sorted):
    """Filters of the list of repairs. A repair failed if its effect was not seen in time."""

    sweep: Literal[SWEEPS] | None = Field(  # type: ignore[valid-type]  # the names are in ostler/task_names.py
        default=None, description="only repairs of this sweep"
    )
    outcome: Repaired | None = Field(default=None, description="only repairs with this outcome")
    dry: bool | None = Field(default=None, description="true: only repairs of dry runs; false: only real repairs")
    claim_id: FilterId | None = Field(default=None, description="only repairs of this claim")
    job_id: FilterId | None = Field(default=None, description="only repairs of this job, by GitHub's id")
    run_id: FilterId | None = Field(default=None, description="only repairs of this run of a sweep")
    pod_uid: Name | None = Field(default=None, description="only repairs of the Pod with this UID")


class Repair(Shown):
    """One repair by a sweep, with its reason, its witnesses and its outcome."""

    id: int
    sweep: str = Field(examples=["stale_claims"])
    run_id: int
    at: datetime
    what: str = Field(examples=["release"])
    why: str = Field(examples=["never delivered"])
    witnesses: list[str]
    kills: bool
    dry: bool
    pod_uid: str | None
    pod: str | None
    claim_id: int | None
    job_id: int | None
    runner_name: str | None
    subject: str | None
    before: str | None
    after: str | None
    expects: Expect
    outcome: Repaired
    verified_at: datetime | None
    note: str | None


def router(database: Callable[[], Database], cursors: Cursors) -> APIRouter:
    """Return the routes of sweeps and repairs."""
    routes = APIRouter(prefix="/v1", tags=["sweeps"])

    @routes.get("/sweeps", summary="List sweeps", response_model=Sweeps)
    async def sweeps() -> dict[str, Any]:
        return {"items": await database().run(lambda db: list_sweeps(db, now=utcnow()))}

    @routes.put("/sweeps/{name}", summary="Pause or resume a sweep", response_model=Sweep)
    async def switch(name: SweepName, new: Switch, request: Request) -> SweepSeen:
        if name not in SWEEPS:
            raise not_found("sweep", by="name")
        by = author(request)

        def body(db: Connection) -> SweepSeen | None:
            if new.paused:
                sweep_runs.pause(db, name, by=by, why=new.why)
            else:
                sweep_runs.resume(db, name, by=by)
            return one_sweep(db, name, now=utcnow())

        seen = await database().run(body)
        if seen is None:
            raise not_found("sweep", by="name")
        return seen

    @routes.get("/repairs", summary="List repairs", response_model=Page[Repair])
    async def repairs(query: Annotated[Repairs, Query()]) -> dict[str, Any]:
        listing = query.identity()
        after = cursors.read(listing, query.cursor)
        wanted = RepairFilter(**query.filters())
        page = await database().run(
            lambda db: list_repairs(db, wanted, order=query.sort, after=after, limit=query.limit)
        )
        return {"items": list(page.rows), "next_cursor": cursors.make(listing, page.next_id)}

    return routes

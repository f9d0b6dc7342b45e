"""`/v1/changes`: who changed accounts, gates, jobs, pools, sweeps and tokens."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import AwareDatetime, Field

from models.browse.changes import ChangeFilter, list_changes
from rules.changes import ChangeKind, Via
from web.api.cursors import Cursors
from web.api.database import Database
from web.api.schema import Listing, Name, Page, Shown


class Changes(Listing):
    """Filters of the list of changes. The newest change comes first."""

    kind: ChangeKind | None = Field(default=None, description="only changes of objects of this kind")
    object: Name | None = Field(
        default=None, description="only changes of the object with this name or id", examples=["small"]
    )
    since: AwareDatetime | None = Field(
        default=None, description="only changes since this time", examples=["2026-11-29T12:00:00Z"]
    )


class Change(Shown):
    """One change of one object."""

    id: int
    at: datetime
    kind: ChangeKind
    name: str = Field(description="name of the object when it was changed", examples=["small"])
    object_id: int | None = Field(description="null for gates and sweeps, which have no id")
    who: str = Field(
        description="an API token, an OS user, a field manager of the cluster, or a part of Ostler", examples=["alice"]
    )
    via: Via = Field(description="way of the change to Ostler")
    database_user: str = Field(description="login of the database session that recorded the change")
    old: dict[str, Any] = Field(description="the changed fields before", examples=[{"paused": False}])
    new: dict[str, Any] = Field(description="the changed fields after", examples=[{"paused": True}])
    why: str | None


def router(database: Callable[[], Database], cursors: Cursors) -> APIRouter:
    """Return the route of changes."""
    routes = APIRouter(prefix="/v1/changes", tags=["changes"])

    @routes.get("", summary="List changes", response_model=Page[Change])
    async def changes(query: Annotated[Changes, Query()]) -> dict[str, Any]:
        listing = query.identity()
        after = cursors.read(listing, query.cursor)
        wanted = ChangeFilter(**query.filters())
        page = await database().run(lambda db: list_changes(db, wanted, after=after, limit=query.limit))
        return {"items": list(page.rows), "next_cursor": cursors.make(listing, page.next_id)}

    return routes

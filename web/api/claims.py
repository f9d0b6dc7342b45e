"""`/v1/claims`: the reservations of Pods."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field

from models.browse.claims import ClaimFilter, claim_story, list_claims, shown
from rules.claims.machines import ClaimState, EndReason, Purpose, Stamp
from web.api.cursors import Cursors
from web.api.database import Database
from web.api.limited import Visible
from web.api.problems import not_found
from web.api.schema import Event, FilterId, Id, Listing, Name, Page, Shown


class Claims(Listing):
    """Filters of the list of claims. The newest claim comes first."""

    state: ClaimState | None = Field(default=None, description="only claims in this state")
    live: bool | None = Field(default=None, description="true: only live claims; false: only claims that ended")
    purpose: Purpose | None = Field(default=None, description="only claims for this purpose")
    account_id: FilterId | None = Field(default=None, description="only claims of this account, by GitHub's id")
    pool_id: FilterId | None = Field(default=None, description="only claims of Pods of this pool, by Ostler's id")
    job_id: FilterId | None = Field(default=None, description="only claims of this job, by GitHub's id")
    pod: Name | None = Field(
        default=None, description="only claims of this Pod, by its name or UID", examples=["small-0a1b2c3d"]
    )


class Claim(Shown):
    """One reservation of a Pod."""

    id: int = Field(examples=[7])
    purpose: Purpose
    state: ClaimState
    stamp: Stamp
    job_id: int | None = Field(description="null for a retirement, for a spare and for a registration")
    executes_job_id: int | None = Field(description="job that the persistent runner of a registration executes now")
    account_id: int | None
    account: str | None = Field(examples=["acme"])
    pool_id: int
    pool: str = Field(examples=["small"])
    pod: str = Field(examples=["small-0a1b2c3d"])
    pod_uid: str
    vcpu: float = Field(examples=[2])
    memory_gib: float = Field(examples=[4])
    runner_name: str | None
    release_reason: str | None
    last_error: str | None
    created_at: datetime
    changed_at: datetime
    minted_at: datetime | None
    delivered_at: datetime | None
    spare_since: datetime | None
    ended_at: datetime | None
    end_reason: EndReason | None
    pod_end: str | None = Field(
        description="how its Pod ended, as far as this was observed; null before its end",
        examples=["the Pod was deleted at 2026-11-23 12:03:04 UTC, evicted through the eviction API"],
    )
    poller_exit_code: int | None
    runner_exit_code: int | None
    exit_reason: str | None = Field(description="Kubernetes' reason for the end of the Pod", examples=["OOMKilled"])


class MintAttempt(Shown):
    """One runner name that Ostler tried to register with GitHub."""

    runner_name: str
    outcome: str = Field(examples=["minted"])
    created_at: datetime
    closed_at: datetime | None


class ClaimDetail(Claim):
    """A claim with its mint attempts and its transitions."""

    attempts: list[MintAttempt]
    events: list[Event]


def router(database: Callable[[], Database], cursors: Cursors) -> APIRouter:
    """Return the routes of claims."""
    routes = APIRouter(prefix="/v1/claims", tags=["claims"])

    @routes.get("", summary="List claims", response_model=Page[Claim])
    async def claims(query: Annotated[Claims, Query()], accounts: Visible) -> dict[str, Any]:
        listing = query.identity()
        after = cursors.read(listing, query.cursor)
        wanted = ClaimFilter(**query.filters(), accounts=accounts)
        page = await database().run(lambda db: list_claims(db, wanted, after=after, limit=query.limit))
        return {"items": [shown(row) for row in page.rows], "next_cursor": cursors.make(listing, page.next_id)}

    @routes.get("/{claim_id}", summary="Show a claim and its history", response_model=ClaimDetail)
    async def claim(claim_id: Id, accounts: Visible) -> dict[str, Any]:
        story = await database().run(lambda db: claim_story(db, claim_id, accounts=accounts))
        if story is None:
            raise not_found("claim")
        return shown(story.claim) | {"attempts": story.attempts, "events": story.events}

    return routes

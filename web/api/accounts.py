"""`/v1/accounts`: budgets and weights.

A change takes effect at once, because the API then wakes the pools that have waiting jobs of the account.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection

from models.browse import accounts as account_rows
from models.browse.accounts import AccountFilter, account_story, list_accounts, told
from models.browse.diagnoses import told_account, waits_for
from models.routing.accounts import set_access, set_budget, set_weight
from models.routing.usage import pools_with_work
from ostler.clock import utcnow
from ostler.task_names import REMATCH
from ostler.timings import Timings
from rules.changes import Author
from rules.claims.fairness import Budget
from rules.routing.access import Access
from rules.waiting.steps import Diagnosis
from web.api.cursors import Cursors
from web.api.database import Database
from web.api.gate import author
from web.api.limited import Visible
from web.api.problems import not_found
from web.api.schema import Id, Integer, Listing, Name, Page, Shown
from web.process.publisher import Publisher

MOST_JOBS = 1_000_000
MOST_VCPU = 10_000_000
MOST_MEMORY_GIB = 100_000_000
MOST_WEIGHT = 1000


class Accounts(Listing):
    """Filters of the list of accounts. The list is ordered by id."""

    login: Name | None = Field(
        default=None, description="only the account with this login, in upper or lower case", examples=["acme"]
    )
    explain: bool = Field(
        default=False,
        description="true: fill `waits_for` for the 20 accounts of the page that wait longest, which costs many reads",
    )


class Amount(BaseModel):
    """A budget, or the used part of a budget."""

    count: int = Field(description="concurrent jobs", examples=[20])
    vcpu: float = Field(examples=[80])
    memory_gib: float = Field(examples=[320])


class NewBudget(BaseModel):
    """Maximum concurrent use of an account over all pools. A lower budget does not end running jobs."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"count": 20, "vcpu": 80, "memory_gib": 320}]}
    )

    count: Integer = Field(
        ge=0, le=MOST_JOBS, strict=True, description="concurrent jobs; 0 holds all jobs of the account"
    )
    vcpu: float = Field(ge=0, le=MOST_VCPU, allow_inf_nan=False, strict=True, description="vCPU, to the millicore")
    memory_gib: float = Field(ge=0, le=MOST_MEMORY_GIB, allow_inf_nan=False, strict=True, description="GiB, to the MiB")


class NewWeight(BaseModel):
    """The share of an account relative to other accounts. Twice the weight gives an account twice the share."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"weight": 2}]})

    weight: float = Field(gt=0, ge=0.001, le=MOST_WEIGHT, allow_inf_nan=False, strict=True)


class NewAccess(BaseModel):
    """Request that allows or holds an account.

    A held account gets no further Pods, and its queued jobs wait. Running jobs go on.
    """

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"access": "allowed"}]})

    access: Access


class AccountJobs(Shown):
    """The numbers of queued and held jobs of the account.

    `oldest_queued_at` is the time at which the oldest job without a hold was queued. If all queued jobs are held, it is
    the time of the oldest of them.
    """

    queued: int
    held: int
    oldest_queued_at: datetime | None


class Account(Shown):
    """The organisation or user that jobs are charged to."""

    id: int = Field(description="GitHub's id of the organisation or user", examples=[1001])
    login: str = Field(examples=["acme"])
    weight: float = Field(examples=[1])
    budget: Amount
    usage: Amount
    ending_pods: int = Field(
        description="Pods whose job is over. They count in `usage` until they have ended", examples=[0]
    )
    access: Access = Field(description="`held`: jobs of the account wait until an operator allows the account")
    jobs: AccountJobs
    created_at: datetime


class ListedAccount(Account):
    """An account of the list, and with `explain=true` what it waits for."""

    waits_for: str | None = Field(
        default=None,
        description="who holds the account, or what its oldest queued job waits for and which accounts have the Pods",
        examples=["The account is held by alice (shell) since 2026-11-29 12:00:00 UTC."],
    )


class AccountDetail(Account):
    """An account, and what its jobs wait for."""

    why: Diagnosis


def router(
    database: Callable[[], Database], cursors: Cursors, publisher: Callable[[], Publisher], timings: Timings
) -> APIRouter:
    """Return the routes of accounts. `timings` are those of the matcher."""
    routes = APIRouter(prefix="/v1/accounts", tags=["accounts"])

    @routes.get("", summary="List accounts", response_model=Page[ListedAccount])
    async def accounts(query: Annotated[Accounts, Query()], seen: Visible) -> dict[str, Any]:
        listing = query.identity()
        after = cursors.read(listing, query.cursor)
        wanted = AccountFilter(login=query.login, accounts=seen)
        now = utcnow()

        def body(db: Connection) -> tuple[account_rows.Accounts, Mapping[int, str]]:
            page = list_accounts(db, wanted, after=after, limit=query.limit)
            if not query.explain:
                return page, {}
            waiting = [each.waiting for each in page.stories]
            return page, waits_for(db, waiting, timings=timings, now=now, accounts=seen)

        read = database().run_slow if query.explain else database().run
        found, reasons = await read(body)
        return {
            "items": [told(story) | {"waits_for": reasons.get(story.account.id)} for story in found.stories],
            "next_cursor": cursors.make(listing, found.next_id),
        }

    _add_account(routes, database, timings)

    async def change(request: Request, account_id: int, write: Callable[[Connection, Author], bool]) -> dict[str, Any]:
        by = author(request)

        def body(db: Connection) -> tuple[list[int], Any] | None:
            return (pools_with_work(db, [account_id]), account_story(db, account_id)) if write(db, by) else None

        done = await database().run(body)
        if done is None:
            raise not_found("account")
        pools, story = done
        publisher().wake(pools)
        publisher().send(REMATCH)  # the account might now run jobs that it could not run before
        return told(story)

    @routes.put("/{account_id}/budget", summary="Set an account's budget", response_model=Account)
    async def budget(account_id: Id, new: NewBudget, request: Request) -> dict[str, Any]:
        wanted = Budget(
            count=new.count, vcpu_millicores=round(new.vcpu * 1000), memory_mib=round(new.memory_gib * 1024)
        )
        return await change(request, account_id, lambda db, by: set_budget(db, account_id, wanted, by=by))

    @routes.put("/{account_id}/weight", summary="Set an account's weight", response_model=Account)
    async def weight(account_id: Id, new: NewWeight, request: Request) -> dict[str, Any]:
        return await change(request, account_id, lambda db, by: set_weight(db, account_id, new.weight, by=by))

    @routes.put("/{account_id}/access", summary="Allow or hold an account", response_model=Account)
    async def access(account_id: Id, new: NewAccess, request: Request) -> dict[str, Any]:
        return await change(request, account_id, lambda db, by: set_access(db, account_id, new.access, by=by))

    return routes


def _add_account(routes: APIRouter, database: Callable[[], Database], timings: Timings) -> None:
    """Add the routes of one account and of its explanation."""

    async def read(account_id: int, seen: Visible) -> dict[str, Any]:
        now = utcnow()
        found = await database().run(lambda db: told_account(db, account_id, timings=timings, now=now, accounts=seen))
        if found is None:
            raise not_found("account")
        return found

    @routes.get("/{account_id}/explanation", summary="Explain what an account waits for", response_model=Diagnosis)
    async def explanation(account_id: Id, seen: Visible) -> Any:
        return (await read(account_id, seen))["why"]

    @routes.get("/{account_id}", summary="Show an account with its numbers", response_model=AccountDetail)
    async def account(account_id: Id, seen: Visible) -> dict[str, Any]:
        return await read(account_id, seen)

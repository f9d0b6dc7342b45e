"""Schemas that several resources of the API share."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Path
from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from models.browse.page import LARGEST, Order

BIGGEST_ID = 2**63 - 1
DEFAULT_LIMIT = 50

Id = Annotated[int, Path(ge=1, le=BIGGEST_ID, description="id", examples=[42])]
FilterId = Annotated[int, Field(ge=1, le=BIGGEST_ID)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[\x20-\x7e]+$")]


def _integer(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


Integer = Annotated[int, BeforeValidator(_integer)]
"""An integer in a JSON body. JSON Schema counts 20.0 as an integer.

Without this type, pydantic's `strict` would refuse 20.0.
"""

Item = TypeVar("Item", bound=BaseModel)


class Listing(BaseModel):
    """Parameters that every list has. A request with an unknown parameter is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    limit: int = Field(default=DEFAULT_LIMIT, ge=1, le=LARGEST, description="maximum number of items on this page")
    cursor: str | None = Field(
        default=None, max_length=100, description="`next_cursor` of the previous page. The filters must be the same"
    )

    def filters(self) -> dict[str, Any]:
        """Return the filters by name, without the page. The filter of the query has the same names."""
        return self.model_dump(exclude={"limit", "cursor"})

    def identity(self) -> str:
        """Return the name of the list and its filters as a text.

        A cursor is made for one such text. It is not valid for a list with another text.
        """
        return f"{type(self).__name__} {self.model_dump_json(exclude={'limit', 'cursor'}, exclude_none=True)}"


class Sorted(Listing):
    """Parameters of a list with a choice of the order."""

    sort: Order = Field(default=Order.NEWEST, description="order of the list: the newest or the oldest item first")
    since: AwareDatetime | None = Field(
        default=None, description="only items since this time", examples=["2026-11-29T12:00:00Z"]
    )
    failed: bool | None = Field(default=None, description="true: only items that failed; false: only other items")

    def filters(self) -> dict[str, Any]:
        """Return the filters by name, without the page and the order."""
        return self.model_dump(exclude={"limit", "cursor", "sort"})


class Shown(BaseModel):
    """A model that is built from a database row."""

    model_config = ConfigDict(from_attributes=True)


class Page(BaseModel, Generic[Item]):
    """One page of a list."""

    items: list[Item]
    next_cursor: str | None = Field(description="where the next page begins; null at the end")


class Event(Shown):
    """One transition, with both states, the component that made the transition, and the reason.

    `latency_ms` is the duration of the old state.
    """

    at: datetime
    transition: str = Field(examples=["job_claim"])
    from_state: str | None = Field(examples=["queued"])
    to_state: str = Field(examples=["claimed"])
    who: str = Field(examples=["dispatch"])
    why: str = Field(examples=["matched"])
    task_id: str | None = Field(description="Celery task that made the transition, as in Flower; null: no task did")
    attempt: int | None = Field(description="number of the task's execution; the first one has 1", examples=[1])
    latency_ms: int | None = Field(description="milliseconds in `from_state`", examples=[180])


RESPONSES: dict[int | str, dict[str, Any]] = {
    400: {"description": "The body is not JSON in UTF-8"},
    401: {"description": "The token is missing, unknown, expired or revoked"},
    403: {"description": "The token lacks the scope, or is limited to accounts"},
    408: {"description": "The body did not arrive in time"},
    413: {"description": "The body is too large"},
    422: {"description": "A field is invalid; `errors` names it"},
    500: {"description": "Ostler failed; the log of web has the details"},
    503: {"description": "The request cannot be answered now; `Retry-After` says when to send it again"},
}

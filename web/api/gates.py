"""`/v1/gates`: the state of the gate of each upstream. While any gate is tripped, no repair of a sweep kills."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from models.upstream import gates
from web.api.database import Database
from web.api.schema import Shown


class Gate(Shown):
    """The gate of one upstream. A tripped gate stops reaping and the autoscaler, but it never stops dispatch.

    The tripped gate of Kubernetes also stops the retirements of the reconcilers.
    """

    upstream: str = Field(examples=["github"])
    state: str = Field(description="ok or tripped", examples=["ok"])
    open: bool = Field(description="true for ok, false for tripped; `state` replaces this field")
    closed_at: datetime | None = Field(description="time at which the gate tripped; null while it is ok")
    why: str | None = Field(description="why the gate is tripped", examples=["31 of 34 recent calls failed"])
    opened_at: datetime | None = Field(description="time of the last recovery of the gate")
    healthy_checks: int = Field(description="consecutive healthy checks since the gate tripped")
    needs: int = Field(description="consecutive healthy checks until the recovery; 0 while the gate is ok")
    checked_at: datetime | None = Field(description="time of the last check; null if there was none")
    calls: int = Field(description="calls of all processes in the minute before that check")
    errors: int = Field(description="failed calls in the same minute")


class Gates(BaseModel):
    """All gates."""

    items: list[Gate]


def router(database: Callable[[], Database]) -> APIRouter:
    """Return the route of gates."""
    routes = APIRouter(prefix="/v1/gates", tags=["gates"])

    @routes.get("", summary="List the gates of the upstreams", response_model=Gates)
    async def list_gates() -> dict[str, Any]:
        return {"items": await database().run(gates.read)}

    return routes

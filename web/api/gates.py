"""`/v1/gates`: the state of the gate of each upstream. While any gate is closed, no repair of a sweep kills."""

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
    """The gate of one upstream. A closed gate stops reaping and the autoscaler, but it never stops dispatch.

    The closed gate of Kubernetes also stops the retirements of the reconcilers.
    """

    upstream: str = Field(examples=["github"])
    open: bool
    closed_at: datetime | None = Field(description="time at which the gate closed; null while it is open")
    why: str | None = Field(description="why the gate is closed", examples=["31 of 34 recent calls failed"])
    opened_at: datetime | None = Field(description="time at which the gate last opened")
    healthy_checks: int = Field(description="consecutive healthy checks since the gate closed")
    needs: int = Field(description="consecutive healthy checks that open the gate; 0 while it is open")
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

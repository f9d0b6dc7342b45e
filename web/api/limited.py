"""Tokens that are limited to some accounts: which routes serve them, and what they see there.

A route serves them only if its function takes `Visible`, to pass it to its query. Any other route, also one that is
added later, answers 403 to them.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import Depends, Request
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from models.browse.api_tokens import Holder
from web.api.gate import HOLDER
from web.api.problems import Refusal


async def visible(request: Request) -> frozenset[int] | None:
    """Return the only accounts that the caller may see; None: all."""
    holder: Holder = request.scope[HOLDER]
    return holder.accounts


Visible = Annotated[frozenset[int] | None, Depends(visible)]


def is_by_account(route: BaseRoute) -> bool:
    """Return whether a route shows a caller only what is of its accounts."""
    return isinstance(route, APIRoute) and any(each.call is visible for each in route.dependant.dependencies)


async def refuse_limited(request: Request) -> None:
    """Refuse a limited token on a route that shows the whole fleet. Raises Refusal (403)."""
    holder: Holder | None = request.scope.get(HOLDER)  # the description needs no token
    if holder is None or holder.accounts is None or is_by_account(request.scope["route"]):
        return
    raise Refusal(
        HTTPStatus.FORBIDDEN,
        "limited-token",
        "This token is limited to accounts",
        "This path shows or changes the whole fleet; use a token that was created without `--account`.",
    )

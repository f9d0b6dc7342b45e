"""Tokens that are limited to some accounts: the routes that accept them, and the accounts that they may see.

A route accepts such a token only if its function has a parameter of type `Visible`, which it passes to its query. Every
other route answers 403, also a route that is added later.
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
    """Return the ids of the accounts that the caller may see, or None if it may see all."""
    holder: Holder = request.scope[HOLDER]
    return holder.accounts


Visible = Annotated[frozenset[int] | None, Depends(visible)]


def is_by_account(route: BaseRoute) -> bool:
    """Return whether a route limits what it shows to the accounts of its caller."""
    return isinstance(route, APIRoute) and any(each.call is visible for each in route.dependant.dependencies)


async def refuse_limited(request: Request) -> None:
    """Refuse a limited token on a route that shows the whole fleet. Raises Refusal (403)."""
    holder: Holder | None = request.scope.get(HOLDER)  # None for the OpenAPI description, which needs no token
    if holder is None or holder.accounts is None or is_by_account(request.scope["route"]):
        return
    raise Refusal(
        HTTPStatus.FORBIDDEN,
        "limited-token",
        "This token is limited to accounts",
        "This path shows or changes the whole fleet; use a token that was created without `--account`.",
    )

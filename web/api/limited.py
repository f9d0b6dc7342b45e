"""Tokens that are limited to some accounts. The holder of such a token may see only these accounts.

A route accepts such a token only if the function of the route has a parameter of type `Visible`. This function must
pass the parameter to its query. Every other route answers 403. A new route therefore refuses limited tokens by default.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import Depends, Request
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from models.api_tokens import Holder
from web.api.gate import HOLDER
from web.api.problems import Refusal


async def visible(request: Request) -> frozenset[int] | None:
    """Return the ids of the accounts that the caller may see, or None if the caller may see all accounts."""
    holder: Holder = request.scope[HOLDER]
    return holder.accounts


Visible = Annotated[frozenset[int] | None, Depends(visible)]


def is_by_account(route: BaseRoute) -> bool:
    """Return True if a route shows only the accounts that its caller may see; False if it shows the whole fleet."""
    return isinstance(route, APIRoute) and any(each.call is visible for each in route.dependant.dependencies)


async def refuse_limited(request: Request) -> None:
    """Refuse a limited token on a route that shows the whole fleet.

    Raises Refusal (403) if the token is limited and the route does not use `visible`.
    """
    holder: Holder | None = request.scope.get(HOLDER)  # None for the OpenAPI description, which needs no token
    if holder is None or holder.accounts is None or is_by_account(request.scope["route"]):
        return
    raise Refusal(
        HTTPStatus.FORBIDDEN,
        "limited-token",
        "This token is limited to some accounts",
        "This path shows or changes the whole fleet; use a token that was created without `--account`.",
    )

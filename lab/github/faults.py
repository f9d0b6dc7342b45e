"""Faults of this GitHub's API: wrong statuses and lost replies, for matching calls, a limited number of times.

A fault acts either before or after a request. In the first case, the request is not applied. In the second case, the
request is applied, and its answer is lost. Faults do not affect the lab's control routes. Every call of the API is
counted on arrival, with or without a fault.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


@dataclass(kw_only=True, eq=False)
class Fault:
    """Fault of the next `times` requests that match. Removing a fault releases the requests that it delays."""

    method: str
    path_regex: str
    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    times: int = 1
    after_apply: bool = False
    reset: bool = False
    delay_seconds: float = 0
    hits: int = 0

    def matches(self, scope: Scope) -> bool:
        """Return whether the fault affects this request."""
        return (
            self.hits < self.times
            and self.method.upper() in {"*", scope["method"]}
            and re.search(self.path_regex, scope["path"]) is not None
        )


class AbortableProtocol(HttpToolsProtocol):
    """Uvicorn's protocol, which also lets the app abort the connection by `scope["state"]["transport"]`."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Store the transport of a new connection for the app."""
        super().connection_made(transport)
        self.app_state = {**self.app_state, "transport": transport}


CHECK_EVERY = 0.2
"""Seconds between two checks whether the fault that delays a request is still in force."""

_NOT_THE_API = ("/_lab", "/_runner")
_NAMES = ((r"^/orgs/[^/]+", "/orgs/{org}"), (r"^/repos/[^/]+/[^/]+", "/repos/{owner}/{repo}"), (r"/\d+", "/{id}"))


def endpoint(method: str, path: str) -> str:
    """Return the endpoint of a call as GitHub's documentation writes it, with placeholders for names and ids."""
    for pattern, name in _NAMES:
        path = re.sub(pattern, name, path)
    return f"{method} {path}"


class Faults:
    """The app behind its faults. It counts the calls of each endpoint of the API."""

    def __init__(self, app: ASGIApp) -> None:
        self.active: list[Fault] = []
        self.calls: Counter[str] = Counter()
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or apply a fault to it."""
        fault = None
        if scope["type"] == "http" and not scope["path"].startswith(_NOT_THE_API):
            self.calls[endpoint(scope["method"], scope["path"])] += 1
        if self.active and scope["type"] == "http" and not scope["path"].startswith("/_lab"):
            fault = next((each for each in self.active if each.matches(scope)), None)
        if fault is None:
            await self._app(scope, receive, send)
            return
        fault.hits += 1
        await self._delay(fault)
        if fault.after_apply:
            await self._app(scope, receive, _discard)
        if fault.reset:
            await _abort(scope, receive)
        else:
            await _answer(fault, send)

    async def _delay(self, fault: Fault) -> None:
        """Wait until the fault's delay is over or the fault is removed."""
        until = time.monotonic() + fault.delay_seconds
        while (left := until - time.monotonic()) > 0 and fault in self.active:  # noqa: ASYNC110 - a list cannot notify
            await asyncio.sleep(min(left, CHECK_EVERY))


async def _discard(message: Message) -> None:
    """Discard a part of an answer."""


async def _abort(scope: Scope, receive: Receive) -> None:
    transport: asyncio.Transport = scope["state"]["transport"]
    transport.abort()
    # If this function returned before Uvicorn noticed the closed connection, Uvicorn would answer 500.
    while (await receive())["type"] != "http.disconnect":
        continue


async def _answer(fault: Fault, send: Send) -> None:
    body = json.dumps({"message": "A fault of the lab", "documentation_url": "https://docs.github.com/rest"}).encode()
    headers: dict[str, Any] = {"content-type": "application/json", "content-length": str(len(body)), **fault.headers}
    raw = [(name.lower().encode(), str(value).encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": fault.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})

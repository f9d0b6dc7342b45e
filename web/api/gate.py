"""Gate of the API: the checks that every request below `/api` must pass first.

The gate reads the body, with a limit in bytes and in seconds. Every path that is not in `OPEN` needs a token, even a
path that does not exist. A new route is therefore always protected, and a caller without a token cannot find out which
paths exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from models import api_tokens
from models.api_tokens import Holder, Refused
from ostler import telemetry
from ostler.clock import utcnow
from ostler.logging import get_logger
from ostler.reasons import cause_of
from ostler.secrets import Secret
from rules.changes import Author, Via
from rules.token_scopes import needed_for
from web.api.database import Database
from web.api.problems import Refusal, database_failed
from web.edge.limits import BODY_WITHIN
from web.edge.refused_log import RefusedLog

LARGEST_BODY = 16 * 1024
OPEN = frozenset(
    {
        "/docs",
        "/docs/init.js",
        "/docs/swagger-ui-bundle.js",
        "/docs/swagger-ui.css",
        "/docs/favicon.png",
        "/openapi.json",
    }
)
"""Paths that need no token.

The answers contain only the documentation of the API and the files of its pages, and no data from the database.
"""

_SCHEME = "bearer "
_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "POST", "PATCH", "DELETE"})
HOLDER = "ostler.holder"
_EVERY_ANSWER = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))

log = get_logger(__name__)


def author(request: Request, via: Via = Via.API) -> Author:
    """Return the token of a request as the author of a change that the request makes now."""
    holder: Holder = request.scope[HOLDER]
    return Author(holder.name, via, utcnow())


class Gate:
    """An application that passes a request to the application `inner` after all checks.

    `database` is called for each request, because the database does not exist before the process has started.
    """

    def __init__(self, inner: ASGIApp, *, database: Callable[[], Database]) -> None:
        self._inner = inner
        self._database = database
        self._refused = RefusedLog(log, "api.unauthorized")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            raise RuntimeError(f"/api supports only HTTP requests, but received a scope of type {scope['type']!r}")
        reply = _Reply(scope["method"], send)
        try:
            await self._pass(scope, receive, reply)
        except ClientDisconnect:
            return
        except Exception as error:  # noqa: BLE001  for any error, the caller gets a problem and the log the details
            answer = _refusal_of(error, path=_path(scope)).response()
            if not reply.started:
                await answer(scope, receive, reply)

    async def _pass(self, scope: Scope, receive: Receive, reply: _Reply) -> None:
        inner_scope = {**scope, "method": "GET"} if scope["method"] == "HEAD" else dict(scope)
        if _path(scope) not in OPEN:
            inner_scope[HOLDER] = await self._admit(Request(scope))
        body = await read_body(Request(scope, receive), largest=LARGEST_BODY)
        await self._inner(inner_scope, _replay(body, receive), reply)

    async def _admit(self, request: Request) -> Holder:
        """Return the holder of the token of a request.

        Raises Refusal (401) if there is no valid token, and Refusal (403) if the token lacks the scope for the method.
        """
        header = request.headers.get("authorization", "")
        if not header.lower().startswith(_SCHEME):
            raise self._unauthorized("missing", request)
        token = header[len(_SCHEME) :].strip()
        if not api_tokens.well_formed(token):
            raise self._unauthorized(Refused.MALFORMED, request)
        secret = Secret(token)
        found = await self._database().run(lambda db: api_tokens.verify(db, secret, now=utcnow()))
        if isinstance(found, Refused):
            raise self._unauthorized(found, request)
        needed = needed_for(request.method)
        if needed not in found.scopes:
            raise Refusal(
                HTTPStatus.FORBIDDEN,
                "insufficient-scope",
                f"This token lacks the scope {needed}",
                f"Create a token with this scope: `ostler token create NAME --scope {needed}`.",
                headers={"WWW-Authenticate": f'Bearer realm="ostler", error="insufficient_scope", scope="{needed}"'},
            )
        return found

    def _unauthorized(self, why: str, request: Request) -> Refusal:
        """Count a refused token, and return the refusal (401) for it.

        The refusal does not contain the reason. The log contains the reason, but at most one line a second is written.
        """
        telemetry.API_UNAUTHORIZED.labels(why).inc()
        self._refused.add(why=str(why), client=request.client.host if request.client is not None else None)
        return Refusal(
            HTTPStatus.UNAUTHORIZED,
            "unauthorized",
            "A valid API token is needed",
            "Send `Authorization: Bearer TOKEN`. `ostler token create NAME` creates a token.",
            headers={"WWW-Authenticate": 'Bearer realm="ostler"'},
        )


class _Reply:
    """Sends an answer and counts it. `started` is True once the answer has begun.

    The answer to HEAD is sent without a body.
    """

    def __init__(self, method: str, send: Send) -> None:
        self.started = False
        self._method = method
        self._send = send

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            message = {**message, "headers": [*message.get("headers", ()), *_guarded(message)]}
            method = self._method if self._method in _METHODS else "other"
            telemetry.API_REQUESTS.labels(method, str(message["status"])).inc()
        elif self._method == "HEAD":
            message = {**message, "body": b""}
        await self._send(message)


def _guarded(start: Message) -> list[tuple[bytes, bytes]]:
    """Return the headers of `_EVERY_ANSWER` that an answer does not have yet.

    These headers forbid caching and content sniffing.
    """
    there = {name.lower() for name, _ in start.get("headers", ())}
    return [(name, value) for name, value in _EVERY_ANSWER if name not in there]


def _refusal_of(error: Exception, *, path: str) -> Refusal:
    """Return the refusal to send for a request that ended with `error`.

    An error that is not a Refusal is logged.
    """
    if isinstance(error, Refusal):
        return error
    if isinstance(error, DBAPIError | PoolTimeout):  # Postgres failed while the token was verified
        return database_failed(error)
    log.error("api.request_failed", path=path, error=cause_of(error), exc_info=error)
    return Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "internal", "Ostler failed; the log of web has the details")


def _path(scope: Scope) -> str:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


async def read_body(request: Request, *, largest: int) -> bytes:
    """Return the body of a request.

    Raises Refusal (413) if the body has more than `largest` bytes, and Refusal (408) if it does not arrive in time.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_WITHIN):
            async for chunk in request.stream():
                body += chunk
                if len(body) > largest:  # counted, because Content-Length might be wrong
                    raise Refusal(
                        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                        "body-too-large",
                        "The body is too large",
                        f"Send at most {largest} bytes.",
                        headers={"Connection": "close"},
                    )
    except TimeoutError:
        raise Refusal(
            HTTPStatus.REQUEST_TIMEOUT,
            "body-too-slow",
            "The body did not arrive in time",
            f"Send the whole body within {BODY_WITHIN:.0f} seconds.",
            headers={"Connection": "close"},
        ) from None
    return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    pending = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return pending.pop() if pending else await receive()

    return again

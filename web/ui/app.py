"""The dashboard as one application, which is mounted at `/ui`.

Every request passes the checks of `Dashboard` first. Every path outside `OPEN` and `OF_PROVIDER` needs a session, even
a path that does not exist. A new page is therefore always protected.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import urlencode, urlsplit

from fastapi import FastAPI
from pydantic import ValidationError
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route, Router
from starlette.types import Message, Receive, Scope, Send

from models import api_tokens
from models.api_tokens import Holder, Refused
from ostler.clock import utcnow
from ostler.logging import get_logger
from ostler.reasons import cause_of
from ostler.secrets import Secret
from ostler.settings import OIDC_CALLBACK, Settings
from rules.token_scopes import TokenScope
from web.api.database import Database
from web.api.problems import Refusal, database_failed
from web.edge.refused_log import RefusedLog
from web.process.publisher import Publisher
from web.ui import logins, sessions
from web.ui.forms import Forms, foreign, read_form
from web.ui.logins import Logins
from web.ui.pages import Pages
from web.ui.rendering import ASSETS, HOLDER, address, compile_templates, page, wants_stream
from web.ui.sessions import SESSION, Sessions, holder_of
from web.ui.streams import MEDIA_TYPE, RELOAD, Streams

AGAIN_IN = 5
"""Seconds after which the browser loads a page again that Postgres could not answer."""

OPEN = frozenset({"/ui/login", *(f"/ui/static/{name}" for name in ASSETS)})
"""Paths that need no session. The answers contain no data from the database."""
OF_PROVIDER = frozenset({f"{logins.PATH}/login", OIDC_CALLBACK})
"""Further paths without a session, if people can log in through an OpenID provider."""

_HEADERS = {
    b"content-security-policy": (
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    # With `no-referrer`, browsers would send `Origin: null` with the forms, and the check of their origin would fail.
    b"referrer-policy": b"same-origin",
    b"cache-control": b"no-store",
}

log = get_logger(__name__)


class Dashboard:
    """An application that passes a request to a page after all checks, and turns every error into a page.

    `database`, `streams` and `publisher` are called for each request, because they do not exist before the process has
    started.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        database: Callable[[], Database],
        streams: Callable[[], Streams],
        publisher: Callable[[], Publisher],
    ) -> None:
        self._database = database
        self._sessions = Sessions(settings.encryption_keys)
        self._refused = RefusedLog(log, "ui.login_refused")
        self._provider = settings.oidc_issuer
        by_provider = []
        if settings.oidc_issuer is not None:
            found = Logins(settings, sessions=self._sessions, database=database, local=_local)
            by_provider = [Route("/oidc/login", found.begin), Route("/oidc/callback", found.finish)]
        pages = Pages(settings, database=database, streams=streams)
        forms = Forms(sessions=self._sessions, database=database, publisher=publisher)
        self._router = Router(
            [
                Route("/", pages.route(pages.overview)),
                Route("/jobs", pages.route(pages.jobs)),
                Route("/jobs/{job_id}", pages.route(pages.job)),
                Route("/pods", pages.route(pages.pods)),
                Route("/pods/{name}", pages.route(pages.pod)),
                Route("/pools", pages.route(pages.pools)),
                Route("/pools/{pool_id}", pages.route(pages.pool)),
                Route("/accounts/{account_id}", pages.route(pages.account)),
                Route("/nodes", pages.route(pages.nodes)),
                Route("/sweeps", pages.route(pages.sweeps)),
                Route("/repairs", pages.route(pages.repairs)),
                Route("/waits", pages.route(pages.waits, live=False)),
                Route("/usage", pages.route(pages.usage, live=False)),
                Route("/changes", pages.route(pages.changes)),
                Route("/change", forms.confirm),
                Route("/change", forms.make, methods=["POST"]),
                Route("/login", self._login, methods=["GET", "POST"]),
                Route("/logout", self._logout, methods=["POST"]),
                *by_provider,
                Route("/static/{name}", _asset),
            ],
            redirect_slashes=False,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            raise RuntimeError(f"/ui supports only HTTP requests, but received a scope of type {scope['type']!r}")
        request = Request(scope, receive)
        reply = _Reply(send)
        try:
            answer = await self._check(request)
            if answer is None:
                await self._router(scope, receive, reply)
                return
        except ClientDisconnect:
            return
        except Exception as error:  # noqa: BLE001  for any error, the reader gets a page and the log the details
            if reply.started:
                return
            answer = _failed(request, error)
        await answer(scope, receive, reply)

    async def _check(self, request: Request) -> Response | None:
        """Return the answer to a request without a session, or None if the request may pass."""
        path = request.url.path
        if path in OPEN or (self._provider is not None and path in OF_PROVIDER):
            return None
        now = utcnow()
        session = self._sessions.read(request, now=now)
        if session is None:
            return _to_login(request)
        holder = await self._database().run(lambda db: holder_of(db, session, now=now))
        if holder is None:
            return _to_login(request)
        request.scope[HOLDER], request.scope[SESSION] = holder, session
        return None

    async def _login(self, request: Request) -> Response:
        if request.method != "POST":
            return self._login_page(request, after=_local(request.query_params.get("next")))
        if not sessions.is_from_own_page(request):
            raise foreign()
        form = await read_form(request)
        after = _local(form.get("next"))
        by_link = "link" in form
        found = await self._verify(form.get("link" if by_link else "token", "").strip(), by_link=by_link)
        if isinstance(found, Refused) or TokenScope.READ not in found.scopes:
            why = str(found) if isinstance(found, Refused) else "scope"
            self._refused.add(why=why, client=request.client.host if request.client is not None else None)
            problem = (
                "This link is not valid. A link works once, for 5 minutes."
                if by_link
                else "This token is not valid. It may be misspelt, expired or revoked."
                if isinstance(found, Refused)
                else "This token lacks the scope read. Create a token with `ostler token create NAME --scope read`."
            )
            return self._login_page(request, after=after, problem=problem)
        response = RedirectResponse(after, HTTPStatus.SEE_OTHER)
        self._sessions.begin(response, found, secure=sessions.is_https(request), now=utcnow())
        log.info("ui.logged_in", token_name=found.name)
        return response

    def _login_page(self, request: Request, *, after: str, problem: str | None = None) -> Response:
        status = HTTPStatus.OK if problem is None else HTTPStatus.FORBIDDEN
        provider = None if self._provider is None else urlsplit(self._provider).hostname
        # The link itself changes nothing, because programs open links to show a preview. Its form logs in.
        link = None if problem is not None else request.query_params.get("link")
        return page(request, "login.html", status=status, next=after, problem=problem, provider=provider, link=link)

    async def _verify(self, token: str, *, by_link: bool) -> Holder | Refused:
        if not api_tokens.well_formed(token):
            return Refused.MALFORMED
        secret, check = Secret(token), api_tokens.use_link if by_link else api_tokens.verify
        return await self._database().run(lambda db: check(db, secret, now=utcnow()))

    async def _logout(self, request: Request) -> Response:
        if not sessions.is_from_own_page(request):
            raise foreign()
        response = RedirectResponse("/ui/login", HTTPStatus.SEE_OTHER)
        sessions.end(response)
        return response


def mount_ui(
    app: FastAPI,
    settings: Settings,
    *,
    database: Callable[[], Database],
    streams: Callable[[], Streams],
    publisher: Callable[[], Publisher],
) -> None:
    """Mount the dashboard at `/ui` of `app`, and redirect `/` and `/ui` to its first page.

    Starlette's own mount does not match a path that contains a newline. This mount matches such a path.
    """
    compile_templates()

    async def first_page(_request: Request) -> Response:
        headers = {name.decode(): value.decode() for name, value in _HEADERS.items()}
        return RedirectResponse("/ui/", HTTPStatus.SEE_OTHER, headers=headers)

    for path in ("/", "/ui"):
        app.add_route(path, first_page, methods=["GET"], include_in_schema=False)
    mount = Mount("/ui", app=Dashboard(settings, database=database, streams=streams, publisher=publisher))
    mount.path_regex = re.compile(mount.path_regex.pattern, re.DOTALL)
    app.router.routes.append(mount)


class _Reply:
    """Sends an answer with the headers of every answer. `started` is True once the answer has begun."""

    def __init__(self, send: Send) -> None:
        self.started = False
        self._send = send

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            there = {name.lower() for name, _ in message.get("headers", ())}
            added = [(name, value) for name, value in _HEADERS.items() if name not in there]
            message = {**message, "headers": [*message.get("headers", ()), *added]}
        await self._send(message)


async def _asset(request: Request) -> Response:
    found = ASSETS.get(request.path_params["name"])
    if found is None:
        raise HTTPException(HTTPStatus.NOT_FOUND)
    content, kind = found
    return Response(content, media_type=kind, headers={"Cache-Control": "max-age=3600"})


def _to_login(request: Request) -> Response:
    """Return the answer that leads to the login page, and back to this page after the login.

    A browser does not send the cookie when a reader follows a link from another site. In this case, the answer makes
    the browser load the page again from this site.
    """
    if request.headers.get("sec-fetch-site") == "cross-site" and request.method == "GET":
        return page(request, "again.html")
    login = "/ui/login"
    if request.method == "GET":
        login += "?" + urlencode({"next": address(request)})
    if wants_stream(request):
        return Response(RELOAD, media_type=MEDIA_TYPE)  # the page that is loaded again shows the login
    return RedirectResponse(login, HTTPStatus.SEE_OTHER)


def _local(path: str | None) -> str:
    """Return a path of the dashboard. Any other address is replaced by the first page."""
    if path is None or not path.startswith("/ui/") or path.startswith(("/ui/login", "/ui/logout", logins.PATH)):
        return "/ui/"
    return path


def _failed(request: Request, error: Exception) -> Response:
    """Return the page for a request that ended with `error`. An unexpected error is logged."""
    if isinstance(error, DBAPIError | PoolTimeout):
        error = database_failed(error)
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        error = Refusal(
            HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-field", "A filter is not valid", f"{field}: {first['msg']}."
        )
    if isinstance(error, HTTPException):
        status = HTTPStatus(error.status_code)
        detail = "There is no such page." if status is HTTPStatus.NOT_FOUND else None
        error = Refusal(status, "page", status.phrase, detail, headers=error.headers)
    if not isinstance(error, Refusal):
        log.error("ui.request_failed", path=request.url.path, error=cause_of(error), exc_info=error)
        error = Refusal(
            HTTPStatus.INTERNAL_SERVER_ERROR, "internal", "Ostler failed", "The log of web has the details."
        )
    # The code in the address of a login is spent after its first use, so that page must not be loaded again.
    loads_again = request.method == "GET" and request.url.path not in OPEN | OF_PROVIDER
    away = error.status is HTTPStatus.SERVICE_UNAVAILABLE and loads_again
    if away:
        error.detail = (
            f"Postgres failed or did not answer, or too many requests wait. This page tries again every {AGAIN_IN} "
            "seconds."
        )
    again = AGAIN_IN if away else None
    answer = page(request, "message.html", status=error.status, title=error.title, detail=error.detail, again=again)
    answer.headers.update(error.headers or {})
    return answer

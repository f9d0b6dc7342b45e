"""GitHub's REST API, as far as a fleet of just-in-time runners uses it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lab.github.entities import Account, stamp
from lab.github.identity import Identity
from lab.github.payloads import job_view
from lab.github.sender import Sender
from lab.github.world import NameTaken, RunnerBusy, World

LONGEST_NAME = 64
MOST_LABELS = 100
LARGEST_PAGE = 100
NOT_FOUND = "Not Found"


@dataclass(frozen=True, kw_only=True)
class Caller:
    """An authenticated call: the account of its installation and its answer's rate-limit headers."""

    account: Account
    headers: dict[str, str]

    def answer(self, status: HTTPStatus, body: Any) -> Response:
        """Return a JSON answer with the rate-limit headers."""
        return JSONResponse(body, status_code=status, headers=self.headers)

    def refuse(self, status: HTTPStatus, message: str) -> Response:
        """Return an error in GitHub's shape."""
        return self.answer(status, _error(message))


class Rest:
    """The routes and what they need."""

    def __init__(self, *, world: World, identity: Identity, sender: Sender) -> None:
        self._world = world
        self._identity = identity
        self._sender = sender

    def routes(self) -> list[Route]:
        """Return every route of the API."""
        routes = [
            Route("/app/installations/{installation:int}/access_tokens", self.access_token, methods=["POST"]),
            Route("/app/hook/deliveries", self.list_deliveries, methods=["GET"]),
            Route("/app/hook/deliveries/{id:int}/attempts", self.attempt_delivery, methods=["POST"]),
            Route("/repos/{owner}/{repo}/actions/jobs/{id:int}", self._guard(self.get_job, "core"), methods=["GET"]),
        ]
        for prefix in ("/orgs/{org}", "/repos/{owner}/{repo}"):
            runners = f"{prefix}/actions/runners"
            mint = self._guard(self.mint, "actions_runner_registration")
            routes += [
                Route(f"{runners}/generate-jitconfig", mint, methods=["POST"]),
                Route(runners, self._guard(self.list_runners, "core"), methods=["GET"]),
                Route(f"{runners}/{{id:int}}", self._guard(self.get_runner, "core"), methods=["GET"]),
                Route(f"{runners}/{{id:int}}", self._guard(self.delete_runner, "core"), methods=["DELETE"]),
            ]
        return routes

    # The App itself

    async def access_token(self, request: Request) -> Response:
        """Issue an installation token to the App."""
        if refusal := self._identity.app_refusal(request.headers.get("authorization", "")):
            return JSONResponse(_error(refusal), status_code=HTTPStatus.UNAUTHORIZED)
        installation = int(request.path_params["installation"])
        if self._world.installation(installation) is None:
            return JSONResponse(_error(NOT_FOUND), status_code=HTTPStatus.NOT_FOUND)
        token, expires = self._identity.issue(installation)
        body = {
            "token": token,
            "expires_at": stamp(datetime.fromtimestamp(expires, UTC)),
            "permissions": {
                "actions": "read",
                "administration": "write",
                "metadata": "read",
                "organization_self_hosted_runners": "write",
            },
            "repository_selection": "all",
        }
        return JSONResponse(body, status_code=HTTPStatus.CREATED)

    async def list_deliveries(self, request: Request) -> Response:
        """List webhook deliveries, newest first, paged by a cursor."""
        if refusal := self._identity.app_refusal(request.headers.get("authorization", "")):
            return JSONResponse(_error(refusal), status_code=HTTPStatus.UNAUTHORIZED)
        per_page = min(LARGEST_PAGE, _number(request, "per_page", 30))
        cursor = _number(request, "cursor", 0)
        found = [
            each
            for each in reversed(self._sender.deliveries.values())
            if each.delivered_at and (not cursor or each.id < cursor)
        ]
        page = found[:per_page]
        headers = {}
        if len(found) > len(page):
            url = str(request.url.replace(query=f"per_page={per_page}&cursor={page[-1].id}"))
            headers["link"] = f'<{url}>; rel="next"'
        return JSONResponse([each.view() for each in page], headers=headers)

    async def attempt_delivery(self, request: Request) -> Response:
        """Send a delivery again."""
        if refusal := self._identity.app_refusal(request.headers.get("authorization", "")):
            return JSONResponse(_error(refusal), status_code=HTTPStatus.UNAUTHORIZED)
        wanted = int(request.path_params["id"])
        delivery = next((each for each in self._sender.deliveries.values() if each.id == wanted), None)
        if delivery is None or not self._sender.redeliver(delivery.guid):
            return JSONResponse(_error(NOT_FOUND), status_code=HTTPStatus.NOT_FOUND)
        return JSONResponse({}, status_code=HTTPStatus.ACCEPTED)

    # Runners

    async def mint(self, request: Request, caller: Caller) -> Response:
        """Register a just-in-time runner."""
        scope = self._scope(request, caller)
        if scope is None:
            return caller.refuse(HTTPStatus.NOT_FOUND, NOT_FOUND)
        try:
            body = json.loads(await request.body())
        except ValueError:
            return caller.refuse(HTTPStatus.BAD_REQUEST, "Problems parsing JSON")
        if problem := _problem(body):
            return caller.refuse(HTTPStatus.UNPROCESSABLE_ENTITY, problem)
        try:
            runner, jit = self._world.register(
                scope=scope, name=body["name"], labels=tuple(body["labels"]), group_id=body["runner_group_id"]
            )
        except NameTaken:
            message = "Already exists - A runner with the name already exists."
            return caller.refuse(HTTPStatus.CONFLICT, message)
        return caller.answer(HTTPStatus.CREATED, {"runner": runner.view(), "encoded_jit_config": jit})

    async def list_runners(self, request: Request, caller: Caller) -> Response:
        """List the runners of a scope, by name or by page."""
        scope = self._scope(request, caller)
        if scope is None:
            return caller.refuse(HTTPStatus.NOT_FOUND, NOT_FOUND)
        if name := request.query_params.get("name"):
            named = self._world.named(scope, name)
            runners = [named] if named else []
        else:
            runners = self._world.in_scope(scope)
        per_page = min(LARGEST_PAGE, max(1, _number(request, "per_page", 30)))
        first = (max(1, _number(request, "page", 1)) - 1) * per_page
        page = [runner.view() for runner in runners[first : first + per_page]]
        return caller.answer(HTTPStatus.OK, {"total_count": len(runners), "runners": page})

    async def get_runner(self, request: Request, caller: Caller) -> Response:
        """Show a runner."""
        runner = self._world.runners.get(int(request.path_params["id"]))
        if runner is None or runner.scope != self._scope(request, caller):
            return caller.refuse(HTTPStatus.NOT_FOUND, NOT_FOUND)
        return caller.answer(HTTPStatus.OK, runner.view())

    async def delete_runner(self, request: Request, caller: Caller) -> Response:
        """Deregister a runner, unless it is busy."""
        runner = self._world.runners.get(int(request.path_params["id"]))
        if runner is None or runner.scope != self._scope(request, caller):
            return caller.refuse(HTTPStatus.NOT_FOUND, NOT_FOUND)
        try:
            self._world.deregister(runner)
        except RunnerBusy:
            message = f'Bad request - Runner "{runner.name}" is still running a job"'
            return caller.refuse(HTTPStatus.UNPROCESSABLE_ENTITY, message)
        return Response(status_code=HTTPStatus.NO_CONTENT, headers=caller.headers)

    # Jobs

    async def get_job(self, request: Request, caller: Caller) -> Response:
        """Show a job."""
        job = self._world.jobs.get(int(request.path_params["id"]))
        full_name = f"{request.path_params['owner']}/{request.path_params['repo']}"
        if job is None or job.repository is not self._world.repository(full_name):
            return caller.refuse(HTTPStatus.NOT_FOUND, NOT_FOUND)
        return caller.answer(HTTPStatus.OK, job_view(job))

    # Shared

    def _guard(
        self, handler: Callable[[Request, Caller], Awaitable[Response]], resource: str
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return the handler behind authentication, the rate limit and the installation's reach."""

        async def guarded(request: Request) -> Response:
            installation = self._identity.installation_of(request.headers.get("authorization", ""))
            account = self._world.installation(installation) if installation is not None else None
            if installation is None or account is None:
                return JSONResponse(_error("Bad credentials"), status_code=HTTPStatus.UNAUTHORIZED)
            headers, allowed = self._identity.count(installation, resource)
            caller = Caller(account=account, headers=headers)
            if not allowed:
                return caller.refuse(HTTPStatus.FORBIDDEN, "API rate limit exceeded for installation.")
            login = request.path_params.get("org") or request.path_params.get("owner", "")
            if login.lower() != account.login.lower():
                if login.lower() in self._world.accounts:
                    return caller.refuse(HTTPStatus.FORBIDDEN, "Resource not accessible by integration")
                return caller.refuse(HTTPStatus.NOT_FOUND, NOT_FOUND)
            return await handler(request, caller)

        return guarded

    def _scope(self, request: Request, caller: Caller) -> str | None:
        """Return the scope that a path names, or None when there is no such thing."""
        if "org" in request.path_params:
            return f"orgs/{caller.account.login}" if caller.account.type == "Organization" else None
        repository = caller.account.repositories.get(request.path_params["repo"].lower())
        return f"repos/{repository.full_name}" if repository else None


def _problem(body: Any) -> str | None:
    """Return why the body of a mint is refused, or None."""
    if not isinstance(body, dict):
        return "Invalid request."
    name, labels, group = body.get("name"), body.get("labels"), body.get("runner_group_id")
    if not isinstance(name, str) or not name or len(name) > LONGEST_NAME:
        return "Invalid request. name must be 1 to 64 characters."
    if not isinstance(group, int) or isinstance(group, bool) or group < 1:
        return 'Invalid request. "runner_group_id" wasn\'t supplied.'
    if (
        not isinstance(labels, list)
        or not 1 <= len(labels) <= MOST_LABELS
        or not all(isinstance(label, str) and label for label in labels)
    ):
        return "Invalid request. labels must be 1 to 100 strings."
    return None


def _number(request: Request, name: str, default: int) -> int:
    value = request.query_params.get(name, "")
    return int(value) if value.isdecimal() else default


def _error(message: str) -> dict[str, str]:
    return {"message": message, "documentation_url": "https://docs.github.com/rest"}

"""GitHub's REST API, limited to the calls of a fleet of just-in-time runners."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from random import Random
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lab.github.entities import Account, Repository, Run, stamp
from lab.github.faults import CHECK_EVERY, endpoint
from lab.github.identity import App, Identity
from lab.github.limits import Limits
from lab.github.payloads import app_view, check_run_view, group_view, installation_view, job_view, run_view
from lab.github.sender import Sender
from lab.github.world import TOKEN_SECONDS, NameTaken, NoSuchGroup, RunnerBusy, World

LONGEST_NAME = 64
MOST_LABELS = 100
LARGEST_PAGE = 100
MOST_RUNS = 1000
"""Largest number of runs in a list of one status ("List workflow runs for a repository")."""

Item = TypeVar("Item")
NOT_FOUND = "Not Found"
SUSPENDED = "This installation has been suspended"
NOT_ACCESSIBLE = "Resource not accessible by integration"


@dataclass(frozen=True, kw_only=True)
class Caller:
    """An authenticated call: the account of its installation, and the rate-limit headers of its answer."""

    account: Account
    headers: dict[str, str]

    def answer(self, status: HTTPStatus, body: Any) -> Response:
        """Return a JSON answer with the rate-limit headers."""
        return JSONResponse(body, status_code=status, headers=self.headers)

    def refuse(self, status: HTTPStatus, message: str) -> Response:
        """Return an error in GitHub's format."""
        return self.answer(status, _error(message))


class Rest:
    """The routes of the API and the parts that they use."""

    def __init__(self, *, world: World, identity: Identity, sender: Sender, limits: Limits, rng: Random) -> None:
        self._world = world
        self._identity = identity
        self._sender = sender
        self._limits = limits
        self._rng = rng

    def routes(self) -> list[Route]:
        """Return every route of the API."""
        routes = [
            Route("/app/installations/{installation:int}/access_tokens", self.access_token, methods=["POST"]),
            Route("/app", self.get_app, methods=["GET"]),
            Route("/apps/{slug}", self.get_public_app, methods=["GET"]),
            Route("/app/installations", self.list_installations, methods=["GET"]),
            Route("/app/installations/{installation:int}", self.get_installation, methods=["GET"]),
            Route("/app/hook/deliveries", self.list_deliveries, methods=["GET"]),
            Route("/app/hook/deliveries/{id:int}/attempts", self.attempt_delivery, methods=["POST"]),
        ]
        groups = "/orgs/{org}/actions/runner-groups"
        routes += [
            Route(groups, self._guard(self.list_groups, "core"), methods=["GET"]),
            Route(f"{groups}/{{id:int}}", self._guard(self.get_group, "core"), methods=["GET"]),
        ]
        for prefix in ("/repos/{owner}/{repo}", "/repositories/{repository:int}"):
            for path, handler in (
                ("jobs/{id:int}", self.get_job),
                ("runs", self.list_runs),
                ("runs/{id:int}", self.get_run),
                ("runs/{id:int}/jobs", self.list_run_jobs),
            ):
                routes.append(Route(f"{prefix}/actions/{path}", self._guard(handler, "core"), methods=["GET"]))
            routes += [
                Route(f"{prefix}/check-runs", self._guard(self.create_check_run, "core"), methods=["POST"]),
                Route(f"{prefix}/check-runs/{{id:int}}", self._guard(self.update_check_run, "core"), methods=["PATCH"]),
            ]
        for prefix in ("/orgs/{org}", "/repos/{owner}/{repo}", "/repositories/{repository:int}"):
            runners = f"{prefix}/actions/runners"
            mint = self._guard(self.mint, "actions_runner_registration")
            routes += [
                Route(f"{runners}/generate-jitconfig", mint, methods=["POST"]),
                Route(
                    f"{runners}/registration-token",
                    self._guard(self.registration_token, "actions_runner_registration"),
                    methods=["POST"],
                ),
                Route(runners, self._guard(self.list_runners, "core"), methods=["GET"]),
                Route(
                    f"{runners}/deprecations/{{version}}", self._guard(self.get_deprecation, "core"), methods=["GET"]
                ),
                Route(f"{runners}/{{id:int}}", self._guard(self.get_runner, "core"), methods=["GET"]),
                Route(f"{runners}/{{id:int}}", self._guard(self.delete_runner, "core"), methods=["DELETE"]),
            ]
        return routes

    # The App

    async def access_token(self, request: Request) -> Response:
        """Issue an installation token to the App."""
        app = self._identity.app_of(request.headers.get("authorization", ""))
        if isinstance(app, str):
            return JSONResponse(_error(app), status_code=HTTPStatus.UNAUTHORIZED)
        installation = int(request.path_params["installation"])
        account = self._world.installation(installation)
        if account is None:
            return JSONResponse(_error(NOT_FOUND), status_code=HTTPStatus.NOT_FOUND)
        if account.suspended:
            return JSONResponse(_error(SUSPENDED), status_code=HTTPStatus.FORBIDDEN)
        token, expires = self._identity.issue(installation, app)
        body = {
            "token": token,
            "expires_at": stamp(datetime.fromtimestamp(expires, UTC)),
            "permissions": dict(app.permissions),
            "repository_selection": "all",
        }
        return JSONResponse(body, status_code=HTTPStatus.CREATED)

    async def get_app(self, request: Request) -> Response:
        """Show the App that sends the call."""
        app = self._identity.app_of(request.headers.get("authorization", ""))
        if isinstance(app, str):
            return JSONResponse(_error(app), status_code=HTTPStatus.UNAUTHORIZED)
        return JSONResponse(self._view_of(app))

    async def get_public_app(self, request: Request) -> Response:
        """Show a public App to any caller."""
        app = self._identity.latest
        view = self._view_of(app)
        if not app.public or view["slug"] != request.path_params["slug"]:
            return JSONResponse(_error("Not Found"), status_code=HTTPStatus.NOT_FOUND)
        return JSONResponse(view)

    def _view_of(self, app: App) -> dict[str, Any]:
        owner = next((each for each in self._world.accounts.values() if each.type == app.owner_type), None)
        return app_view(app_id=app.id, name=app.name, owner=owner, permissions=app.permissions, events=app.events)

    async def list_installations(self, request: Request) -> Response:
        """List the installations of the App."""
        app = self._identity.app_of(request.headers.get("authorization", ""))
        if isinstance(app, str):
            return JSONResponse(_error(app), status_code=HTTPStatus.UNAUTHORIZED)
        accounts = [account for account in self._world.accounts.values() if account.installed]
        return JSONResponse(
            [
                installation_view(each, app_id=app.id, permissions=app.permissions, events=app.events)
                for each in _page(request, accounts)
            ]
        )

    async def get_installation(self, request: Request) -> Response:
        """Show an installation with the current login of its account."""
        if refusal := self._identity.app_refusal(request.headers.get("authorization", "")):
            return JSONResponse(_error(refusal), status_code=HTTPStatus.UNAUTHORIZED)
        account = self._world.installation(int(request.path_params["installation"]))
        if account is None:
            return JSONResponse(_error(NOT_FOUND), status_code=HTTPStatus.NOT_FOUND)
        return JSONResponse(installation_view(account, app_id=self._identity.app_id))

    async def list_deliveries(self, request: Request) -> Response:
        """List attempts of webhook deliveries, newest first, paged by an opaque cursor."""
        if refusal := self._identity.app_refusal(request.headers.get("authorization", "")):
            return JSONResponse(_error(refusal), status_code=HTTPStatus.UNAUTHORIZED)
        per_page = min(LARGEST_PAGE, max(1, _number(request, "per_page", 30)))
        cursor = request.query_params.get("cursor", "")
        if cursor and not re.fullmatch(r"v1_\d+", cursor):
            return JSONResponse(_error("Invalid cursor"), status_code=HTTPStatus.UNPROCESSABLE_ENTITY)
        before = int(cursor.removeprefix("v1_")) if cursor else sys.maxsize
        found = self._sender.newest(per_page + 1, before=before)
        page = found[:per_page]
        headers = {}
        if len(found) > len(page):
            url = str(request.url.replace(query=f"per_page={per_page}&cursor=v1_{page[-1]}"))
            headers["link"] = f'<{url}>; rel="next"'
        return JSONResponse([self._sender.attempts[each] for each in page], headers=headers)

    async def attempt_delivery(self, request: Request) -> Response:
        """Repeat a delivery."""
        if refusal := self._identity.app_refusal(request.headers.get("authorization", "")):
            return JSONResponse(_error(refusal), status_code=HTTPStatus.UNAUTHORIZED)
        if not self._sender.attempt_again(int(request.path_params["id"])):
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
        return _refused(caller, scope=scope, group=body["runner_group_id"]) or self._register(caller, scope, body)

    def _register(self, caller: Caller, scope: str, body: dict[str, Any]) -> Response:
        try:
            runner, jit = self._world.register(
                scope=scope, name=body["name"], labels=tuple(body["labels"]), group_id=body["runner_group_id"]
            )
        except NoSuchGroup:
            return caller.refuse(HTTPStatus.NOT_FOUND, NOT_FOUND)
        except NameTaken:
            message = "Already exists - A runner with the name already exists."
            return caller.refuse(HTTPStatus.CONFLICT, message)
        return caller.answer(HTTPStatus.CREATED, {"runner": runner.view(), "encoded_jit_config": jit})

    async def registration_token(self, request: Request, caller: Caller) -> Response:
        """Issue a registration token."""
        scope = self._scope(request, caller)
        if scope is None:
            return caller.refuse(HTTPStatus.NOT_FOUND, NOT_FOUND)
        expires = datetime.fromtimestamp(time.time() + TOKEN_SECONDS, UTC)
        body = {"token": self._world.issue_token(scope), "expires_at": stamp(expires)}
        return caller.answer(HTTPStatus.CREATED, body)

    async def list_runners(self, request: Request, caller: Caller) -> Response:
        """List the runners of a scope, or the runner with a given name."""
        scope = self._scope(request, caller)
        if scope is None:
            return caller.refuse(HTTPStatus.NOT_FOUND, NOT_FOUND)
        if name := request.query_params.get("name"):
            named = self._world.named(scope, name)
            runners = [named] if named else []
        else:
            forgetful = self._world.knobs.forgetful_rate
            runners = [each for each in self._world.in_scope(scope) if self._rng.random() >= forgetful]
        page = [runner.view() for runner in _page(request, runners)]
        return caller.answer(HTTPStatus.OK, {"total_count": len(runners), "runners": page})

    async def get_runner(self, request: Request, caller: Caller) -> Response:
        """Return a runner."""
        runner = self._world.runners.get(int(request.path_params["id"]))
        if runner is None or runner.scope != self._scope(request, caller):
            return caller.refuse(HTTPStatus.NOT_FOUND, NOT_FOUND)
        return caller.answer(HTTPStatus.OK, runner.view())

    async def get_deprecation(self, request: Request, caller: Caller) -> Response:
        """Show the time until which runners of a version may register and run.

        A test sets this time. For a version without this time, the answer is 404.
        """
        version = request.path_params["version"]
        ends = self._world.runner_ends.get(version)
        if ends is None:
            return caller.refuse(HTTPStatus.NOT_FOUND, NOT_FOUND)
        body = {"runner_version": version, "registration_deprecates_at": ends, "runtime_deprecates_at": ends}
        return caller.answer(HTTPStatus.OK, body)

    async def delete_runner(self, request: Request, caller: Caller) -> Response:
        """Deregister a runner unless it is busy."""
        runner = self._world.runners.get(int(request.path_params["id"]))
        if runner is None or runner.scope != self._scope(request, caller):
            return caller.refuse(HTTPStatus.NOT_FOUND, NOT_FOUND)
        try:
            self._world.deregister(runner)
        except RunnerBusy:
            message = f'Bad request - Runner "{runner.name}" is still running a job"'
            return caller.refuse(HTTPStatus.UNPROCESSABLE_ENTITY, message)
        return Response(status_code=HTTPStatus.NO_CONTENT, headers=caller.headers)

    # Runner groups

    async def list_groups(self, request: Request, caller: Caller) -> Response:
        """List the runner groups of an organisation, or only those that a given repository may use."""
        if self._scope(request, caller) is None:
            return caller.refuse(HTTPStatus.NOT_FOUND, NOT_FOUND)
        groups = list(caller.account.groups.values())
        if name := request.query_params.get("visible_to_repository"):
            repository = caller.account.repositories.get(name.lower())
            if repository is None:
                return caller.refuse(HTTPStatus.NOT_FOUND, NOT_FOUND)
            groups = [group for group in groups if group.admits(repository)]
        page = [group_view(group, caller.account) for group in _page(request, groups)]
        return caller.answer(HTTPStatus.OK, {"total_count": len(groups), "runner_groups": page})

    async def get_group(self, request: Request, caller: Caller) -> Response:
        """Return a runner group."""
        group = caller.account.groups.get(int(request.path_params["id"]))
        if group is None or self._scope(request, caller) is None:
            return caller.refuse(HTTPStatus.NOT_FOUND, NOT_FOUND)
        return caller.answer(HTTPStatus.OK, group_view(group, caller.account))

    # Jobs

    async def get_job(self, request: Request, caller: Caller) -> Response:
        """Return a job."""
        job = self._world.jobs.get(int(request.path_params["id"]))
        if job is None or job.repository is not self._repository(request, caller):
            return caller.refuse(HTTPStatus.NOT_FOUND, NOT_FOUND)
        return caller.answer(HTTPStatus.OK, job_view(job))

    async def list_runs(self, request: Request, caller: Caller) -> Response:
        """List the runs of a repository, newest first, optionally only those of one status or conclusion."""
        repository = self._repository(request, caller)
        if repository is None:
            return caller.refuse(HTTPStatus.NOT_FOUND, NOT_FOUND)
        wanted = request.query_params.get("status")
        runs = [
            run
            for run in reversed(self._world.runs.values())
            if run.jobs[0].repository is repository and wanted in {None, run.status, run.conclusion}
        ]
        page = _page(request, runs[:MOST_RUNS])
        body = {"total_count": len(runs), "workflow_runs": [run_view(run) for run in page]}
        return caller.answer(HTTPStatus.OK, body)

    async def get_run(self, request: Request, caller: Caller) -> Response:
        """Return a run."""
        run = self._run(request, caller)
        if run is None:
            return caller.refuse(HTTPStatus.NOT_FOUND, NOT_FOUND)
        return caller.answer(HTTPStatus.OK, run_view(run))

    async def list_run_jobs(self, request: Request, caller: Caller) -> Response:
        """List the jobs of a run's latest attempt, or of all its attempts."""
        run = self._run(request, caller)
        if run is None:
            return caller.refuse(HTTPStatus.NOT_FOUND, NOT_FOUND)
        latest = max(job.run_attempt for job in run.jobs)
        every = request.query_params.get("filter") == "all"
        jobs = [job for job in run.jobs if every or job.run_attempt == latest]
        body = {"total_count": len(jobs), "jobs": [job_view(job) for job in _page(request, jobs)]}
        return caller.answer(HTTPStatus.OK, body)

    async def create_check_run(self, request: Request, caller: Caller) -> Response:
        """Create a check run on a commit."""
        repository = self._repository(request, caller)
        if repository is None:
            return caller.refuse(HTTPStatus.NOT_FOUND, NOT_FOUND)
        body = await request.json()
        if not body.get("name") or not re.fullmatch("[0-9a-f]{40}", str(body.get("head_sha"))):
            return caller.refuse(HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid request.")
        number = len(self._world.check_runs) + 1
        self._world.check_runs[number] = (repository, body)
        return caller.answer(HTTPStatus.CREATED, check_run_view(number, repository, body))

    async def update_check_run(self, request: Request, caller: Caller) -> Response:
        """Change a check run."""
        number = int(request.path_params["id"])
        repository, body = self._world.check_runs.get(number, (None, {}))
        if repository is None or repository is not self._repository(request, caller):
            return caller.refuse(HTTPStatus.NOT_FOUND, NOT_FOUND)
        body |= await request.json()
        return caller.answer(HTTPStatus.OK, check_run_view(number, repository, body))

    def _run(self, request: Request, caller: Caller) -> Run | None:
        run = self._world.runs.get(int(request.path_params["id"]))
        return run if run is not None and run.jobs[0].repository is self._repository(request, caller) else None

    # Shared

    def _guard(
        self, handler: Callable[[Request, Caller], Awaitable[Response]], resource: str
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return the handler behind authentication, rate limits, permissions and a check of the account in the path."""

        async def guarded(request: Request) -> Response:
            known = self._known(request)
            if known is None:
                return JSONResponse(_error("Bad credentials"), status_code=HTTPStatus.UNAUTHORIZED)
            installation, account, app = known
            verdict = self._limits.count(
                installation,
                resource=resource,
                endpoint=endpoint(request.method, request.url.path),
                points=_points(request),
            )
            caller = Caller(account=account, headers=verdict.headers)
            refusal = verdict.refusal or _barred(account, app, request)
            if refusal:
                return caller.refuse(HTTPStatus.FORBIDDEN, refusal)
            self._limits.out[installation] += 1
            try:
                await self._delay()
                answer = await reach(request, caller)
                if _is_known(request, answer):
                    self._limits.give_back(installation, resource=resource, headers=caller.headers)
                    headers = {**caller.headers, "etag": answer.headers["etag"]}
                    return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
                return answer
            finally:
                self._limits.out[installation] -= 1

        async def reach(request: Request, caller: Caller) -> Response:
            account = caller.account
            if (redirect := self._redirect(request, caller)) is not None:
                return redirect
            if "repository" in request.path_params:
                return await handler(request, caller)
            login = request.path_params.get("org") or request.path_params.get("owner", "")
            if login.lower() != account.login.lower():
                if login.lower() in self._world.accounts:
                    return caller.refuse(HTTPStatus.FORBIDDEN, NOT_ACCESSIBLE)
                return caller.refuse(HTTPStatus.NOT_FOUND, NOT_FOUND)
            return await handler(request, caller)

        return guarded

    def _known(self, request: Request) -> tuple[int, Account, App] | None:
        """Return the installation, the account and the App of a call's token, or None if the token is not valid."""
        found = self._identity.installation_of(request.headers.get("authorization", ""))
        account = None if found is None else self._world.installation(found[0])
        return None if found is None or account is None else (found[0], account, found[1])

    async def _delay(self) -> None:
        """Wait until `answer_delay_seconds` have passed. Lowering that setting also releases the calls that wait."""
        began, knobs = time.monotonic(), self._world.knobs
        while (left := began + knobs.answer_delay_seconds - time.monotonic()) > 0:  # noqa: ASYNC110 - nothing notifies
            await asyncio.sleep(min(left, CHECK_EVERY))

    @staticmethod
    def _repository(request: Request, caller: Caller) -> Repository | None:
        """Return the caller's repository that a path names by name or id, or None."""
        if "repository" in request.path_params:
            wanted = int(request.path_params["repository"])
            return next((each for each in caller.account.repositories.values() if each.id == wanted), None)
        return caller.account.repositories.get(request.path_params["repo"].lower())

    def _redirect(self, request: Request, caller: Caller) -> Response | None:
        """Return a redirect if the path names a repository by its former name, else None."""
        if "repo" not in request.path_params:
            return None
        name = "{owner}/{repo}".format(**request.path_params)
        former = self._world.former.get(name.lower())
        if former is None or self._world.repository(name) is not None:
            return None
        path = request.url.path.replace(f"/repos/{name}", f"/repositories/{former.id}", 1)
        url = str(request.url.replace(path=path))
        status = HTTPStatus.MOVED_PERMANENTLY if request.method == "GET" else HTTPStatus.TEMPORARY_REDIRECT
        body = {"message": status.phrase, "url": url, "documentation_url": "https://docs.github.com/rest"}
        return JSONResponse(body, status_code=status, headers={**caller.headers, "location": url})

    def _scope(self, request: Request, caller: Caller) -> str | None:
        """Return the scope that a path names, or None if it does not exist."""
        if "org" in request.path_params:
            return f"orgs/{caller.account.login}" if caller.account.type == "Organization" else None
        repository = self._repository(request, caller)
        return f"repos/{repository.full_name}" if repository else None


def _refused(caller: Caller, *, scope: str, group: int) -> Response | None:
    """Return the answer of the first refusal of the account that matches a mint, or None."""
    refusal = next((each for each in caller.account.refusals if each.strikes(scope=scope, group=group)), None)
    if refusal is None:
        return None
    message = refusal.words(login=caller.account.login, group=group)
    return JSONResponse(_error(message), status_code=refusal.status, headers={**caller.headers, **refusal.headers})


def _barred(account: Account, app: App, request: Request) -> str | None:
    """Return the reason why an App must not make this call, or None."""
    if account.suspended:
        return SUSPENDED
    return None if _permits(app.permissions, request) else NOT_ACCESSIBLE


def _permits(permissions: Mapping[str, str], request: Request) -> bool:
    """Return whether the permissions of an App cover a call ("Permissions required for GitHub Apps")."""
    path = request.url.path
    if "/check-runs" in path:
        needed = "checks"
    elif "/actions/runner" not in path:
        needed = "actions"
    else:
        needed = "organization_self_hosted_runners" if path.startswith("/orgs/") else "administration"
    level = permissions.get(needed)
    return level == "write" or (level == "read" and request.method == "GET")


def _problem(body: Any) -> str | None:
    """Return the reason why the body of a mint is refused, or None."""
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


def _page(request: Request, items: list[Item]) -> list[Item]:
    per_page = min(LARGEST_PAGE, max(1, _number(request, "per_page", 30)))
    first = (max(1, _number(request, "page", 1)) - 1) * per_page
    return items[first : first + per_page]


def _is_known(request: Request, answer: Response) -> bool:
    """Add an etag to the answer to a GET. Return whether the caller already has this answer."""
    if request.method != "GET" or answer.status_code != HTTPStatus.OK:
        return False
    answer.headers["etag"] = f'W/"{hashlib.sha256(bytes(answer.body)).hexdigest()}"'
    return request.headers.get("if-none-match") == answer.headers["etag"]


def _points(request: Request) -> int:
    """Return the number of points that a call costs."""
    return 1 if request.method in {"GET", "HEAD", "OPTIONS"} else 5


def _number(request: Request, name: str, default: int) -> int:
    value = request.query_params.get(name, "")
    return int(value) if value.isdecimal() else default


def _error(message: str) -> dict[str, str]:
    return {"message": message, "documentation_url": "https://docs.github.com/rest"}

"""Control interface of the lab's GitHub under `/_lab/…`: create accounts and jobs, read the state, and cause faults."""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections import Counter
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lab.github import refusals
from lab.github.entities import Group, Job, now, stamp
from lab.github.faults import Fault, Faults
from lab.github.identity import Identity
from lab.github.limits import Limits
from lab.github.payloads import (
    installation_webhook,
    renamed_webhook,
    repository_renamed_webhook,
    tail_of,
    target_renamed_webhook,
)
from lab.github.sender import Sender, Weather
from lab.github.world import Knobs, NameTaken, World


class Control:
    """The control routes and the parts that they change."""

    def __init__(self, *, world: World, sender: Sender, identity: Identity, limits: Limits) -> None:
        self._world = world
        self._sender = sender
        self._identity = identity
        self._limits = limits
        self.faults: Faults | None = None

    def routes(self) -> list[Route]:
        """Return every control route."""
        return [
            Route("/_lab/accounts", self.add_account, methods=["POST"]),
            Route("/_lab/jobs", self.add_jobs, methods=["POST"]),
            Route("/_lab/jobs", self.list_jobs, methods=["GET"]),
            Route("/_lab/jobs/{id:int}/cancel", self.cancel_job, methods=["POST"]),
            Route("/_lab/jobs/{id:int}/approve", self.approve_job, methods=["POST"]),
            Route("/_lab/runs/{id:int}/end", self.end_run, methods=["POST"]),
            Route("/_lab/runners", self.list_runners, methods=["GET"]),
            Route("/_lab/runners", self.add_runner, methods=["POST"]),
            Route("/_lab/stats", self.stats, methods=["GET"]),
            Route("/_lab/webhooks", self.change_weather, methods=["POST"]),
            Route("/_lab/deliveries", self.list_deliveries, methods=["GET"]),
            Route("/_lab/deliveries/{guid}/redeliver", self.redeliver, methods=["POST"]),
            Route("/_lab/settings", self.change_knobs, methods=["POST"]),
            Route("/_lab/faults", self.add_faults, methods=["POST"]),
            Route("/_lab/faults", self.list_faults, methods=["GET"]),
            Route("/_lab/faults", self.clear_faults, methods=["DELETE"]),
            Route("/_lab/accounts/{login}", self.change_account, methods=["PATCH"]),
            Route("/_lab/accounts/{login}/refusals", self.set_refusals, methods=["PUT"]),
            Route("/_lab/accounts/{login}/groups/{id:int}", self.set_group, methods=["PUT"]),
            Route("/_lab/accounts/{login}/groups/{id:int}", self.delete_group, methods=["DELETE"]),
            Route("/_lab/repositories/{owner}/{repo}", self.rename_repository, methods=["PATCH"]),
            Route("/_lab/runner-versions", self.set_runner_ends, methods=["PUT"]),
            Route("/_lab/app", self.change_app, methods=["PATCH"]),
            Route("/_lab/tokens", self.revoke_tokens, methods=["DELETE"]),
            Route("/_lab/secrets", self.list_secrets, methods=["GET"]),
        ]

    async def list_secrets(self, _request: Request) -> Response:
        """Return every credential that was ever issued. Tests use them to search for leaks."""
        return JSONResponse(
            {
                "jits": self._world.jits(),
                "registration_tokens": self._world.tokens(),
                "installation_tokens": self._identity.given,
            }
        )

    async def add_account(self, request: Request) -> Response:
        """Install the App on an account."""
        body = await request.json()
        account = self._world.add_account(
            account_id=int(body["id"]),
            login=str(body["login"]),
            kind=str(body.get("type", "Organization")),
            installation_id=int(body["installation_id"]),
            repositories={str(r["name"]).rpartition("/")[2]: int(r["id"]) for r in body.get("repositories", [])},
            public=[str(r["name"]).rpartition("/")[2] for r in body.get("repositories", []) if r.get("public")],
        )
        names = [repository.full_name for repository in account.repositories.values()]
        return JSONResponse({"login": account.login, "repositories": names}, status_code=HTTPStatus.CREATED)

    async def change_account(self, request: Request) -> Response:
        """Change an account and send the webhooks.

        `login` renames it, `suspended` suspends or restores the App there, and `installed` removes or installs the App.

        With `announce` false, no webhook reports that the App was suspended, restored, removed or installed.
        """
        account = self._world.accounts.get(request.path_params["login"].lower())
        if account is None:
            return _refuse(HTTPStatus.NOT_FOUND, "no such account")
        body = await request.json()
        if "login" in body:
            former = account.login
            self._world.rename_account(account, str(body["login"]))
            self._sender.announce("installation_target", account, target_renamed_webhook(former, account))
            if account.type == "Organization":
                self._sender.announce("organization", account, renamed_webhook(former, account))
        action = None
        if "suspended" in body:
            account.suspended = bool(body["suspended"])
            action = "suspend" if account.suspended else "unsuspend"
        if "installed" in body:
            account.installed = bool(body["installed"])
            account.installation_id = int(body.get("installation_id", account.installation_id))
            action = "created" if account.installed else "deleted"
            for repository in account.repositories.values():
                repository.tail = tail_of(repository)
        if action is not None and body.get("announce", True):
            hook = installation_webhook(action, account, app_id=self._identity.app_id)
            self._sender.announce("installation", account, hook)
        return JSONResponse({"login": account.login, "installation_id": account.installation_id})

    async def set_refusals(self, request: Request) -> Response:
        """Replace the refusals of an account's mints by a list of `lab.github.refusals.Refusal`.

        An empty list ends the refusals.
        """
        account = self._world.accounts.get(request.path_params["login"].lower())
        if account is None:
            return _refuse(HTTPStatus.NOT_FOUND, "no such account")
        account.refusals = [refusals.read(each) for each in await request.json()]
        return JSONResponse({"refusals": len(account.refusals)})

    async def set_group(self, request: Request) -> Response:
        """Create or change a runner group of an organisation.

        The body has `name`, `visibility`, `public`, and `repositories` by name.
        """
        account = self._world.accounts.get(request.path_params["login"].lower())
        body = await request.json()
        if account is None:
            return _refuse(HTTPStatus.NOT_FOUND, "no such account")
        group_id = int(request.path_params["id"])
        wanted = {str(name).rpartition("/")[2].lower() for name in body.get("repositories", [])}
        account.groups[group_id] = Group(
            id=group_id,
            name=str(body.get("name", "Default" if group_id == 1 else f"group-{group_id}")),
            visibility=str(body.get("visibility", "all")),
            public=bool(body.get("public", False)),
            repositories={each.id for name, each in account.repositories.items() if name in wanted},
        )
        self._world.postpone()
        return JSONResponse({"id": group_id})

    async def delete_group(self, request: Request) -> Response:
        """Delete a runner group."""
        account = self._world.accounts.get(request.path_params["login"].lower())
        gone = account.groups.pop(int(request.path_params["id"]), None) if account else None
        return Response(status_code=HTTPStatus.NOT_FOUND if gone is None else HTTPStatus.NO_CONTENT)

    async def rename_repository(self, request: Request) -> Response:
        """Rename a repository to `name` and send the webhook."""
        repository = self._world.repository("{owner}/{repo}".format(**request.path_params))
        if repository is None:
            return _refuse(HTTPStatus.NOT_FOUND, "no such repository")
        former = repository.name
        self._world.rename_repository(repository, str((await request.json())["name"]))
        hook = repository_renamed_webhook(former, repository, at=str(stamp(now())))
        self._sender.announce("repository", repository.account, hook)
        return JSONResponse({"full_name": repository.full_name})

    async def add_jobs(self, request: Request) -> Response:
        """Create the jobs of one request, or of a list of requests, and return their ids.

        Creates no job if one of the repositories does not exist.

        Each job has its own run, unless the request sets `in_one_run`: its `count` jobs then share one run. `event` is
        the event that began the run. `group` is the runner group that its workflow names. `fork` is the full name of
        the fork that its pull request came from. `script` is shell text that the runner of a real container executes.
        `containers` is a container job.
        """
        body = await request.json()
        wanted = body if isinstance(body, list) else [body]
        pairs = []
        for each in wanted:
            repository = self._world.repository(str(each["repository"]))
            if repository is None:
                return _refuse(HTTPStatus.NOT_FOUND, f"no repository {each['repository']}")
            pairs.append((each, repository))
        jobs = []
        for each, repository in pairs:
            run = None
            for _ in range(int(each.get("count", 1))):
                job = self._world.add_job(
                    repository=repository,
                    labels=tuple(str(label) for label in each["labels"]),
                    duration_seconds=float(each.get("duration_seconds", 1)),
                    name=str(each.get("name", "build")),
                    workflow_name=str(each.get("workflow_name", "CI")),
                    head_branch=str(each.get("head_branch", "main")),
                    waiting=bool(each.get("waiting", False)),
                    run=run,
                    event=str(each.get("event", "push")),
                    fork=_fork_of(each),
                    group=each.get("group"),
                )
                job.script = str(each.get("script", ""))
                job.containers = each.get("containers")
                run = self._world.runs[job.run_id] if each.get("in_one_run") else None
                jobs.append(job)
        return JSONResponse({"ids": [job.id for job in jobs]}, status_code=HTTPStatus.CREATED)

    async def list_jobs(self, request: Request) -> Response:
        """Show every job, or those of the status `?status=`."""
        status = request.query_params.get("status")
        jobs = [_job(job) for job in self._world.jobs.values() if status in {None, job.status}]
        return JSONResponse({"jobs": jobs})

    async def cancel_job(self, request: Request) -> Response:
        """Cancel a job. Answers 409 if it is over."""
        job = self._world.jobs.get(int(request.path_params["id"]))
        if job is None:
            return _refuse(HTTPStatus.NOT_FOUND, "no such job")
        done = self._world.cancel(job)
        return Response(status_code=HTTPStatus.NO_CONTENT if done else HTTPStatus.CONFLICT)

    async def approve_job(self, request: Request) -> Response:
        """Queue a job that waits for an approval. Answers 409 if it does not wait."""
        job = self._world.jobs.get(int(request.path_params["id"]))
        if job is None:
            return _refuse(HTTPStatus.NOT_FOUND, "no such job")
        done = self._world.approve(job)
        return Response(status_code=HTTPStatus.NO_CONTENT if done else HTTPStatus.CONFLICT)

    async def end_run(self, request: Request) -> Response:
        """End a run with a `conclusion`, by default `startup_failure`, without any webhook about its queued jobs."""
        run = self._world.runs.get(int(request.path_params["id"]))
        if run is None:
            return _refuse(HTTPStatus.NOT_FOUND, "no such run")
        body = await request.body()
        self._world.end_run(run, str(json.loads(body)["conclusion"]) if body else "startup_failure")
        return Response(status_code=HTTPStatus.NO_CONTENT)

    async def list_runners(self, _request: Request) -> Response:
        """Return every registered runner."""
        runners = [
            {**runner.view(), "scope": runner.scope, "job": runner.job.id if runner.job else None}
            for runner in self._world.runners.values()
        ]
        return JSONResponse({"runners": runners})

    async def add_runner(self, request: Request) -> Response:
        """Register a runner that never starts, as a client other than the App would.

        Answers 409 if its name is taken.
        """
        body = await request.json()
        labels = tuple(str(label) for label in body["labels"])
        try:
            runner, _jit = self._world.register(scope=body["scope"], name=body["name"], labels=labels, group_id=1)
        except NameTaken:
            return _refuse(HTTPStatus.CONFLICT, "a runner has that name")
        return JSONResponse({"id": runner.id}, status_code=HTTPStatus.CREATED)

    async def stats(self, _request: Request) -> Response:
        """Count jobs by status, runners by state, events by name, and calls by endpoint and by installation.

        Calls that a rate limit refused are counted by the kind of limit.
        """
        runners = Counter(
            "busy" if runner.job else "online" if runner.online else "offline"
            for runner in self._world.runners.values()
        )
        body = {
            "jobs": Counter(job.status for job in self._world.jobs.values()),
            "conclusions": Counter(job.conclusion for job in self._world.jobs.values() if job.conclusion),
            "runners": runners,
            "webhooks_in_flight": self._sender.in_flight,
            "events": self._world.journal.counts,
            "calls": self._faults.calls,
            "calls_of_installations": self._limits.made,
            "refused": self._limits.refused,
        }
        return JSONResponse(body)

    async def change_weather(self, request: Request) -> Response:
        """Change the webhook faults that the body names."""
        body = await request.json()
        if unknown := body.keys() - {each.name for each in dataclasses.fields(Weather)}:
            return _refuse(HTTPStatus.UNPROCESSABLE_ENTITY, f"unknown: {sorted(unknown)}")
        self._sender.change_weather(**body)
        return JSONResponse(dataclasses.asdict(self._sender.weather))

    async def list_deliveries(self, _request: Request) -> Response:
        """Return every stored delivery, oldest first."""
        found = [{**each.view(), "job": each.job_id} for each in self._sender.deliveries.values()]
        return JSONResponse({"deliveries": found})

    async def redeliver(self, request: Request) -> Response:
        """Repeat a delivery."""
        done = self._sender.redeliver(request.path_params["guid"])
        return Response(status_code=HTTPStatus.ACCEPTED if done else HTTPStatus.NOT_FOUND)

    async def change_knobs(self, request: Request) -> Response:
        """Change the settings that the body names. The suffix `_seconds` of a name may be omitted."""
        body: dict[str, Any] = await request.json()
        known = {each.name for each in dataclasses.fields(Knobs)}
        changes = {name if name in known else f"{name}_seconds": value for name, value in body.items()}
        if unknown := changes.keys() - known:
            return _refuse(HTTPStatus.UNPROCESSABLE_ENTITY, f"unknown: {sorted(unknown)}")
        for name, value in changes.items():
            setattr(self._world.knobs, name, value)
        return JSONResponse(dataclasses.asdict(self._world.knobs))

    async def add_faults(self, request: Request) -> Response:
        """Add API faults to those in force."""
        body = await request.json()
        faults = [Fault(**each) for each in (body if isinstance(body, list) else [body])]
        self._faults.active += faults
        return JSONResponse({"active": len(self._faults.active)}, status_code=HTTPStatus.CREATED)

    async def list_faults(self, _request: Request) -> Response:
        """Show the faults and the number of requests that each affected."""
        return JSONResponse({"faults": [dataclasses.asdict(each) for each in self._faults.active]})

    async def clear_faults(self, _request: Request) -> Response:
        """Remove every fault."""
        self._faults.active.clear()
        return Response(status_code=HTTPStatus.NO_CONTENT)

    async def change_app(self, request: Request) -> Response:
        """Change `permissions`, `events` and `public` of the App that was added last."""
        body, app = await request.json(), self._identity.latest
        app.permissions = dict(body.get("permissions", app.permissions))
        app.events = tuple(body.get("events", app.events))
        app.public = bool(body.get("public", app.public))
        return JSONResponse({"app": app.id})

    async def set_runner_ends(self, request: Request) -> Response:
        """Set the time (ISO 8601) until which runners of each version in the body may register and run."""
        self._world.runner_ends = dict(await request.json())
        return Response(status_code=HTTPStatus.NO_CONTENT)

    async def revoke_tokens(self, _request: Request) -> Response:
        """Make every installation token invalid."""
        return JSONResponse({"revoked": self._identity.revoke_all()})

    @property
    def _faults(self) -> Faults:
        if self.faults is None:
            raise RuntimeError("the app is not built yet")
        return self.faults


def _fork_of(wanted: dict[str, Any]) -> tuple[int, str] | None:
    """Return the id and full name of the fork of a requested job, or None. The id is derived from the name."""
    full_name = wanted.get("fork")
    return None if full_name is None else (zlib.crc32(str(full_name).encode()) + 1, str(full_name))


def _job(job: Job) -> dict[str, Any]:
    return {
        "id": job.id,
        "run_id": job.run_id,
        "repository": job.repository.full_name,
        "labels": list(job.labels),
        "name": job.name,
        "status": job.status,
        "conclusion": job.conclusion,
        "runner": job.runner.name if job.runner else None,
        "executions": job.executions,
        "duration_seconds": job.duration_seconds,
    }


def _refuse(status: HTTPStatus, reason: str) -> Response:
    return JSONResponse({"error": reason}, status_code=status)

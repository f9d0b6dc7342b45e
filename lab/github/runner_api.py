"""Protocol of a started runner under `/_runner/…`. It replaces the private protocol of the real runner."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive

from lab.github.entities import Session
from lab.github.world import NameTaken, NoSuchGroup, VersionDeprecated, World

LONGEST_WAIT_SECONDS = 60


class RunnerApi:
    """The routes of the protocol, and the world that they change."""

    def __init__(self, *, world: World) -> None:
        self._world = world

    def routes(self) -> list[Route]:
        """Return every route of the protocol."""
        one = "/_runner/sessions/{session}"
        return [
            Route("/_runner/registrations", self.register, methods=["POST"]),
            Route("/_runner/sessions", self.connect, methods=["POST"]),
            Route(one, self.disconnect, methods=["DELETE"]),
            Route(f"{one}/message", self.message, methods=["GET"]),
            Route(f"{one}/started", self.started, methods=["POST"]),
            Route(f"{one}/heartbeat", self.heartbeat, methods=["POST"]),
            Route(f"{one}/finished", self.finished, methods=["POST"]),
        ]

    async def register(self, request: Request) -> Response:
        """Register a persistent runner, as config.sh does.

        Answers 401 if the token is not valid for the address, 404 without such a runner group, and 409 if the name is
        in use.
        """
        body = await _body(request)
        try:
            made = self._world.register_itself(
                str(body["token"]),
                url_path=urlsplit(str(body["url"])).path,
                name=str(body["name"]),
                labels=tuple(str(label) for label in body["labels"]),
                group=str(body.get("group") or ""),
                replace=bool(body.get("replace")),
            )
        except NoSuchGroup:
            return Response(status_code=HTTPStatus.NOT_FOUND)
        except NameTaken:
            return Response(status_code=HTTPStatus.CONFLICT)
        if made is None:
            return Response(status_code=HTTPStatus.UNAUTHORIZED)
        runner, credential = made
        return JSONResponse({"id": runner.id, "credential": credential}, status_code=HTTPStatus.CREATED)

    async def connect(self, request: Request) -> Response:
        """Start a runner with its JIT config, which can be used once, or with the credential of a persistent runner.

        Answers 403 if the runner's version is too old.
        """
        body = await request.json()
        jit = str(body.get("jit_config", "")).strip()
        try:
            session = self._world.connect(
                jit, version=body.get("version") or None, updates=bool(body.get("updates", False))
            )
        except VersionDeprecated:
            return Response(status_code=HTTPStatus.FORBIDDEN)
        if session is None:
            return Response(status_code=HTTPStatus.UNAUTHORIZED)
        answer = {"session": session.id, "runner_name": session.runner.name}
        return JSONResponse(answer, status_code=HTTPStatus.CREATED)

    async def message(self, request: Request) -> Response:
        """Return the assigned job. Wait for a job for up to `wait` seconds."""
        session = self._session(request)
        if session is None:
            return _over()
        wait = min(LONGEST_WAIT_SECONDS, float(request.query_params.get("wait", 0)))
        self._world.alive(session)
        runner = session.runner
        if runner.job is None and wait > 0:
            session.polls += 1
            try:
                await _wake_or_gone(session.wake, request.receive, wait)
            finally:
                session.polls -= 1
            self._world.alive(session)
        session.wake.clear()
        if session.over:
            return _over()
        if runner.job is None:
            return Response(status_code=HTTPStatus.NO_CONTENT)
        runner.handed = True
        job = runner.job
        return JSONResponse(
            {
                "job_id": job.id,
                "duration_seconds": job.duration_seconds,
                "name": job.name,
                "script": job.script,
                "containers": job.containers,
            }
        )

    async def started(self, request: Request) -> Response:
        """Begin the job that the runner received."""
        session = self._session(request)
        body = await _body(request)
        if session is None or not self._world.start(session, int(body["job_id"])):
            return _over()
        return Response(status_code=HTTPStatus.NO_CONTENT)

    async def heartbeat(self, request: Request) -> Response:
        """Renew the lock on the job."""
        session = self._session(request)
        if session is None:
            return _over()
        self._world.alive(session)
        if session.runner.persistent and session.runner.job is None:
            return _over()  # the job was cancelled
        return Response(status_code=HTTPStatus.NO_CONTENT)

    async def finished(self, request: Request) -> Response:
        """End the job. An ephemeral runner is deleted."""
        session = self._session(request)
        body = await _body(request)
        if session is None or not self._world.finish(session, int(body["job_id"]), str(body["conclusion"])):
            return _over()
        return Response(status_code=HTTPStatus.NO_CONTENT)

    async def disconnect(self, request: Request) -> Response:
        """End the session."""
        session = self._session(request)
        if session is None:
            return _over()
        self._world.disconnect(session)
        return Response(status_code=HTTPStatus.NO_CONTENT)

    def _session(self, request: Request) -> Session | None:
        return self._world.sessions.get(request.path_params["session"])


async def _wake_or_gone(wake: asyncio.Event, receive: Receive, wait: float) -> None:
    """Return when the session is woken, when the caller disconnects, or after `wait` seconds."""
    woken = asyncio.ensure_future(wake.wait())
    gone = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({woken, gone}, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
    finally:
        woken.cancel()
        gone.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue


async def _body(request: Request) -> dict[str, Any]:
    body = await request.json()
    return body if isinstance(body, dict) else {}


def _over() -> Response:
    return Response(status_code=HTTPStatus.NOT_FOUND)

"""A runner Pod without processes: poller and runner are coroutines that use the same two protocols."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import aiohttp

from lab.kubelet.ailments import DEPRECATED_EXIT_CODE, Ailment, Condition
from lab.kubelet.answers import End, PollAgain, Work, decide
from lab.kubelet.events import Events
from lab.kubelet.tokens import TokenRenewer

HOLD_SECONDS = 50
HEARTBEAT_SECONDS = 1.0
CALL_SECONDS = 10
RETRIES = 6
ONLINE_BEFORE_UPDATE = 0.5
"""Seconds that a runner is online before its self-update."""
_NO_ANSWER = 0


LINGERS = "linger"
"""Prefix of the names of jobs that leave a process behind. Their Pods stay after GitHub has removed their runners."""


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """Shared by all simulated Pods: one HTTP session and the address of GitHub."""

    http: aiohttp.ClientSession
    github_url: str

    async def run(self, *, dispatch_url: str, tokens: TokenRenewer, events: Events, condition: Condition) -> None:
        """Run both containers of a Pod until they end. Cancelling it abandons the job."""
        events.poller_started(simulated=True)
        end = await self._poll(dispatch_url, tokens)
        if isinstance(end, End):
            events.poller_exited(code=end.code, message=end.message)
            events.runner_exited(code=0)
            return
        events.jit_received(claim=end.claim, runner_name=end.runner_name, simulated=True)
        events.poller_exited(code=0, message=end.claim)
        events.runner_exited(code=await self._runner(end.jit_config, events, condition))

    async def _poll(self, url: str, tokens: TokenRenewer) -> Work | End:
        if not url:
            return End(code=1, message="OSTLER_DISPATCH_URL is not set")
        failures = 0
        chance = random.Random()
        while True:
            status, retry_after, body = await self._one_poll(url, tokens.value)
            verdict = decide(status=status, retry_after=retry_after, body=body, failures=failures, chance=chance)
            if not isinstance(verdict, PollAgain):
                return verdict
            failures = failures + 1 if verdict.failed else 0
            await asyncio.sleep(verdict.wait)

    async def _one_poll(self, url: str, token: str) -> tuple[int, str | None, Any]:
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        timeout = aiohttp.ClientTimeout(total=70, sock_connect=5)
        try:
            async with self.http.post(url, headers=headers, timeout=timeout, allow_redirects=False) as answer:
                body = await answer.json(content_type=None) if answer.status == HTTPStatus.OK else None
                return answer.status, answer.headers.get("Retry-After"), body
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return _NO_ANSWER, None, None

    async def _runner(self, jit_config: str, events: Events, condition: Condition) -> int:
        """Run the runner and return the exit code of its run.sh, which is 0 for most failures.

        `poller/run.sh` requests an exit code of its own for a version that GitHub refuses.
        """
        if condition.ailment is Ailment.CRASHES:
            return condition.crash_code
        if condition.ailment is Ailment.NO_EGRESS:
            await asyncio.Event().wait()  # it runs until the Pod is deleted
        config = {"jit_config": jit_config, "version": condition.version}
        if condition.ailment is Ailment.UPDATES:
            await self._update(config, condition.update_seconds)
        status, session = await self._github("POST", "", config)
        if status == HTTPStatus.FORBIDDEN:
            return DEPRECATED_EXIT_CODE
        if status == HTTPStatus.CREATED:
            await self._session(session, events)
        return 0

    async def _update(self, config: dict[str, Any], seconds: float) -> None:
        """Go online, learn of a newer version, and go offline for the duration of the update."""
        status, session = await self._github("POST", "", {**config, "updates": True})
        if status == HTTPStatus.CREATED:
            await asyncio.sleep(ONLINE_BEFORE_UPDATE)
            await self._github("DELETE", f"/{session['session']}")
            await asyncio.sleep(seconds)

    async def _session(self, session: dict[str, Any], events: Events) -> None:
        """Wait for a job and execute it."""
        events.runner_started(runner_name=session["runner_name"])
        path = f"/{session['session']}"
        while True:
            status, job = await self._github("GET", f"{path}/message?wait={HOLD_SECONDS}", seconds=HOLD_SECONDS + 10)
            if status == HTTPStatus.NOT_FOUND:
                return  # the registration was deleted
            if status == HTTPStatus.OK:
                break
            if status in range(400, 500):
                return
        await self._job(path, job, events)
        await self._github("DELETE", path)
        if str(job.get("name", "")).startswith(LINGERS):
            await asyncio.Event().wait()  # it runs until the Pod is deleted

    async def _job(self, path: str, job: dict[str, Any], events: Events) -> None:
        job_id = int(job["job_id"])
        events.runner_ready()
        events.job_started(job=job_id)
        conclusion = "lost"
        if await self._report(f"{path}/started", {"job_id": job_id}):
            worked = await self._work(path, float(job["duration_seconds"]))
            if worked and await self._report(f"{path}/finished", {"job_id": job_id, "conclusion": "success"}):
                conclusion = "success"
        events.job_finished(job=job_id, conclusion=conclusion)

    async def _work(self, path: str, seconds: float) -> bool:
        """Wait for the duration of the job. Return False if GitHub took the job away meanwhile."""
        lost = asyncio.ensure_future(self._beat(path))
        try:
            await asyncio.wait({lost}, timeout=seconds)
            return not lost.done()
        finally:
            lost.cancel()
            await asyncio.gather(lost, return_exceptions=True)

    async def _beat(self, path: str) -> None:
        """Renew the lock on the job until GitHub no longer knows it."""
        status = HTTPStatus.NO_CONTENT.value
        while status != HTTPStatus.NOT_FOUND:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            status, _ = await self._github("POST", f"{path}/heartbeat", {}, retries=0)

    async def _report(self, path: str, body: dict[str, Any]) -> bool:
        """Report to GitHub. Return False if GitHub refuses the report or no attempt gets an answer.

        A refusal after an attempt without an answer counts as success, because that attempt might have arrived.
        """
        doubt, wait = False, 0.25
        for _ in range(RETRIES + 1):
            status, _answer = await self._once("POST", path, body, CALL_SECONDS)
            if status == HTTPStatus.NO_CONTENT:
                return True
            if status in range(400, 500):
                return doubt
            doubt = True
            await asyncio.sleep(wait * random.uniform(0.5, 1))
            wait *= 2
        return False

    async def _github(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        seconds: float = CALL_SECONDS,
        retries: int = RETRIES,
    ) -> tuple[int, dict[str, Any]]:
        """Call the runner protocol and retry temporary errors. Return status 0 if no attempt got an answer."""
        wait = 0.25
        for attempt in range(retries + 1):
            status, answer = await self._once(method, path, body, seconds)
            if (status != _NO_ANSWER and status < HTTPStatus.INTERNAL_SERVER_ERROR) or attempt == retries:
                break
            await asyncio.sleep(wait * random.uniform(0.5, 1))
            wait *= 2
        return status, answer

    async def _once(
        self, method: str, path: str, body: dict[str, Any] | None, seconds: float
    ) -> tuple[int, dict[str, Any]]:
        url = f"{self.github_url}/_runner/sessions{path}"
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=5)
        try:
            async with self.http.request(method, url, json=body, timeout=timeout) as answer:
                has_body = answer.status in {HTTPStatus.OK, HTTPStatus.CREATED}
                found = await answer.json(content_type=None) if has_body else None
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return _NO_ANSWER, {}
        return answer.status, found if isinstance(found, dict) else {}

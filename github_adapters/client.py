"""The calls of GitHub's REST API that Ostler makes, each one attempt.

Only a refused installation token is renewed and tried once more; every other failure leaves as an error by
meaning, and the task around the call decides (DESIGN: one retry layer). Why this is not a library:
`docs/decisions/0002-github-client.md`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from github_adapters import fields
from github_adapters.answers import refusal
from github_adapters.auth import AppAuth
from github_adapters.http import Answer, Deadline, Http
from ostler.clock import utcnow
from ostler.errors import Busy, Retryable
from ostler.secrets import Secret
from rules.scopes import Scope

PAGE = 100
MOST_PAGES = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Jit:
    """A registered just-in-time runner and the single-use credential that starts it."""

    runner_id: int
    runner_name: str
    config: Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSeen:
    """A runner as GitHub shows it; `status` is `online` or `offline`."""

    id: int
    name: str
    status: str
    busy: bool
    labels: tuple[str, ...]

    @property
    def online(self) -> bool:
        """Return whether the runner is connected."""
        return self.status == "online"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSeen:
    """A job as GitHub shows it; `status` and `conclusion` are GitHub's words, times are in UTC."""

    id: int
    run_id: int
    run_attempt: int
    status: str
    conclusion: str | None
    labels: tuple[str, ...]
    runner_id: int | None
    runner_name: str | None
    created_at: datetime | None
    started_at: datetime | None
    completed_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What an answer said about the rate limit of its installation; `reset` in Unix seconds."""

    installation_id: int
    resource: str
    limit: int
    remaining: int
    reset: int


class GitHub:
    """GitHub for one App; safe for threads, meant to live as long as its process.

    `timeout` is in seconds, for one request and its answer; a method's `deadline_seconds` is for all it does.
    `observe` is told the quota that an answer carried.

    Every method raises `RateLimited` (403 or 429 that asks to wait; not applied), `Forbidden` (401, 403),
    `Gone` (no such scope, or the App is not installed there any more) and `Retryable` (5xx, no answer, an
    answer that makes no sense; whether it was applied is unknown).
    """

    def __init__(
        self,
        *,
        api_url: str,
        app_id: str,
        private_key: Secret,
        timeout: float = 10,
        clock: Callable[[], datetime] = utcnow,
        observe: Callable[[Quota], None] | None = None,
    ) -> None:
        self._http = Http(api_url=api_url, timeout=timeout)
        self._auth = AppAuth(http=self._http, app_id=app_id, private_key=private_key, clock=clock)
        self._clock = clock
        self._observe = observe

    def close(self) -> None:
        """Close every connection."""
        self._http.close()

    def mint(
        self,
        *,
        installation_id: int,
        scope: Scope,
        name: str,
        labels: Sequence[str],
        runner_group_id: int,
        deadline_seconds: float | None = None,
    ) -> Jit:
        """Register a just-in-time runner with exactly these labels.

        Raises `Conflict` (the name is taken: nearly always by an attempt whose answer was lost) and
        `Invalid` (GitHub refuses name, labels or group).
        """
        body = {"name": name, "runner_group_id": runner_group_id, "labels": list(labels), "work_folder": "_work"}
        answer = self._call(
            installation_id=installation_id,
            method="POST",
            path=f"{scope.path}/actions/runners/generate-jitconfig",
            body=json.dumps(body).encode(),
            deadline=Deadline(deadline_seconds),
        )
        if answer.status != HTTPStatus.CREATED:
            raise refusal(answer, what="mint", now=self._clock())
        with _sense(answer, "mint"):
            content = fields.decode(answer.body)
            runner, config = fields.section(content, "runner"), content.get("encoded_jit_config")
            if not isinstance(config, str) or not config:
                raise fields.Malformed("encoded_jit_config")
            return Jit(runner_id=fields.number(runner, "id"), runner_name=name, config=Secret(config))

    def find_runner(
        self, *, installation_id: int, scope: Scope, name: str, deadline_seconds: float | None = None
    ) -> RunnerSeen | None:
        """Return the runner of that name, or None when GitHub says that there is none."""
        deadline = Deadline(deadline_seconds)
        query = f"name={quote(name, safe='')}&per_page={PAGE}"
        runners, total = self._page(installation_id=installation_id, scope=scope, query=query, deadline=deadline)
        wanted = name.lower()
        found = next((runner for runner in runners if runner.name.lower() == wanted), None)
        if found is None and total > len(runners):
            # An Enterprise Server that does not know the filter answers with everyone.
            everyone = self._list(installation_id=installation_id, scope=scope, deadline=deadline)
            found = next((runner for runner in everyone if runner.name.lower() == wanted), None)
        return found

    def list_runners(
        self, *, installation_id: int, scope: Scope, deadline_seconds: float | None = None
    ) -> list[RunnerSeen]:
        """Return all runners of a scope; `Retryable` when GitHub showed fewer than it counted (law L8).

        A runner may be missing when others went between two pages, so one look proves no absence.
        """
        return self._list(installation_id=installation_id, scope=scope, deadline=Deadline(deadline_seconds))

    def delete_runner(
        self, *, installation_id: int, scope: Scope, runner_id: int, deadline_seconds: float | None = None
    ) -> None:
        """Deregister a runner; one that is not there any more is as good as deregistered.

        Raises `Busy` when it executes a job.
        """
        answer = self._call(
            installation_id=installation_id,
            method="DELETE",
            path=f"{scope.path}/actions/runners/{runner_id}",
            deadline=Deadline(deadline_seconds),
        )
        if answer.status == HTTPStatus.UNPROCESSABLE_ENTITY:
            raise Busy("GitHub does not delete a runner that executes a job")
        if answer.status not in {HTTPStatus.NO_CONTENT, HTTPStatus.NOT_FOUND}:
            raise refusal(answer, what="delete of a runner", now=self._clock())

    def get_job(
        self, *, installation_id: int, repository: str, job_id: int, deadline_seconds: float | None = None
    ) -> JobSeen | None:
        """Return a job of the repository `owner/name`, or None when GitHub does not know it.

        Raises `Invalid` when the repository's name cannot be one.
        """
        answer = self._call(
            installation_id=installation_id,
            method="GET",
            path=f"{Scope.repository(repository).path}/actions/jobs/{job_id}",
            deadline=Deadline(deadline_seconds),
        )
        if answer.status == HTTPStatus.NOT_FOUND:
            return None
        if answer.status != HTTPStatus.OK:
            raise refusal(answer, what="look-up of a job", now=self._clock())
        with _sense(answer, "look-up of a job"):
            return _job(fields.decode(answer.body), job_id=job_id)

    def _list(self, *, installation_id: int, scope: Scope, deadline: Deadline) -> list[RunnerSeen]:
        seen: dict[int, RunnerSeen] = {}
        for page in range(1, MOST_PAGES + 1):
            query = f"per_page={PAGE}&page={page}"
            runners, total = self._page(installation_id=installation_id, scope=scope, query=query, deadline=deadline)
            seen.update((runner.id, runner) for runner in runners)
            if len(runners) < PAGE or len(seen) >= total:
                break
        if len(seen) < total:
            raise Retryable("GitHub showed fewer runners than it counted")
        return list(seen.values())

    def _page(
        self, *, installation_id: int, scope: Scope, query: str, deadline: Deadline
    ) -> tuple[list[RunnerSeen], int]:
        """Return one page of runners and how many GitHub counts in all."""
        answer = self._call(
            installation_id=installation_id,
            method="GET",
            path=f"{scope.path}/actions/runners?{query}",
            deadline=deadline,
        )
        if answer.status != HTTPStatus.OK:
            raise refusal(answer, what="list of runners", now=self._clock())
        with _sense(answer, "list of runners"):
            content = fields.decode(answer.body)
            total, runners = content.get("total_count"), content.get("runners")
            if not isinstance(total, int) or not isinstance(runners, list):
                raise fields.Malformed("runners")
            return [_runner(each) for each in runners], total

    def _call(
        self, *, installation_id: int, method: str, path: str, deadline: Deadline, body: bytes | None = None
    ) -> Answer:
        """Return the answer to a call in the name of an installation, with a renewed token if it was refused."""
        for attempt in (1, 2):
            token = self._auth.installation_token(installation_id=installation_id, deadline=deadline)
            answer = self._http.request(
                method=method,
                path=path,
                authorization=f"Bearer {token.secret.reveal()}",
                body=body,
                deadline=deadline,
            )
            if answer.status != HTTPStatus.UNAUTHORIZED or attempt == 2:  # noqa: PLR2004
                break
            self._auth.drop(installation_id=installation_id, token=token)
        self._tell(installation_id, answer.headers)
        return answer

    def _tell(self, installation_id: int, headers: Mapping[str, str]) -> None:
        numbers = [headers.get(f"x-ratelimit-{name}", "") for name in ("limit", "remaining", "reset")]
        if self._observe and all(number.isascii() and number.isdecimal() for number in numbers):
            limit, remaining, reset = (int(number) for number in numbers)
            self._observe(
                Quota(
                    installation_id=installation_id,
                    resource=headers.get("x-ratelimit-resource", "core"),
                    limit=limit,
                    remaining=remaining,
                    reset=reset,
                )
            )


@contextlib.contextmanager
def _sense(answer: Answer, what: str) -> Iterator[None]:
    """Turn an answer that makes no sense into `Retryable`: it may be half of one."""
    try:
        yield
    except fields.Malformed:
        raise Retryable(f"GitHub's answer to {what} makes no sense", status=answer.status) from None


def _runner(source: Any) -> RunnerSeen:
    if not isinstance(source, dict) or not isinstance(source.get("name"), str):
        raise fields.Malformed("runner")
    if not isinstance(source.get("busy"), bool):
        raise fields.Malformed("busy")
    labels = source.get("labels")
    return RunnerSeen(
        id=fields.number(source, "id"),
        name=source["name"],
        status=fields.word(source, "status"),
        busy=source["busy"],
        labels=tuple(
            each["name"]
            for each in (labels if isinstance(labels, list) else [])
            if isinstance(each, dict) and isinstance(each.get("name"), str)
        ),
    )


def _job(source: Mapping[str, Any], *, job_id: int) -> JobSeen:
    if fields.number(source, "id") != job_id:
        raise fields.Malformed("id")
    attempt = source.get("run_attempt")
    return JobSeen(
        id=job_id,
        run_id=fields.number(source, "run_id"),
        run_attempt=1 if attempt is None else fields.number(source, "run_attempt", most=fields.INTEGER_MAX),
        status=fields.word(source, "status"),
        conclusion=fields.optional_word(source, "conclusion"),
        labels=fields.labels(source, "labels"),
        runner_id=fields.optional_number(source, "runner_id"),
        runner_name=fields.optional_text(source, "runner_name"),
        created_at=fields.optional_moment(source, "created_at"),
        started_at=fields.optional_moment(source, "started_at"),
        completed_at=fields.optional_moment(source, "completed_at"),
    )

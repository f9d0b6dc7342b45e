"""Calls of GitHub's page "REST API endpoints for self-hosted runners"."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from github_adapters import fields
from github_adapters.calls.governor import CallClass
from github_adapters.calls.http import Answer, Deadline
from github_adapters.calls.session import Session, deadline_of
from github_adapters.endpoints.pages import PAGE
from ostler.errors import Busy, Retryable
from ostler.secrets import Secret
from rules.routing.scopes import Scope
from rules.upstream.retry import ONCE, RetryPolicy

MOST_PAGES = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Jit:
    """A registered just-in-time runner and the single-use credential that starts it."""

    runner_id: int
    runner_name: str
    config: Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSeen:
    """A runner as GitHub shows it. `status` is `online` or `offline`."""

    id: int
    name: str
    status: str
    busy: bool
    labels: tuple[str, ...]
    version: str | None = None
    """Version of the runner's software.

    It is None if the runner has never connected, or if GitHub does not show the version.
    """
    os: str | None = None

    @property
    def has_connected(self) -> bool:
        """Return whether the runner has ever been started.

        Before the first start, GitHub shows neither the version nor the operating system of the runner.
        """
        return self.version is not None or (self.os or "unknown") != "unknown"

    @property
    def online(self) -> bool:
        """Return whether the runner is connected."""
        return self.status == "online"


class Runners:
    """The runners of an organisation or repository."""

    def __init__(self, session: Session) -> None:
        self._session = session

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

        Raises `Conflict` if the name is in use. In nearly all cases, an earlier attempt registered the name and the
        answer to that attempt was lost. Raises `Invalid` if GitHub refuses the name, the labels or the group.
        """
        body = {"name": name, "runner_group_id": runner_group_id, "labels": list(labels), "work_folder": "_work"}
        answer = self._session.call(
            installation_id=installation_id,
            call_class=CallClass.MINT,
            method="POST",
            path=f"{scope.path}/actions/runners/generate-jitconfig",
            body=json.dumps(body).encode(),
            deadline=Deadline(deadline_seconds),
        )
        return self._session.read(answer, partial(_jit, name=name), what="mint", status=HTTPStatus.CREATED)

    def registration_token(
        self, *, installation_id: int, scope: Scope, deadline_seconds: float | None = None
    ) -> Secret:
        """Return a registration token of a scope. For an hour, it allows anyone to register runners in the scope.

        Raises `Forbidden` or `Gone` if the App lacks the permission.
        """
        answer = self._session.call(
            installation_id=installation_id,
            call_class=CallClass.MINT,
            method="POST",
            path=f"{scope.path}/actions/runners/registration-token",
            deadline=Deadline(deadline_seconds),
        )
        return self._session.read(answer, _token, what="registration token", status=HTTPStatus.CREATED)

    def find_runner(
        self,
        *,
        installation_id: int,
        scope: Scope,
        name: str,
        deadline_seconds: float | None = None,
        policy: RetryPolicy = ONCE,
    ) -> RunnerSeen | None:
        """Return the runner with this name, or None if GitHub's answer shows that no runner has the name."""
        deadline = deadline_of(deadline_seconds, policy)
        query = f"name={quote(name, safe='')}&per_page={PAGE}"
        runners, total = self._page(
            installation_id=installation_id, scope=scope, query=query, deadline=deadline, policy=policy
        )
        found = _named(runners, name)
        if found is None and total > len(runners):
            # An Enterprise Server that does not know the filter returns all runners.
            everyone = self._list(installation_id=installation_id, scope=scope, deadline=deadline, policy=policy)
            found = _named(everyone, name)
        return found

    def list_runners(
        self,
        *,
        installation_id: int,
        scope: Scope,
        policy: RetryPolicy = ONCE,
        optional: bool = False,
        between: Callable[[], RetryPolicy] | None = None,
    ) -> list[RunnerSeen]:
        """Return all runners of a scope.

        Raises `Retryable` if GitHub lists fewer runners than its total count (law L8). When the quota runs low, a list
        with `optional` is refused before a list without it. If runners disappeared between two pages, another runner
        might be missing from the list. One list therefore does not prove that a runner is absent.

        `between` is called before each further page. It returns the policy for this page, with the deadline of the
        page. If `between` is None, the deadline of `policy` limits the time for all pages together.
        """
        return self._list(
            installation_id=installation_id,
            scope=scope,
            call_class=CallClass.OPTIONAL if optional else CallClass.READ,
            deadline=Deadline(policy.deadline),
            policy=policy,
            between=between,
        )

    def delete_runner(
        self,
        *,
        installation_id: int,
        scope: Scope,
        runner_id: int,
        deadline_seconds: float | None = None,
        policy: RetryPolicy = ONCE,
    ) -> None:
        """Deregister a runner. A runner that does not exist counts as deregistered.

        Raises `Busy` if the runner executes a job. After a 404, this method also lists one page of the scope's runners,
        and raises the error of the list if the list fails. Without this check, a runner of a renamed owner would count
        as gone, because GitHub answers 404 to both calls under the old name.
        """
        deadline = deadline_of(deadline_seconds, policy)

        def once() -> bool:
            answer = self._session.call(
                installation_id=installation_id,
                call_class=CallClass.WRITE,
                method="DELETE",
                path=f"{scope.path}/actions/runners/{runner_id}",
                deadline=deadline,
            )
            if answer.status == HTTPStatus.UNPROCESSABLE_ENTITY:
                raise Busy("GitHub does not delete a runner that executes a job")
            self._session.expect(answer, HTTPStatus.NO_CONTENT, HTTPStatus.NOT_FOUND, what="delete of a runner")
            return answer.status == HTTPStatus.NO_CONTENT

        deleted = self._session.retry(once, policy=policy, deadline=deadline)
        if not deleted:
            self._page(
                installation_id=installation_id, scope=scope, query="per_page=1", deadline=deadline, policy=policy
            )

    def _list(
        self,
        *,
        installation_id: int,
        scope: Scope,
        deadline: Deadline,
        policy: RetryPolicy,
        call_class: CallClass = CallClass.READ,
        between: Callable[[], RetryPolicy] | None = None,
    ) -> list[RunnerSeen]:
        seen: dict[int, RunnerSeen] = {}

        def ask(page: int) -> tuple[int, int]:
            """Read a page. Return the number of runners on the page, and GitHub's count of all runners."""
            nonlocal policy, deadline
            if between is not None and seen:
                policy = between()
                deadline = Deadline(policy.deadline)
            runners, total = self._page(
                installation_id=installation_id,
                scope=scope,
                query=f"per_page={PAGE}&page={page}",
                deadline=deadline,
                policy=policy,
                call_class=call_class,
            )
            seen.update((runner.id, runner) for runner in runners)
            return len(runners), total

        before = 0
        for page in range(1, MOST_PAGES + 1):
            shown, total = ask(page)
            if total < before - PAGE:
                raise Retryable(f"more than {PAGE} runners of {scope.path} disappeared between two pages of the list")
            if total < before:
                ask(page - 1)  # runners disappeared, so other runners moved from this page to the previous page
            if shown < PAGE or page * PAGE >= total:
                break
            before = total
        if len(seen) < total:
            raise Retryable(f"GitHub listed {len(seen)} runners of {scope.path}, but counts {total}")
        return list(seen.values())

    def _page(
        self,
        *,
        installation_id: int,
        scope: Scope,
        query: str,
        deadline: Deadline,
        policy: RetryPolicy,
        call_class: CallClass = CallClass.READ,
    ) -> tuple[list[RunnerSeen], int]:
        """Return one page of runners, and GitHub's count of all runners."""

        def once() -> tuple[list[RunnerSeen], int]:
            answer = self._session.call(
                installation_id=installation_id,
                call_class=call_class,
                method="GET",
                path=f"{scope.path}/actions/runners?{query}",
                deadline=deadline,
            )
            return self._session.read(answer, _runners, what="list of runners")

        return self._session.retry(once, policy=policy, deadline=deadline)


def _jit(answer: Answer, *, name: str) -> Jit:
    content = fields.decode(answer.body)
    runner, config = fields.section(content, "runner"), content.get("encoded_jit_config")
    if not isinstance(config, str) or not config:
        raise fields.Malformed("encoded_jit_config is missing")
    return Jit(runner_id=fields.number(runner, "id"), runner_name=name, config=Secret(config))


def _token(answer: Answer) -> Secret:
    token = fields.decode(answer.body).get("token")
    if not isinstance(token, str) or not token or any(each.isspace() for each in token):
        raise fields.Malformed("token is missing")
    return Secret(token)


def _named(runners: Iterable[RunnerSeen], name: str) -> RunnerSeen | None:
    return next((runner for runner in runners if runner.name.lower() == name.lower()), None)


def _runners(answer: Answer) -> tuple[list[RunnerSeen], int]:
    content = fields.decode(answer.body)
    total, runners = content.get("total_count"), content.get("runners")
    if not isinstance(total, int) or not isinstance(runners, list):
        raise fields.Malformed("total_count is not a number, or runners is not a list")
    return [_runner(each) for each in runners], total


def _runner(source: Any) -> RunnerSeen:
    if not isinstance(source, dict) or not isinstance(source.get("name"), str):
        raise fields.Malformed("a runner is not an object, or has no name")
    if not isinstance(source.get("busy"), bool):
        raise fields.Malformed("busy is missing")
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
        version=_short(source.get("version")),
        os=_short(source.get("os")),
    )


def _short(value: Any) -> str | None:
    """Return the text `value` in lower case, or None if `value` is not a text of 1 to 100 characters.

    Ostler only displays this value, so an invalid value must not make the whole list fail.
    """
    return value.lower() if isinstance(value, str) and 0 < len(value) <= 100 else None  # noqa: PLR2004

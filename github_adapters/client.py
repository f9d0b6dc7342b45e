"""The calls of GitHub's REST API that Ostler makes.

A call takes a policy that says how often it is repeated. Without one it is one attempt, and the task around it decides:
two layers of retries would multiply. A call that is not idempotent (a mint, a redelivery) is never repeated here. A
refused installation token is renewed and tried once more. Why this is not a library:
`docs/decisions/0002-github-client.md`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote

from github_adapters import fields
from github_adapters.answers import refusal
from github_adapters.app import AppInstallation, AppSeen, clock_ahead, read_app, read_installations
from github_adapters.auth import AppAuth
from github_adapters.deliveries import DeliveryPage, read_page
from github_adapters.governor import APP, CallClass, Governs, Ungoverned
from github_adapters.http import API_VERSION, Answer, Deadline, Http
from github_adapters.repeat import Timing, repeat
from github_adapters.runner_groups import read_group
from github_adapters.runs import ListPage, RunSeen, only, read_list, read_listed_job, read_run, unchanged
from github_adapters.webhooks import WorkflowJobEvent
from ostler.clock import machine_now
from ostler.errors import Busy, NotInstalled, Retryable
from ostler.secrets import Secret
from rules.routing.runner_groups import GroupSeen
from rules.routing.scopes import Scope
from rules.upstream.retry import ONCE, RetryPolicy

T = TypeVar("T")

PAGE = 100
MOST_PAGES = 500
MOST_GROUP_PAGES = 10
DEPRECATIONS = "2026-03-10"
"""The version of the API that tells how long a runner version is good for."""


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
    version: str | None = None
    """Of its software; None until it has connected, and where GitHub does not say."""
    os: str | None = None

    @property
    def has_connected(self) -> bool:
        """Return whether the runner has ever been started: of one that has not GitHub knows no system."""
        return self.version is not None or (self.os or "unknown") != "unknown"

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
class InstallationSeen:
    """An installation of the App as GitHub shows it."""

    account_id: int
    login: str
    suspended: bool


class GitHub:
    """GitHub for one App; safe for threads, meant to live as long as its process.

    `timeout` is in seconds, for one request and its answer; a method's `deadline_seconds`, and the deadline of its
    `policy`, are for all it does.
    `governor` is asked before each request and told its answer; `left` is told of an installation that GitHub does not
    know.

    Every method raises `RateLimited` (the governor, or a 403 or 429 that asks to wait; not applied), `Forbidden`
    (401, 403; `Suspended`), `Gone` (no such scope; `NotInstalled`) and `Retryable` (5xx, no answer, an answer that
    makes no sense; whether it was applied is unknown).
    """

    def __init__(
        self,
        *,
        api_url: str,
        app_id: str,
        private_key: Secret,
        timeout: float = 10,
        clock: Callable[[], datetime] = machine_now,
        governor: Governs | None = None,
        timing: Timing | None = None,
        left: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._http = Http(api_url=api_url, timeout=timeout)
        self._governor = governor or Ungoverned()
        self._auth = AppAuth(
            http=self._http, app_id=app_id, private_key=private_key, clock=clock, governor=self._governor, left=left
        )
        self._clock = clock
        self._timing = timing or Timing()

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
            call_class=CallClass.MINT,
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
        self,
        *,
        installation_id: int,
        scope: Scope,
        name: str,
        deadline_seconds: float | None = None,
        policy: RetryPolicy = ONCE,
    ) -> RunnerSeen | None:
        """Return the runner of that name, or None when GitHub says that there is none."""
        deadline = _deadline(deadline_seconds, policy)
        query = f"name={quote(name, safe='')}&per_page={PAGE}"
        runners, total = self._page(
            installation_id=installation_id, scope=scope, query=query, deadline=deadline, policy=policy
        )
        wanted = name.lower()
        found = next((runner for runner in runners if runner.name.lower() == wanted), None)
        if found is None and total > len(runners):
            # An Enterprise Server that does not know the filter answers with everyone.
            everyone = self._list(installation_id=installation_id, scope=scope, deadline=deadline, policy=policy)
            found = next((runner for runner in everyone if runner.name.lower() == wanted), None)
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
        """Return all runners of a scope; `Retryable` when GitHub showed fewer than it counted (law L8).

        An `optional` list is shed first when calls are scarce. A runner may be missing when others went between two
        pages, so one check proves no absence. `between` is called before each further page and returns its policy,
        whose deadline is then that page's; without it the deadline is for all pages.
        """
        return self._list(
            installation_id=installation_id,
            scope=scope,
            call_class=CallClass.OPTIONAL if optional else CallClass.READ,
            deadline=Deadline(policy.deadline),
            policy=policy,
            between=between,
        )

    def list_runner_groups(
        self,
        *,
        installation_id: int,
        login: str,
        visible_to: str | None = None,
        deadline_seconds: float | None = None,
        policy: RetryPolicy = ONCE,
    ) -> list[GroupSeen]:
        """Return all runner groups of an organisation, or those that the repository of this name may use.

        Raises `Retryable` when GitHub showed fewer than it counted.
        """
        deadline = _deadline(deadline_seconds, policy)
        only_for = "" if visible_to is None else f"&visible_to_repository={quote(visible_to, safe='')}"

        def once(page: int) -> tuple[list[GroupSeen], int]:
            answer = self._call(
                installation_id=installation_id,
                call_class=CallClass.READ,
                method="GET",
                deadline=deadline,
                path=f"{Scope.organization(login).path}/actions/runner-groups?per_page={PAGE}&page={page}{only_for}",
            )
            if answer.status != HTTPStatus.OK:
                raise refusal(answer, what="list of runner groups", now=self._clock())
            with _sense(answer, "list of runner groups"):
                content = fields.decode(answer.body)
                total, listed = content.get("total_count"), content.get("runner_groups")
                if not isinstance(total, int) or not isinstance(listed, list):
                    raise fields.Malformed("runner_groups")
                return [read_group(each) for each in listed], int(total)

        seen: dict[int, GroupSeen] = {}
        for page in range(1, MOST_GROUP_PAGES + 1):
            groups, total = repeat(partial(once, page), policy=policy, deadline=deadline, timing=self._timing)
            seen.update((group.id, group) for group in groups)
            if len(groups) < PAGE:
                break
        if len(seen) < total:
            raise Retryable("GitHub showed fewer runner groups than it counted")
        return list(seen.values())

    def delete_runner(
        self,
        *,
        installation_id: int,
        scope: Scope,
        runner_id: int,
        deadline_seconds: float | None = None,
        policy: RetryPolicy = ONCE,
    ) -> None:
        """Deregister a runner; one that is not there any more is as good as deregistered.

        Raises `Busy` when it executes a job. A 404 counts only where GitHub still lists the runners of the scope:
        under the old name of an owner it says nothing of the runner.
        """
        deadline = _deadline(deadline_seconds, policy)

        def once() -> bool:
            answer = self._call(
                installation_id=installation_id,
                call_class=CallClass.WRITE,
                method="DELETE",
                path=f"{scope.path}/actions/runners/{runner_id}",
                deadline=deadline,
            )
            if answer.status == HTTPStatus.UNPROCESSABLE_ENTITY:
                raise Busy("GitHub does not delete a runner that executes a job")
            if answer.status not in {HTTPStatus.NO_CONTENT, HTTPStatus.NOT_FOUND}:
                raise refusal(answer, what="delete of a runner", now=self._clock())
            return answer.status == HTTPStatus.NO_CONTENT

        deleted = repeat(once, policy=policy, deadline=deadline, timing=self._timing)
        if not deleted:
            self._page(
                installation_id=installation_id, scope=scope, query="per_page=1", deadline=deadline, policy=policy
            )

    def get_job(
        self,
        *,
        installation_id: int,
        repository: str | int,
        job_id: int,
        policy: RetryPolicy = ONCE,
        optional: bool = False,
    ) -> JobSeen | None:
        """Return a job of a repository, by its `owner/name` or its id, or None when GitHub does not know it.

        An `optional` look-up is shed first when calls are scarce. Raises `Invalid` when the repository's name cannot be
        one.
        """
        found = self._look_up(
            installation_id=installation_id,
            path=f"{_home(repository)}/actions/jobs/{job_id}",
            policy=policy,
            call_class=CallClass.OPTIONAL if optional else CallClass.READ,
            what="look-up of a job",
            read=partial(_job, job_id=job_id),
        )
        return next(iter(found.items), None)

    def get_run(
        self,
        *,
        installation_id: int,
        repository: str | int,
        run_id: int,
        policy: RetryPolicy = ONCE,
        optional: bool = False,
    ) -> RunSeen | None:
        """Return a workflow run of a repository, as `get_job`, or None when GitHub does not know it.

        An `optional` look-up is shed first when calls are scarce. Raises `Invalid` as `get_job` does.
        """
        found = self.look_up_run(
            installation_id=installation_id, repository=repository, run_id=run_id, policy=policy, optional=optional
        )
        return next(iter(found.items), None)

    def look_up_run(
        self,
        *,
        installation_id: int,
        repository: str | int,
        run_id: int,
        policy: RetryPolicy = ONCE,
        optional: bool = False,
    ) -> ListPage[RunSeen]:
        """Return what `get_run` does as a list of one or none, with what it cost."""
        return self._look_up(
            installation_id=installation_id,
            path=f"{_home(repository)}/actions/runs/{run_id}",
            policy=policy,
            call_class=CallClass.CATCH_UP if optional else CallClass.READ,
            what="look-up of a run",
            read=partial(_run, run_id=run_id),
        )

    def list_runs(
        self,
        *,
        installation_id: int,
        repository: str,
        status: str,
        page: int = 1,
        etag: str | None = None,
        policy: RetryPolicy = ONCE,
    ) -> ListPage[RunSeen]:
        """Return a page of the workflow runs of a repository that have this status; shed first when calls are scarce.

        GitHub shows no more than the newest 1,000 of such a list, however many it counts.
        """
        path = f"{Scope.repository(repository).path}/actions/runs?status={quote(status, safe='')}"
        return self._list_page(
            installation_id=installation_id,
            path=f"{path}&per_page={PAGE}&page={page}",
            etag=etag,
            policy=policy,
            what="list of runs",
            key="workflow_runs",
            read=read_run,
        )

    def list_run_jobs(
        self,
        *,
        installation_id: int,
        repository: str,
        run: RunSeen,
        every_attempt: bool = False,
        page: int = 1,
        etag: str | None = None,
        policy: RetryPolicy = ONCE,
    ) -> ListPage[WorkflowJobEvent]:
        """Return a page of the jobs of a run, each as the webhook would be that tells its status of now.

        Of its latest attempt, or of all. Shed first when calls are scarce.
        """
        path = f"{Scope.repository(repository).path}/actions/runs/{run.id}/jobs"
        query = f"filter={'all' if every_attempt else 'latest'}&per_page={PAGE}&page={page}"
        return self._list_page(
            installation_id=installation_id,
            path=f"{path}?{query}",
            etag=etag,
            policy=policy,
            what="list of jobs",
            key="jobs",
            read=partial(read_listed_job, run=run, installation_id=installation_id),
        )

    def get_installation(self, *, installation_id: int, deadline_seconds: float | None = None) -> InstallationSeen:
        """Return an installation of the App, under the login that its account has now. Raises `NotInstalled`."""
        answer = self._call_as_app(
            call_class=CallClass.READ,
            method="GET",
            path=f"/app/installations/{installation_id}",
            deadline=Deadline(deadline_seconds),
        )
        if answer.status == HTTPStatus.NOT_FOUND:
            raise NotInstalled("the App is not installed there any more")
        if answer.status != HTTPStatus.OK:
            raise refusal(answer, what="look-up of an installation", now=self._clock())
        with _sense(answer, "look-up of an installation"):
            content = fields.decode(answer.body)
            account = fields.section(content, "account")
            return InstallationSeen(
                account_id=fields.number(account, "id"),
                login=fields.login(account, "login"),
                suspended=content.get("suspended_at") is not None,
            )

    def get_app(self, *, deadline_seconds: float | None = None) -> AppSeen:
        """Return the App itself: that GitHub answers proves its id and its key, and their clocks' agreement."""
        answer = self._call_as_app(
            call_class=CallClass.READ, method="GET", path="/app", deadline=Deadline(deadline_seconds)
        )
        if answer.status != HTTPStatus.OK:
            raise refusal(answer, what="look-up of the App", now=self._clock())
        with _sense(answer, "look-up of the App"):
            return read_app(answer)

    def is_public(self, *, slug: str, deadline_seconds: float | None = None) -> bool | None:
        """Return whether anybody may install the App of this slug; None when GitHub does not say.

        GitHub shows an App to a caller who is not authenticated only when it is public ("Get an app").
        """
        answer = self._http.request(
            method="GET", path=f"/apps/{quote(slug, safe='')}", authorization=None, deadline=Deadline(deadline_seconds)
        )
        return {200: True, 404: False}.get(answer.status)

    def clock_ahead(self, *, deadline_seconds: float | None = None) -> timedelta | None:
        """Return by how much our clock is ahead of GitHub's, by the date of any answer; None when it has none."""
        answer = self._http.request(method="GET", path="/", authorization=None, deadline=Deadline(deadline_seconds))
        return clock_ahead(answer, self._clock())

    def runner_ends(
        self, *, installation_id: int, login: str, version: str, deadline_seconds: float | None = None
    ) -> datetime | None:
        """Return until when runners of a version may register; None where GitHub does not say.

        Github docs: "Get runner version deprecation info", of API version 2026-03-10.
        """
        answer = self._call(
            installation_id=installation_id,
            call_class=CallClass.READ,
            method="GET",
            path=f"{Scope.organization(login).path}/actions/runners/deprecations/{quote(version, safe='')}",
            deadline=Deadline(deadline_seconds),
            api_version=DEPRECATIONS,
        )
        if answer.status in {HTTPStatus.NOT_FOUND, HTTPStatus.BAD_REQUEST, HTTPStatus.GONE}:
            return None
        if answer.status != HTTPStatus.OK:
            raise refusal(answer, what="look-up of a runner version", now=self._clock())
        with _sense(answer, "look-up of a runner version"):
            return fields.optional_moment(fields.decode(answer.body), "registration_deprecates_at")

    def list_installations(self, *, deadline_seconds: float | None = None) -> list[AppInstallation]:
        """Return where the App is installed, a hundred at most, with what was granted there."""
        answer = self._call_as_app(
            call_class=CallClass.READ,
            method="GET",
            path=f"/app/installations?per_page={PAGE}",
            deadline=Deadline(deadline_seconds),
        )
        if answer.status != HTTPStatus.OK:
            raise refusal(answer, what="list of installations", now=self._clock())
        with _sense(answer, "list of installations"):
            return read_installations(answer)

    def list_deliveries(self, *, cursor: str | None = None, policy: RetryPolicy = ONCE) -> DeliveryPage:
        """Return a page of what GitHub tried to deliver to the App's webhook, newest first.

        `cursor` is that of the page before, None for the first. Raises `Invalid` when GitHub does not take the cursor.
        """
        query = f"per_page={PAGE}" + ("" if cursor is None else f"&cursor={quote(cursor, safe='')}")
        deadline = Deadline(policy.deadline)

        def once() -> DeliveryPage:
            answer = self._call_as_app(
                call_class=CallClass.OPTIONAL, method="GET", path=f"/app/hook/deliveries?{query}", deadline=deadline
            )
            if answer.status != HTTPStatus.OK:
                raise refusal(answer, what="list of deliveries", now=self._clock())
            with _sense(answer, "list of deliveries"):
                return read_page(answer.body, answer.headers)

        return repeat(once, policy=policy, deadline=deadline, timing=self._timing)

    def probe(self, *, deadline_seconds: float | None = None) -> None:
        """Ask for one delivery at most, as the App itself, only to see whether GitHub answers."""
        answer = self._call_as_app(
            call_class=CallClass.READ,
            method="GET",
            path="/app/hook/deliveries?per_page=1",
            deadline=Deadline(deadline_seconds),
        )
        if answer.status != HTTPStatus.OK:
            raise refusal(answer, what="probe", now=self._clock())

    def redeliver(self, *, delivery_id: int, deadline_seconds: float | None = None) -> None:
        """Ask GitHub to deliver once more, under the same GUID; it does so later, as an attempt of its own.

        Raises `Gone` (GitHub keeps the delivery no more) and `Invalid` (it cannot be delivered again).
        """
        answer = self._call_as_app(
            call_class=CallClass.WRITE,
            method="POST",
            path=f"/app/hook/deliveries/{delivery_id}/attempts",
            deadline=Deadline(deadline_seconds),
        )
        if answer.status != HTTPStatus.ACCEPTED:
            raise refusal(answer, what="redelivery", now=self._clock())

    def _look_up(
        self,
        *,
        installation_id: int,
        path: str,
        policy: RetryPolicy,
        call_class: CallClass,
        what: str,
        read: Callable[[Mapping[str, Any]], T],
    ) -> ListPage[T]:
        deadline = Deadline(policy.deadline)

        def once() -> ListPage[T]:
            answer = self._call(
                installation_id=installation_id, call_class=call_class, method="GET", path=path, deadline=deadline
            )
            if answer.status == HTTPStatus.NOT_FOUND:
                return only(None, answer)
            if answer.status != HTTPStatus.OK:
                raise refusal(answer, what=what, now=self._clock())
            with _sense(answer, what):
                return only(read(fields.decode(answer.body)), answer)

        return repeat(once, policy=policy, deadline=deadline, timing=self._timing)

    def _list_page(
        self,
        *,
        installation_id: int,
        path: str,
        etag: str | None,
        policy: RetryPolicy,
        what: str,
        key: str,
        read: Callable[[Any], T],
    ) -> ListPage[T]:
        deadline = Deadline(policy.deadline)

        def once() -> ListPage[T]:
            answer = self._call(
                installation_id=installation_id,
                call_class=CallClass.CATCH_UP,
                method="GET",
                path=path,
                deadline=deadline,
                etag=etag,
            )
            if answer.status == HTTPStatus.NOT_MODIFIED and etag is not None:
                return unchanged(answer)
            if answer.status != HTTPStatus.OK:
                raise refusal(answer, what=what, now=self._clock())
            with _sense(answer, what):
                return read_list(answer, key=key, read=read)

        return repeat(once, policy=policy, deadline=deadline, timing=self._timing)

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
            """Ask for a page; return how many are on it, and on all."""
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
                raise Retryable("more runners went than a page has")
            if total < before:
                ask(page - 1)  # some went, so as many others slid from the beginning of this page to the end of that
            if shown < PAGE or page * PAGE >= total:
                break
            before = total
        if len(seen) < total:
            raise Retryable("GitHub showed fewer runners than it counted")
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
        """Return one page of runners and how many GitHub counts in all."""

        def once() -> tuple[list[RunnerSeen], int]:
            answer = self._call(
                installation_id=installation_id,
                call_class=call_class,
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

        return repeat(once, policy=policy, deadline=deadline, timing=self._timing)

    def _call(
        self,
        *,
        installation_id: int,
        call_class: CallClass,
        method: str,
        path: str,
        deadline: Deadline,
        body: bytes | None = None,
        etag: str | None = None,
        api_version: str = API_VERSION,
    ) -> Answer:
        """Return the answer to a call in the name of an installation.

        A refused token is renewed and a renamed repository followed, by its id, once each.
        """
        followed = False
        for attempt in (1, 2, 3):
            token = self._auth.installation_token(installation_id=installation_id, deadline=deadline)
            with self._governor.call(installation_id, call_class) as ticket:
                answer = ticket.answer = self._http.request(
                    method=method,
                    path=path,
                    authorization=f"Bearer {token.secret.reveal()}",
                    body=body,
                    deadline=deadline,
                    etag=etag,
                    api_version=api_version,
                )
            moved = None if followed else self._http.moved_repository(answer)
            if moved is not None:
                path, followed = moved, True
            elif answer.status == HTTPStatus.UNAUTHORIZED and attempt == 1:
                self._auth.drop(installation_id=installation_id, token=token)
            else:
                break
        return answer

    def _call_as_app(self, *, call_class: CallClass, method: str, path: str, deadline: Deadline) -> Answer:
        """Return the answer to a call in the name of the App itself."""
        with self._governor.call(APP, call_class) as ticket:
            ticket.answer = answer = self._http.request(
                method=method, path=path, authorization=f"Bearer {self._auth.app_token().reveal()}", deadline=deadline
            )
        return answer


def _home(repository: str | int) -> str:
    """Return the beginning of a repository's paths. The form by id is that of GitHub's redirect after a renaming."""
    return f"/repositories/{repository}" if isinstance(repository, int) else Scope.repository(repository).path


def _deadline(seconds: float | None, policy: RetryPolicy) -> Deadline:
    """Return the time of a call and its repetitions: the least that was given."""
    return Deadline(min((each for each in (seconds, policy.deadline) if each is not None), default=None))


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
        version=_short(source.get("version")),
        os=_short(source.get("os")),
    )


def _short(value: Any) -> str | None:
    """Return a word of at most 100 characters, None for anything else: no list fails for what is only shown."""
    return value.lower() if isinstance(value, str) and 0 < len(value) <= 100 else None  # noqa: PLR2004


def _run(source: Mapping[str, Any], *, run_id: int) -> RunSeen:
    found = read_run(source)
    if found.id != run_id:
        raise fields.Malformed("id")
    return found


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

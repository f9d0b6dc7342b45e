"""Calls of GitHub's page "REST API endpoints for workflow runs"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import quote

from github_adapters import fields
from github_adapters.calls.governor import CallClass
from github_adapters.calls.session import Session
from github_adapters.endpoints.pages import PAGE, ListPage, home_of, list_page, look_up
from github_adapters.webhooks import Home, read_home
from rules.routing.forks import Origin, origin_of
from rules.routing.scopes import Scope
from rules.upstream.retry import ONCE, RetryPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSeen:
    """A workflow run. `status`, `conclusion` and `event` have the values that GitHub uses.

    `attempt` is 1 for the first run, and increases by 1 with each re-run. `head_repository_id` is the id of the
    repository with the head commit, or None if GitHub does not show it. `pull_request_heads` has the id of the head
    repository of each open pull request that the run lists.
    """

    id: int
    attempt: int
    status: str
    conclusion: str | None
    created_at: datetime
    home: Home
    event: str = ""
    head_repository_id: int | None = None
    pull_request_heads: tuple[int | None, ...] = ()

    @property
    def origin(self) -> Origin:
        """Return the origin of the run, which shows whether the run comes from a fork."""
        return origin_of(
            event=self.event,
            repository_id=self.home.repository_id,
            head_repository_id=self.head_repository_id,
            pull_request_heads=self.pull_request_heads,
        )

    @property
    def over(self) -> bool:
        """Return True if this attempt of the run is completed. None of its jobs will then run any more."""
        return self.status == "completed"


class Runs:
    """The workflow runs of a repository."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def get_run(
        self,
        *,
        installation_id: int,
        repository: str | int,
        run_id: int,
        policy: RetryPolicy = ONCE,
        optional: bool = False,
    ) -> RunSeen | None:
        """Return a workflow run of a repository, or None if GitHub does not know the run.

        `repository` is the `owner/name` or the id of the repository. When the quota runs low, calls with `optional` are
        refused before calls without it. Raises `Invalid` if `repository` is no valid name.
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
        """Return the result of `get_run` as a page with one run, or with no run if GitHub does not know the run.

        The page also has the cost of the call.
        """
        return look_up(
            self._session,
            installation_id=installation_id,
            path=f"{home_of(repository)}/actions/runs/{run_id}",
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
        """Return a page of the workflow runs of a repository with this status.

        When the quota runs low, this call is among the first to be refused. GitHub lists only the newest 1,000 runs,
        even if its total count is higher.
        """
        path = f"{Scope.repository(repository).path}/actions/runs?status={quote(status, safe='')}"
        return list_page(
            self._session,
            installation_id=installation_id,
            path=f"{path}&per_page={PAGE}&page={page}",
            etag=etag,
            policy=policy,
            what="list of runs",
            key="workflow_runs",
            read=read_run,
        )


def _run(source: Mapping[str, Any], *, run_id: int) -> RunSeen:
    found = read_run(source)
    if found.id != run_id:
        raise fields.Malformed("id is not the requested one")
    return found


def read_run(source: Any) -> RunSeen:
    """Return a run from its JSON. Raises `Malformed` if the JSON does not have the expected form."""
    if not isinstance(source, dict):
        raise fields.Malformed("the run is not an object")
    attempt = source.get("run_attempt")
    return RunSeen(
        id=fields.number(source, "id"),
        attempt=1 if attempt is None else fields.number(source, "run_attempt", most=fields.INTEGER_MAX),
        status=fields.word(source, "status"),
        conclusion=fields.optional_word(source, "conclusion"),
        created_at=fields.moment(source, "created_at"),
        home=read_home(fields.section(source, "repository")),
        event=fields.optional_text(source, "event") or "",
        head_repository_id=_id_of(source.get("head_repository")),
        pull_request_heads=_pull_request_heads(source.get("pull_requests")),
    )


def _pull_request_heads(listed: Any) -> tuple[int | None, ...]:
    """Return the id of the head repository of each pull request that a run lists."""
    if not isinstance(listed, list):
        return ()
    heads = (each.get("head") if isinstance(each, dict) else None for each in listed)
    return tuple(_id_of(head.get("repo")) if isinstance(head, dict) else None for head in heads)


def _id_of(repository: Any) -> int | None:
    """Return the id of a repository.

    Return None if GitHub does not show the id, or if the id cannot be parsed.
    """
    found = repository.get("id") if isinstance(repository, dict) else None
    return found if isinstance(found, int) and not isinstance(found, bool) else None

"""Calls of GitHub's page "REST API endpoints for workflow jobs".

A job in a list is parsed into the same kind of event as a webhook, so that the same code can apply it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from github_adapters import fields
from github_adapters.calls.governor import CallClass
from github_adapters.calls.session import Session
from github_adapters.endpoints.pages import PAGE, ListPage, home_of, list_page, look_up
from github_adapters.endpoints.runs import RunSeen
from github_adapters.webhooks import read_job
from rules.intake.events import WorkflowJobEvent
from rules.routing.scopes import Scope
from rules.upstream.retry import ONCE, RetryPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSeen:
    """A job as GitHub shows it. `status` and `conclusion` have the values that GitHub uses. Times are in UTC."""

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


class Jobs:
    """The jobs of a repository or of a run."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def get_job(
        self,
        *,
        installation_id: int,
        repository: str | int,
        job_id: int,
        policy: RetryPolicy = ONCE,
        optional: bool = False,
    ) -> JobSeen | None:
        """Return a job of a repository, or None if GitHub does not know the job.

        `repository` is the `owner/name` or the id of the repository. When the quota runs low, calls with `optional` are
        refused before calls without it. Raises `Invalid` if `repository` is no valid name.
        """
        found = look_up(
            self._session,
            installation_id=installation_id,
            path=f"{home_of(repository)}/actions/jobs/{job_id}",
            policy=policy,
            call_class=CallClass.OPTIONAL if optional else CallClass.READ,
            what="look-up of a job",
            read=partial(_job, job_id=job_id),
        )
        return next(iter(found.items), None)

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
        """Return a page of the jobs of a run, each as an event.

        The event is the one that a webhook would send for the present status of the job.

        If `every_attempt` is True, the page has the jobs of all attempts of the run, otherwise only of the latest
        attempt. When the quota runs low, this call is among the first to be refused.
        """
        path = f"{Scope.repository(repository).path}/actions/runs/{run.id}/jobs"
        query = f"filter={'all' if every_attempt else 'latest'}&per_page={PAGE}&page={page}"
        return list_page(
            self._session,
            installation_id=installation_id,
            path=f"{path}?{query}",
            etag=etag,
            policy=policy,
            what="list of jobs",
            key="jobs",
            read=partial(read_listed_job, run=run, installation_id=installation_id),
        )


def read_listed_job(source: Any, *, run: RunSeen, installation_id: int) -> WorkflowJobEvent:
    """Return the event that a webhook would send now for a job from a list.

    The action of the event is the job's status. Raises `Malformed` if the job does not have the expected form.
    """
    if not isinstance(source, dict) or fields.number(source, "run_id") != run.id:
        raise fields.Malformed("the job is not an object, or is of another run")
    return read_job(source, action=fields.word(source, "status"), home=run.home, installation_id=installation_id)


def _job(source: Mapping[str, Any], *, job_id: int) -> JobSeen:
    if fields.number(source, "id") != job_id:
        raise fields.Malformed("id is not the requested one")
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

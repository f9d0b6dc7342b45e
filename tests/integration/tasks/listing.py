"""A GitHub that lists runs and their jobs, for tests of the sweep `catch_up`."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from github_adapters.endpoints.jobs import JobSeen
from github_adapters.endpoints.pages import ListPage
from github_adapters.endpoints.runs import RunSeen
from github_adapters.webhooks import Home
from models.db.engine import in_transaction
from ostler.clock import utcnow
from rules.intake.events import WorkflowJobEvent

PAGE = 100


def home_of(repository: str) -> Home:
    """Return a repository of account 1."""
    return Home(repository=repository, repository_id=11, owner_id=1, owner_login="acme", owner_type="Organization")


@dataclass
class Listing:
    """Runs by repository, and the jobs of each run. `breaks` are raised for any call about a repository."""

    runs: dict[int, RunSeen] = field(default_factory=dict)
    jobs: dict[int, list[WorkflowJobEvent]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    paid: Counter[int] = field(default_factory=Counter)
    breaks: dict[str, Exception] = field(default_factory=dict)
    refuses: list[Exception] = field(default_factory=list)
    """Errors of the next calls, one for each call."""
    broken: dict[int, Exception] = field(default_factory=dict)
    """Errors of all requests for a run or its jobs, by run."""
    withheld: int = 0
    """Number of entries that each list lacks, compared with its count."""
    meanwhile: Callable[[], object] | None = None
    """Called when the jobs of a run are requested."""
    quota: int | None = 5000
    redirects: int = 0
    """Number of redirects for each page of a list."""
    moved: dict[str, str] = field(default_factory=dict)
    """Present name of a repository by its former name."""
    _numbers: Any = field(default_factory=lambda: itertools.count(1000))

    def run(
        self,
        *jobs: WorkflowJobEvent,
        status: str = "queued",
        conclusion: str | None = None,
        minutes: float = 10,
        repository: str = "acme/shop",
        attempt: int = 1,
    ) -> int:
        """Add a run that was created some minutes ago, and return its id."""
        number: int = next(self._numbers)
        self.runs[number] = RunSeen(
            id=number,
            attempt=attempt,
            status=status,
            conclusion=conclusion,
            created_at=utcnow() - timedelta(minutes=minutes),
            home=home_of(repository),
        )
        self.jobs[number] = [replace(job, run_id=number, repository=repository) for job in jobs]
        return number

    def end(self, run_id: int, *, status: str = "completed", conclusion: str | None = "startup_failure") -> None:
        """Change the state of a run."""
        self.runs[run_id] = replace(self.runs[run_id], status=status, conclusion=conclusion)

    def list_runs(
        self, *, installation_id: int, repository: str, status: str, page: int, etag: str | None, policy: Any
    ) -> ListPage[RunSeen]:
        """Return a page of runs."""
        self._ask(f"{status} {repository}", repository, policy)
        name = self.moved.get(repository, repository)
        found = [run for run in self.runs.values() if run.home.repository == name and run.status == status]
        return self._page(installation_id, found, page, etag)

    def list_run_jobs(
        self,
        *,
        installation_id: int,
        repository: str,
        run: RunSeen,
        every_attempt: bool,
        page: int,
        etag: str | None,
        policy: Any,
    ) -> ListPage[WorkflowJobEvent]:
        """Return a page of the jobs of a run."""
        self._ask(f"jobs {run.id}", repository, policy)
        if run.id in self.broken:
            raise self.broken[run.id]
        if self.meanwhile is not None:
            self.meanwhile()
        latest = self.runs[run.id].attempt
        jobs = [
            replace(each, installation_id=installation_id)
            for each in self.jobs[run.id]
            if every_attempt or each.run_attempt == latest
        ]
        return self._page(installation_id, jobs, page, etag)

    def look_up_run(
        self, *, installation_id: int, repository: str, run_id: int, policy: Any, optional: bool = False
    ) -> ListPage[RunSeen]:
        """Return a run, or no run."""
        assert optional, "what can wait is shed first"
        self._ask(f"run {run_id}", repository, policy)
        if run_id in self.broken:
            raise self.broken[run_id]
        self.paid[installation_id] += 1
        found = self.runs.get(run_id)
        return ListPage(items=() if found is None else (found,), quota=self.quota, cost=1 + self.redirects)

    def _ask(self, what: str, repository: str, policy: Any) -> None:
        assert not in_transaction()
        assert policy.attempts == 1
        assert policy.deadline > 0
        self.asked.append(what)
        if repository in self.breaks:
            raise self.breaks[repository]
        if self.refuses:
            raise self.refuses.pop(0)

    def _page(self, installation_id: int, items: list[Any], page: int, etag: str | None) -> ListPage[Any]:
        now = str(hash(tuple(items)))
        if etag == now:
            return ListPage(unchanged=True, quota=self.quota, cost=self.redirects)
        self.paid[installation_id] += 1
        shown = items[(page - 1) * PAGE : page * PAGE]
        last = page * PAGE >= len(items)
        return ListPage(
            items=tuple(shown[: len(shown) - self.withheld] if last else shown),
            total=len(items),
            etag=now,
            quota=self.quota,
            cost=1 + self.redirects,
        )


def job(
    job_id: int,
    status: str = "queued",
    *,
    conclusion: str | None = None,
    minutes: float = 10,
    attempt: int = 1,
    over: float | None = None,
    labels: tuple[str, ...] = ("self-hosted",),
    runner: str | None = None,
) -> WorkflowJobEvent:
    """Return a job as a list shows it, created some minutes ago. `over` is the number of minutes since its end."""
    now: datetime = utcnow()
    ended = None if status != "completed" else now - timedelta(minutes=minutes if over is None else over)
    return WorkflowJobEvent(
        action=status,
        job_id=job_id,
        run_id=1,
        run_attempt=attempt,
        name="build",
        workflow_name="CI",
        status=status,
        conclusion=conclusion,
        labels=labels,
        runner_name=runner,
        runner_id=None,
        created_at=now - timedelta(minutes=minutes),
        started_at=None,
        completed_at=ended,
        head_branch="main",
        repository="acme/shop",
        repository_id=11,
        owner_id=1,
        owner_login="acme",
        owner_type="Organization",
        installation_id=501,
    )


def job_seen(
    job_id: int,
    status: str,
    conclusion: str | None = None,
    *,
    runner: str | None = None,
    labels: tuple[str, ...] = (),
) -> JobSeen:
    """Return a job of run 1 as GitHub shows it by its id."""
    return JobSeen(
        id=job_id,
        run_id=1,
        run_attempt=1,
        status=status,
        conclusion=conclusion,
        labels=labels,
        runner_id=None,
        runner_name=runner,
        created_at=None,
        started_at=None,
        completed_at=None,
    )

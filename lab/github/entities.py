"""Records of this GitHub: accounts, repositories, jobs, runners and their sessions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from lab.github.refusals import Refusal

QUEUED, WAITING, RUNNING, COMPLETED = "queued", "waiting", "in_progress", "completed"


@dataclass(kw_only=True)
class Repository:
    """A repository. `tail` is the constant end of every webhook body about it."""

    id: int
    name: str
    account: Account
    tail: bytes = b""
    private: bool = True

    @property
    def full_name(self) -> str:
        """Return `owner/name`."""
        return f"{self.account.login}/{self.name}"


@dataclass(kw_only=True)
class Group:
    """A runner group of an organisation.

    `visibility` is `all`, `private` or `selected`. With `selected`, the group admits only the ids in `repositories`.
    """

    id: int
    name: str
    visibility: str = "all"
    public: bool = False
    repositories: set[int] = field(default_factory=set)

    def admits(self, repository: Repository) -> bool:
        """Return whether runners of the group get jobs of this repository."""
        if not repository.private and (not self.public or self.visibility == "private"):
            return False
        return self.visibility != "selected" or repository.id in self.repositories


def default_groups() -> dict[int, Group]:
    """Return the groups of a new organisation."""
    return {1: Group(id=1, name="Default")}


@dataclass(kw_only=True)
class Account:
    """An organisation or user with the App installed. The `groups` of a user have no effect.

    `refusals`: the first one that matches a mint is its answer.
    """

    id: int
    login: str
    type: str
    installation_id: int
    repositories: dict[str, Repository] = field(default_factory=dict)
    groups: dict[int, Group] = field(default_factory=default_groups)
    suspended: bool = False
    installed: bool = True
    refusals: list[Refusal] = field(default_factory=list)


@dataclass(kw_only=True)
class Job:
    """A `workflow_job`.

    `runners` has the ids of the runners that have the job now: none or one, or two under sabotage. `executions` counts
    how often a runner started it.
    """

    id: int
    run_id: int
    repository: Repository
    labels: tuple[str, ...]
    duration_seconds: float
    name: str
    workflow_name: str
    head_branch: str
    status: str
    created_at: datetime
    run_attempt: int = 1
    conclusion: str | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    runner: Runner | None = None
    runners: set[int] = field(default_factory=set)
    executions: int = 0
    next_delivery: float = 0


@dataclass(kw_only=True)
class Run:
    """A workflow run with its jobs, oldest first.

    `ended_as`: conclusion of a run that ended regardless of its jobs. `fork`: id and full name of the repository that a
    pull request came from, or None if it is the run's own repository.
    """

    id: int
    jobs: list[Job] = field(default_factory=list)
    ended_as: str | None = None
    event: str = "push"
    fork: tuple[int, str] | None = None

    @property
    def status(self) -> str:
        """Return the status of the run, derived from its jobs."""
        found = {job.status for job in self.jobs}
        if self.ended_as is not None or found == {COMPLETED}:
            return COMPLETED
        if found & {RUNNING, COMPLETED}:
            return RUNNING
        return QUEUED if QUEUED in found else WAITING

    @property
    def conclusion(self) -> str | None:
        """Return the conclusion of the run, or None: the first conclusion of its jobs that is not `success`, if any."""
        if self.ended_as is not None or self.status != COMPLETED:
            return self.ended_as
        bad = [job.conclusion for job in self.jobs if job.conclusion != "success"]
        return bad[0] if bad else "success"


@dataclass(kw_only=True, eq=False)
class Session:
    """Connection of a started runner. `polls` counts its open long polls."""

    id: str
    runner: Runner
    seen: float
    polls: int = 0
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    over: bool = False


@dataclass(kw_only=True, eq=False)
class Runner:
    """A just-in-time runner. It is busy as soon as a job is assigned to it."""

    id: int
    name: str
    scope: str
    labels: tuple[str, ...]
    group_id: int
    jit_used: bool = False
    online: bool = False
    session: Session | None = None
    job: Job | None = None
    assigned: float = 0
    handed: bool = False
    started: bool = False
    seen: float = 0
    version: str | None = None
    updating: bool = False

    def view(self) -> dict[str, Any]:
        """Return the runner in the shape of GitHub's REST API."""
        return {
            "id": self.id,
            "runner_group_id": self.group_id,
            "name": self.name,
            "os": "Linux" if self.jit_used else "unknown",
            "status": "online" if self.online else "offline",
            "busy": self.job is not None,
            "ephemeral": True,
            "version": self.version,
            "labels": [{"id": i, "name": label, "type": "custom"} for i, label in enumerate(self.labels, start=1)],
        }


def stamp(moment: datetime | None) -> str | None:
    """Format a time as GitHub does: UTC, whole seconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ") if moment else None


def now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)

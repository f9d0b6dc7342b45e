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
    """A repository. `tail` is the end of the body of every `workflow_job` webhook about it."""

    id: int
    name: str
    account: Account
    tail: bytes = b""
    private: bool = True

    @property
    def full_name(self) -> str:
        """`owner/name`."""
        return f"{self.account.login}/{self.name}"


@dataclass(kw_only=True)
class Group:
    """A runner group of an organisation.

    `visibility` is `all`, `private`, or `selected`, which means the repositories whose ids are in `repositories`.
    """

    id: int
    name: str
    visibility: str = "all"
    public: bool = False
    repositories: set[int] = field(default_factory=set)

    def admits(self, repository: Repository) -> bool:
        """Return whether the group's runners may get jobs of this repository."""
        if not repository.private and (not self.public or self.visibility == "private"):
            return False
        return self.visibility != "selected" or repository.id in self.repositories


def default_groups() -> dict[int, Group]:
    """Return the groups that every organisation has at the start."""
    return {1: Group(id=1, name="Default")}


@dataclass(kw_only=True)
class Account:
    """An organisation or user with the App installed. The `groups` of a user are not used.

    `refusals` apply to the account's mints. The first refusal that matches a mint answers it.
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
    """A `workflow_job`. `runners` are the ids of the runners that have it now: at most one, or two under sabotage.

    `executions` counts how often a runner began the job. `script` is shell text that a real runner executes as its job.
    `containers` has the `container`, the `services` and the `steps` of a container job, as in
    `lab/kubelet/runner/container_job.py`. A job without `script` and `containers` only takes time.
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
    script: str = ""
    containers: dict[str, Any] | None = None
    group: str | None = None
    """Name of the runner group in `runs-on`, which no answer of the API shows."""


@dataclass(kw_only=True)
class Run:
    """A workflow run with its jobs, oldest first.

    `ended_as` is the conclusion of a run that ended without its jobs, or None. `fork` is the id and full name of the
    fork that a pull request came from, or None if there is no fork.
    """

    id: int
    jobs: list[Job] = field(default_factory=list)
    ended_as: str | None = None
    event: str = "push"
    fork: tuple[int, str] | None = None

    @property
    def status(self) -> str:
        """The status of the run, derived from its jobs."""
        found = {job.status for job in self.jobs}
        if self.ended_as is not None or found == {COMPLETED}:
            return COMPLETED
        if found & {RUNNING, COMPLETED}:
            return RUNNING
        return QUEUED if QUEUED in found else WAITING

    @property
    def conclusion(self) -> str | None:
        """The conclusion of the run, or None while it is not over.

        It is `ended_as` if the run ended without its jobs. Otherwise it is `success` if all jobs succeeded, and the
        first other conclusion of a job if not.
        """
        if self.ended_as is not None or self.status != COMPLETED:
            return self.ended_as
        bad = [job.conclusion for job in self.jobs if job.conclusion != "success"]
        return bad[0] if bad else "success"


@dataclass(kw_only=True, eq=False)
class Session:
    """The connection of a started runner. `polls` counts the long polls that are open now."""

    id: str
    runner: Runner
    seen: float
    polls: int = 0
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    over: bool = False


@dataclass(kw_only=True, eq=False)
class Runner:
    """A runner. It is busy from the moment at which a job is assigned to it.

    A just-in-time runner is deleted after its job. A `persistent` runner registered itself with a registration token,
    and gets one job after the other.
    """

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
    persistent: bool = False

    def view(self) -> dict[str, Any]:
        """Return the runner in the format of GitHub's REST API."""
        return {
            "id": self.id,
            "runner_group_id": self.group_id,
            "name": self.name,
            "os": "Linux" if self.jit_used else "unknown",
            "status": "online" if self.online else "offline",
            "busy": self.job is not None,
            "ephemeral": not self.persistent,
            "version": self.version,
            "labels": [{"id": i, "name": label, "type": "custom"} for i, label in enumerate(self.labels, start=1)],
        }


def stamp(moment: datetime | None) -> str | None:
    """Return a time in GitHub's format: UTC, whole seconds. Returns None for None."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ") if moment else None


def now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)

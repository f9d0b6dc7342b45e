"""A tiny GitHub: jobs, registered runners, and the webhooks that it still has to send."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from github_adapters.endpoints.app import InstallationSeen
from github_adapters.endpoints.jobs import JobSeen
from github_adapters.endpoints.runners import Jit, RunnerSeen
from ostler.errors import Busy, Conflict, Forbidden, Gone, Invalid, RateLimited
from ostler.secrets import Secret
from rules.intake.events import WorkflowJobEvent
from rules.routing.runner_groups import GroupSeen
from rules.routing.scopes import Scope
from tests.integration.models.webhook_rows import QUEUED
from tests.integration.stateful.steps import outside
from tests.integration.tasks.listing import job_seen

ACCOUNTS = {77: "acme", 88: "zoo"}
"""Ids and logins of the two organisations. The id of an installation is the id of its organisation plus 100."""

DEFAULT = GroupSeen(id=1, name="Default", visibility="all", public=False)
MOODS: dict[str, Exception | None] = {
    "well": None,
    "forbidden": Forbidden("mint: 403"),
    "gone": Gone("mint: 404"),
    "invalid": Invalid("mint: 422"),
    "limited": RateLimited("mint: 429", after=5),
    "limited for long": RateLimited("mint: 429", after=600),
}


@dataclass
class Runner:
    """One registration. `job` is set while the runner executes."""

    id: int
    name: str
    scope: str
    labels: frozenset[str]
    online: bool = False
    job: int | None = None
    persistent: bool = False


@dataclass
class Job:
    """The state of a job."""

    event: WorkflowJobEvent
    status: str = "queued"
    conclusion: str | None = None
    runner: str | None = None


class GitHub:
    """The methods of the adapter. Each of them is one call outside of the running step."""

    def __init__(self, *, late: Callable[[Callable[[], object]], None], clock: Callable[[], datetime]) -> None:
        self.jobs: dict[int, Job] = {}
        self.runners: dict[int, Runner] = {}
        self.webhooks: list[tuple[str, WorkflowJobEvent]] = []
        self.mood = "well"
        self.minted: dict[str, str] = {}
        """Runner name by JIT."""
        self._late = late
        self._clock = clock
        self._number = 0

    # What happens there

    def add_job(self, account_id: int, labels: tuple[str, ...], *, waiting: bool) -> None:
        job_id = len(self.jobs) + 1
        login = ACCOUNTS[account_id]
        event = replace(
            QUEUED,
            job_id=job_id,
            labels=labels,
            owner_id=account_id,
            owner_login=login,
            repository=f"{login}/app",
            installation_id=account_id + 100,
            created_at=self._clock(),
        )
        self.jobs[job_id] = Job(event, status="waiting" if waiting else "queued")
        self._send(job_id, "waiting" if waiting else "queued")

    def let_go(self, job_id: int) -> None:
        """Let the environment approve a waiting job."""
        self.jobs[job_id].status = "queued"
        self._send(job_id, "queued")

    def give(self, job_id: int, runner: Runner) -> None:
        """Give a queued job to an idle runner."""
        job = self.jobs[job_id]
        job.status, job.runner, runner.job = "in_progress", runner.name, job_id
        self._send(job_id, "in_progress")

    def finish(self, job_id: int, conclusion: str) -> Runner | None:
        """End a job. A single-use runner is then gone, and a persistent one is idle."""
        job = self.jobs[job_id]
        job.status, job.conclusion = "completed", conclusion
        self._send(job_id, "completed")
        runner = next((each for each in self.runners.values() if each.job == job_id), None)
        if runner is not None:
            runner.job = None
            if not runner.persistent:
                del self.runners[runner.id]
        return runner

    def register(self, registration: str) -> Runner:
        """Register the persistent runner that a registration describes."""
        given = _parse(registration)
        self._number += 1
        owner = given["url"].rpartition("/")[2]
        labels = frozenset(given["labels"].split(","))
        runner = Runner(id=self._number, name=given["name"], scope=f"orgs/{owner}", labels=labels, persistent=True)
        self.runners[runner.id] = runner
        return runner

    def name_of(self, jit: str) -> str:
        """Return the name of the runner that a JIT or a registration creates."""
        return self.minted[jit] if jit in self.minted else _parse(jit)["name"]

    def fits(self, job: Job, runner: Runner) -> bool:
        """Return whether GitHub may give this job to this runner."""
        idle = runner.online and runner.job is None and job.status == "queued"
        return idle and runner.scope == f"orgs/{job.event.owner_login}" and set(job.event.labels) <= runner.labels

    def named(self, name: str) -> Runner | None:
        return next((runner for runner in self.runners.values() if runner.name == name), None)

    def _send(self, job_id: int, action: str) -> None:
        job = self.jobs[job_id]
        now = self._clock()
        event = replace(
            job.event,
            action=action,
            status=job.status,
            conclusion=job.conclusion,
            runner_name=job.runner,
            started_at=now,
            completed_at=now if action == "completed" else None,
        )
        self._number += 1
        self.webhooks.append((f"guid-{self._number}", event))

    # What is asked of it

    def _call(self, what: str, apply: Callable[[], Any]) -> Any:
        return outside(what, apply, late=self._late)

    def mint(self, *, scope: Scope, name: str, labels: Sequence[str], **_rest: Any) -> Jit:
        return self._call(f"mint {name}", lambda: self._mint(scope, name, labels))  # type: ignore[no-any-return]

    def registration_token(self, *, scope: Scope, **_rest: Any) -> Secret:
        return self._call(f"registration token of {scope}", self._token)  # type: ignore[no-any-return]

    def list_runner_groups(self, **_rest: Any) -> list[GroupSeen]:
        return self._call("list runner groups", lambda: [DEFAULT])  # type: ignore[no-any-return]

    def find_runner(self, *, name: str, **_rest: Any) -> RunnerSeen | None:
        def apply() -> RunnerSeen | None:
            runner = self.named(name)
            return None if runner is None else _seen(runner)

        return self._call(f"find {name}", apply)  # type: ignore[no-any-return]

    def list_runners(self, *, scope: Scope, **_rest: Any) -> list[RunnerSeen]:
        return self._call(  # type: ignore[no-any-return]
            f"list {scope}", lambda: [_seen(each) for each in self.runners.values() if each.scope == str(scope)]
        )

    def delete_runner(self, *, runner_id: int, **_rest: Any) -> None:
        self._call(f"delete runner {runner_id}", lambda: self._delete(runner_id))

    def get_job(self, *, job_id: int, **_rest: Any) -> JobSeen | None:
        return self._call(f"get job {job_id}", lambda: self._job(job_id))  # type: ignore[no-any-return]

    def get_run(self, **_rest: Any) -> None:
        """Answer that no run exists."""

    def get_installation(self, *, installation_id: int, **_rest: Any) -> InstallationSeen:
        account_id = installation_id - 100
        seen = InstallationSeen(account_id=account_id, login=ACCOUNTS[account_id], suspended=False)
        return self._call(f"get installation {installation_id}", lambda: seen)  # type: ignore[no-any-return]

    def _refuse(self) -> None:
        refusal, self.mood = MOODS[self.mood], "well"
        if refusal is not None:
            raise refusal

    def _token(self) -> Secret:
        self._refuse()
        self._number += 1
        return Secret(f"token-{self._number}")

    def _mint(self, scope: Scope, name: str, labels: Sequence[str]) -> Jit:
        self._refuse()
        if self.named(name) is not None:
            raise Conflict("mint: 409")
        self._number += 1
        runner = Runner(id=self._number, name=name, scope=str(scope), labels=frozenset(labels))
        self.runners[runner.id] = runner
        self.minted[f"jit-{runner.id}"] = name
        return Jit(runner_id=runner.id, runner_name=name, config=Secret(f"jit-{runner.id}"))

    def _delete(self, runner_id: int) -> None:
        runner = self.runners.get(runner_id)
        if runner is not None and runner.job is not None:
            raise Busy("422")
        self.runners.pop(runner_id, None)

    def _job(self, job_id: int) -> JobSeen:
        job = self.jobs[job_id]
        return job_seen(job_id, job.status, job.conclusion, runner=job.runner, labels=job.event.labels)


def is_registration(jit: str) -> bool:
    """Return True for a registration, which a Pod of a persistent pool gets instead of a JIT."""
    return jit.startswith("url=")


def _parse(registration: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in registration.splitlines())


def _seen(runner: Runner) -> RunnerSeen:
    return RunnerSeen(
        id=runner.id,
        name=runner.name,
        status="online" if runner.online else "offline",
        busy=runner.job is not None,
        labels=tuple(runner.labels),
    )

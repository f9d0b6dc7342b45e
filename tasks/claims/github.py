"""Calls to GitHub that several steps share: remove the runners of a claim, and ask for the result of a job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import structlog

from github_adapters.endpoints.jobs import JobSeen
from github_adapters.endpoints.runs import RunSeen
from models.claims import releases
from models.intake import repositories
from models.routing import accounts
from ostler.errors import Gone, UpstreamError
from ostler.reasons import meaning_of
from rules.claims.job_outcomes import NO_JOB, WAITS, JobOutcome, OverRun, from_github
from rules.routing.scopes import Scope
from tasks.worker.base import RELEASE, Policy, calls, remaining
from tasks.worker.runtime import Runtime
from tasks.worker.transactions import NOW

log = structlog.get_logger(__name__)


def deregister(rt: Runtime, registrations: Iterable[releases.Registration], *, policy: Policy = RELEASE) -> None:
    """Remove every given runner from GitHub. Each of them is registered or might be.

    Raises `Busy` if GitHub refuses because a runner executes a job, and every other error of GitHub's adapter.
    """
    for registration in registrations:
        remove_runner(rt, registration, policy=policy)


def remove_runner(rt: Runtime, registration: releases.Registration, *, policy: Policy) -> None:
    """Remove a runner that is registered or might be, and record the removal; raises as `deregister` does."""
    ensure_removed(rt, registration, policy=policy)
    rt.transaction(releases.registration_removed, registration.attempt_id, now=NOW)


def ensure_removed(rt: Runtime, registration: releases.Registration, *, policy: Policy) -> None:
    """Remove a runner from GitHub. When this function returns, GitHub has no such runner. Raises as `deregister` does.

    A repository is addressed by its id. If the id is unknown, its name might belong to another repository by now, and
    that repository has no such runner either. The absence of the runner then proves nothing, and `Gone` is raised (L8).
    """
    scope = Scope.parse(registration.scope)
    runner_id = registration.runner_id if scope.certain else None
    if runner_id is None:
        found = rt.github.find_runner(
            installation_id=registration.installation_id,
            scope=scope,
            name=registration.runner_name,
            policy=calls(policy),
        )
        if found is None and not scope.certain:
            raise Gone("the repository of the runner might have been replaced")
        runner_id = None if found is None else found.id
    if runner_id is not None:
        rt.github.delete_runner(
            installation_id=registration.installation_id, scope=scope, runner_id=runner_id, policy=calls(policy)
        )


def follow_owner(rt: Runtime, installation_id: int) -> bool:
    """Ask GitHub for the owner's current name after an unknown scope, and store it. Return whether the name changed."""
    try:
        seen = rt.github.get_installation(installation_id=installation_id, deadline_seconds=remaining())
    except UpstreamError as error:
        log.warning("github.installation_unknown", installation=installation_id, error=meaning_of(error))
        return False
    renamed = rt.transaction(accounts.rename_owner, account_id=seen.account_id, login=seen.login)
    if renamed:
        log.info("github.owner_renamed", account=seen.account_id, login=seen.login)
    return renamed


def ask_job_outcome(
    rt: Runtime,
    *,
    job_id: int | None,
    repository: str | None,
    installation_id: int | None,
    policy: Policy = RELEASE,
    lookups: Lookups | None = None,
) -> JobOutcome:
    """Return GitHub's answer about a job that lost its claim, or `NO_JOB` if an argument needed for the call is None.

    `lookups` and the raised errors are as for `ask_job`.
    """
    if job_id is None or repository is None or installation_id is None:
        return NO_JOB
    return ask_job(
        rt, installation_id=installation_id, repository=repository, job_id=job_id, policy=policy, lookups=lookups
    ).job_outcome


@dataclass(frozen=True, slots=True)
class JobAnswer:
    """GitHub's answer about a job. `job` is None after a 404, and `run` is None unless the job's run is over."""

    job: JobSeen | None
    run: OverRun | None

    @property
    def job_outcome(self) -> JobOutcome:
        """Return the outcome that this answer means for the job."""
        if self.job is None:
            return from_github(status=None, conclusion=None, run=self.run)
        return from_github(
            status=self.job.status, conclusion=self.job.conclusion, run=self.run, runner=self.job.runner_name
        )


@dataclass(slots=True)
class Lookups:
    """Cache of jobs and runs that one tick of a sweep has asked GitHub for. Each is requested once.

    With a cache, requests are optional: the client refuses them when its calls are scarce.
    """

    jobs: dict[int, tuple[JobSeen | None, str | int]] = field(default_factory=dict)
    runs: dict[int, RunSeen | None] = field(default_factory=dict)


def ask_job(
    rt: Runtime,
    *,
    installation_id: int,
    repository: str,
    job_id: int,
    policy: Policy,
    lookups: Lookups | None = None,
) -> JobAnswer:
    """Ask GitHub for a job, and also for its run if the job has not begun.

    A job in a finished run never begins. An answer about an earlier attempt than the job's is outdated and proves
    nothing. `lookups` is the cache of a sweep's tick. If it is given, the request is the first to be refused when calls
    are scarce. Raises what GitHub's adapter raises.
    """
    kept = lookups or Lookups()
    optional = lookups is not None
    if job_id not in kept.jobs:
        kept.jobs[job_id] = _find_job(
            rt, installation_id=installation_id, repository=repository, job_id=job_id, policy=policy, optional=optional
        )
    job, home = kept.jobs[job_id]
    if job is None or job.status not in WAITS:
        return JobAnswer(job, None)
    run = kept.runs.get(job.run_id)
    if run is None or run.attempt < job.run_attempt:
        run = kept.runs[job.run_id] = rt.github.get_run(
            installation_id=installation_id, repository=home, run_id=job.run_id, policy=calls(policy), optional=optional
        )
    over = run is not None and run.over and run.attempt >= job.run_attempt
    return JobAnswer(job, OverRun(run.conclusion) if run is not None and over else None)


def _find_job(
    rt: Runtime, *, installation_id: int, repository: str, job_id: int, policy: Policy, optional: bool
) -> tuple[JobSeen | None, str | int]:
    """Return a job, or None, and the name or id of its repository that the request used.

    After a 404 by name the job is requested by the repository's id, because the name might belong to another
    repository.
    """

    def ask(home: str | int) -> JobSeen | None:
        return rt.github.get_job(
            installation_id=installation_id, repository=home, job_id=job_id, policy=calls(policy), optional=optional
        )

    found = ask(repository)
    if found is not None:
        return found, repository
    number = rt.transaction(repositories.id_of, job_id)
    return (None, repository) if number is None else (ask(number), number)

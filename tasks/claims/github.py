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
    """Remove every given runner from GitHub. Each runner is registered on GitHub or might be registered.

    Raises `Busy` if GitHub refuses because a runner executes a job, and every other error of GitHub's adapter. After an
    error, the runners that follow in the list are not removed.
    """
    for registration in registrations:
        remove_runner(rt, registration, policy=policy)


def remove_runner(rt: Runtime, registration: releases.Registration, *, policy: Policy) -> bool:
    """Remove a runner that is registered or might be registered, and record the removal.

    Returns False if GitHub did not know the runner. Raises the errors that `deregister` raises.
    """
    found = ensure_removed(rt, registration, policy=policy)
    rt.transaction(releases.registration_removed, registration.attempt_id, now=NOW)
    return found


def ensure_removed(rt: Runtime, registration: releases.Registration, *, policy: Policy) -> bool:
    """Remove a runner from GitHub. When this function returns, GitHub has no such runner.

    Returns False if GitHub was asked for the runner by name and did not know it.

    A repository is addressed by its id. If Ostler does not know the id, it addresses the repository by name, and raises
    `Gone` if GitHub finds no such runner there. Raises also the errors that `deregister` raises.
    """
    scope = Scope.parse(registration.scope)
    # A persistent runner that was never online is found by name, because another attempt of `config.sh` might have
    # replaced the runner that had this id.
    runner_id = registration.runner_id if scope.certain and not registration.unseen else None
    if runner_id is None:
        found = rt.github.find_runner(
            installation_id=registration.installation_id,
            scope=scope,
            name=registration.runner_name,
            policy=calls(policy),
        )
        # The name might belong to another repository by now, so that the absence there proves nothing (law L8).
        if found is None and not scope.certain:
            raise Gone(
                f"the removal of runner {registration.runner_name} is not confirmed: GitHub finds no such runner in "
                f"{registration.scope}, but the repository might have been renamed since the registration of the "
                "runner; if the renamed repository lists the runner, remove it by hand"
            )
        runner_id = None if found is None else found.id
    if runner_id is not None:
        rt.github.delete_runner(
            installation_id=registration.installation_id, scope=scope, runner_id=runner_id, policy=calls(policy)
        )
    return runner_id is not None


def follow_owner(rt: Runtime, installation_id: int) -> bool:
    """Ask GitHub for the current name of an installation's owner, and store the name.

    Callers do this after GitHub did not find a scope. Return True if the stored name changed; False if it did not
    change or if GitHub did not answer.
    """
    try:
        seen = rt.github.get_installation(installation_id=installation_id, deadline_seconds=remaining())
    except UpstreamError as error:
        log.warning("installation.not_read", installation=installation_id, error=meaning_of(error))
        return False
    renamed = rt.transaction(accounts.rename_owner, account_id=seen.account_id, login=seen.login)
    if renamed:
        log.info("account.renamed", account=seen.account_id, new_login=seen.login)
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
    """Return the outcome of a job according to GitHub, or `NO_JOB` if an argument needed for the call is None.

    Callers ask before they separate a job from its claim, because the outcome decides the new state of the job.
    `lookups` has the same meaning as in `ask_job`. Raises the errors that `ask_job` raises.
    """
    if job_id is None or repository is None or installation_id is None:
        return NO_JOB
    return ask_job(
        rt, installation_id=installation_id, repository=repository, job_id=job_id, policy=policy, lookups=lookups
    ).job_outcome


@dataclass(frozen=True, slots=True)
class JobAnswer:
    """GitHub's answer about a job.

    `job`: the job, or None after a 404. `run`: the run of the job if the run is over, otherwise None.
    """

    job: JobSeen | None
    run: OverRun | None

    @property
    def job_outcome(self) -> JobOutcome:
        """Return the outcome of the job that follows from this answer."""
        if self.job is None:
            return from_github(status=None, conclusion=None, run=self.run)
        return from_github(
            status=self.job.status, conclusion=self.job.conclusion, run=self.run, runner=self.job.runner_name
        )


@dataclass(slots=True)
class Lookups:
    """Cache of the jobs and runs that GitHub has returned during one run of a sweep. Each job is looked up once.

    A request that uses a cache is optional: GitHub's client refuses optional requests first when calls are scarce.
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

    A job never begins after its run is over. If GitHub's answer is about an earlier attempt of the run than the attempt
    of the job, the answer is outdated and proves nothing. `lookups`: the cache of a run of a sweep, or None. Requests
    that use the cache are the first to be refused when calls are scarce. Raises what GitHub's adapter raises.
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
    """Return a job, or None after a 404, and the name or id of the repository that the last request used.

    If a request by the name of the repository gets a 404, the job is requested again by the id of the repository,
    because the name might belong to another repository by now.
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

"""Questions to GitHub that several steps share: remove the runners of a claim, and what became of a job."""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol

import structlog

from models import accounts, releases, steps
from models.engine import transaction
from ostler.clock import utcnow
from ostler.errors import UpstreamError
from rules.fates import NO_JOB, JobFate, from_github
from rules.scopes import Scope
from tasks.base import RELEASE, Policy, calls, remaining
from tasks.runtime import Runtime

log = structlog.get_logger(__name__)

LONGEST_WAIT = 60.0
"""Seconds after which a step that GitHub's limits keep from going on is tried again at the latest."""


def wait_for_token(rt: Runtime, work: releases.ReleaseWork, *, after: float) -> None:
    """Leave a claim to `resume`, which sends its step again when a call to GitHub may be made."""
    due_at = utcnow() + timedelta(seconds=min(after, LONGEST_WAIT))
    transaction(rt.engine, lambda db: steps.give_back(db, work, due_at=due_at, error="waits for its turn"))


class Registered(Protocol):
    """What has runners at GitHub."""

    @property
    def registrations(self) -> tuple[releases.Registration, ...]: ...  # noqa: D102


def deregister(rt: Runtime, work: Registered, *, policy: Policy = RELEASE) -> None:
    """Remove every runner that was registered, or may have been, for this claim.

    Raises `Busy` when GitHub refuses because one executes, and whatever else GitHub's adapter raises.
    """
    for registration in work.registrations:
        remove_runner(rt, registration, policy=policy)


def remove_runner(rt: Runtime, registration: releases.Registration, *, policy: Policy) -> None:
    """Remove a runner that was registered, or may have been; raises as `deregister` does."""
    scope = Scope.parse(registration.scope)
    runner_id = registration.runner_id
    if runner_id is None:
        found = rt.github.find_runner(
            installation_id=registration.installation_id, scope=scope, name=registration.runner_name,
            policy=calls(policy),
        )  # fmt: skip
        runner_id = None if found is None else found.id
    if runner_id is not None:
        rt.github.delete_runner(
            installation_id=registration.installation_id, scope=scope, runner_id=runner_id, policy=calls(policy)
        )
    transaction(rt.engine, lambda db: releases.registration_removed(db, registration.attempt_id, now=utcnow()))


def owner_renamed(rt: Runtime, work: releases.ReleaseWork) -> bool:
    """GitHub knows no such scope: write its owner's name of today down; return whether that is another one."""
    if work.installation_id is None:
        return False
    try:
        seen = rt.github.get_installation(installation_id=work.installation_id, deadline_seconds=remaining())
    except UpstreamError as error:
        log.warning("github.installation_unknown", error=type(error).__name__)
        return False
    if seen.account_id != work.account_id:
        return False
    return transaction(rt.engine, lambda db: accounts.rename_owner(db, account_id=seen.account_id, login=seen.login))


def ask_fate(
    rt: Runtime,
    *,
    job_id: int | None,
    repository: str | None,
    installation_id: int | None,
    policy: Policy = RELEASE,
) -> JobFate:
    """Return what GitHub says of a job that lost its claim; raises what GitHub's adapter raises."""
    if job_id is None or repository is None or installation_id is None:
        return NO_JOB
    seen = rt.github.get_job(
        installation_id=installation_id, repository=repository, job_id=job_id, policy=calls(policy)
    )
    if seen is None:
        return from_github(status=None, conclusion=None)
    return from_github(status=seen.status, conclusion=seen.conclusion)

"""Questions to GitHub that several steps share: remove the runners of a claim, and what became of a job."""

from __future__ import annotations

from sqlalchemy import Connection

from models import releases
from models.engine import transaction
from ostler.clock import utcnow
from rules.fates import NO_JOB, JobFate, from_github
from rules.scopes import Scope
from tasks.base import remaining
from tasks.runtime import Runtime


def deregister(rt: Runtime, work: releases.ReleaseWork) -> None:
    """Remove every runner that was registered, or may have been, for this claim (for its Pod, when retiring).

    Raises `Busy` when GitHub refuses because one executes, and whatever else GitHub's adapter raises.
    """
    for registration in work.registrations:
        scope = Scope.parse(registration.scope)
        runner_id = registration.runner_id
        if runner_id is None:
            found = rt.github.find_runner(
                installation_id=registration.installation_id, scope=scope, name=registration.runner_name,
                deadline_seconds=remaining(),
            )  # fmt: skip
            runner_id = None if found is None else found.id
        if runner_id is not None:
            rt.github.delete_runner(
                installation_id=registration.installation_id,
                scope=scope,
                runner_id=runner_id,
                deadline_seconds=remaining(),
            )

        def removed(db: Connection, attempt_id: int = registration.attempt_id) -> None:
            releases.registration_removed(db, attempt_id, now=utcnow())

        transaction(rt.engine, removed)


def ask_fate(rt: Runtime, *, job_id: int | None, repository: str | None, installation_id: int | None) -> JobFate:
    """Return what GitHub says of a job that lost its claim; raises what GitHub's adapter raises."""
    if job_id is None or repository is None or installation_id is None:
        return NO_JOB
    seen = rt.github.get_job(
        installation_id=installation_id, repository=repository, job_id=job_id, deadline_seconds=remaining()
    )
    if seen is None:
        return from_github(status=None, conclusion=None)
    return from_github(status=seen.status, conclusion=seen.conclusion)

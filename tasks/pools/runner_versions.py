"""Versions of runners: record the versions that a runner list shows, and find out when GitHub ends their support.

GitHub is asked about each version in use about once a day.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from sqlalchemy.exc import DBAPIError

from github_adapters.endpoints.runners import RunnerSeen
from models.pools import runner_versions
from ostler.clock import utcnow
from ostler.errors import UpstreamError
from ostler.reasons import words_of
from rules.pools.runner_versions import warn
from rules.routing.scopes import Scope
from tasks.worker.base import remaining
from tasks.worker.runtime import Runtime
from tasks.worker.transactions import NOW

ASK_WITHIN = 5.0
"""Longest time in seconds of the request to GitHub. The limit is lower if half of the task's remaining time is less."""

log = structlog.get_logger(__name__)


def record_versions(rt: Runtime, seen: Sequence[RunnerSeen], *, installation_id: int, scope: str) -> None:
    """Record which versions of the runner the pools start, and ask GitHub when the support of one version ends.

    GitHub is asked about a version again a day after its answer, or ten minutes after a question without an answer. No
    other step depends on this record. An error is logged, and a later list repeats the work.
    """
    versions = {each.name: each.version for each in seen if each.version is not None}
    if not versions:
        return
    try:
        rt.transaction(runner_versions.record, versions, now=NOW)
        ask_end(rt, installation_id=installation_id, scope=Scope.parse(scope))
    except (DBAPIError, UpstreamError) as error:
        log.warning("runner_versions.not_recorded", scope=scope, error=words_of(error))


def ask_end(rt: Runtime, *, installation_id: int, scope: Scope) -> None:
    """Ask GitHub when the support of one version ends, if a version must be asked about now.

    GitHub answers this question only for organisations.
    """
    if scope.repository_name is not None:
        return
    version = rt.transaction(runner_versions.to_ask, now=NOW)
    if version is None:
        return
    ends_at = rt.github.runner_ends(
        installation_id=installation_id,
        login=scope.login,
        version=version,
        deadline_seconds=min(ASK_WITHIN, remaining() / 2),
    )
    rt.transaction(runner_versions.record_end, version, ends_at, now=NOW)
    log.info(
        "runner_version.end_date_received",
        version=version,
        accepted_until=None if ends_at is None else ends_at.isoformat(),
    )


def outdated(rt: Runtime, pool_id: int) -> str | None:
    """Return a warning about the version of a pool's runner, or None if there is no reason for a warning."""
    found = rt.transaction(runner_versions.read, pool_id)
    return next((warn(each.version, each.ends_at, now=utcnow()) for each in found), None)

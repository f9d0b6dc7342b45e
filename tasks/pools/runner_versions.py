"""The versions of runners that a list shows: recorded per pool, and GitHub asked once a day how long it takes them."""

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
"""Seconds that GitHub has for the answer, or half of what is left of the task."""

log = structlog.get_logger(__name__)


def record_versions(rt: Runtime, seen: Sequence[RunnerSeen], *, installation_id: int, scope: str) -> None:
    """Record which versions the pools start, and ask for the end of one of them if that is due.

    Nothing depends on it: what fails is logged, and done by a later list.
    """
    versions = {each.name: each.version for each in seen if each.version is not None}
    if not versions:
        return
    try:
        rt.transaction(runner_versions.record, versions, now=NOW)
        ask_end(rt, installation_id=installation_id, scope=Scope.parse(scope))
    except (DBAPIError, UpstreamError) as error:
        log.warning("runner_versions.unknown", scope=scope, error=words_of(error))


def ask_end(rt: Runtime, *, installation_id: int, scope: Scope) -> None:
    """Ask GitHub until when it takes a version; only in the name of an organisation."""
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
    rt.transaction(runner_versions.record_end, version, ends_at)
    log.info("runner_versions.requested", version=version, ends_at=None if ends_at is None else ends_at.isoformat())


def outdated(rt: Runtime, pool_id: int) -> str | None:
    """Return what is to be said of the version of a pool's runner; None: nothing."""
    found = rt.transaction(runner_versions.read, pool_id)
    return next((warn(each.version, each.ends_at, now=utcnow()) for each in found), None)

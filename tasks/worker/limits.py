"""State of GitHub's client in Postgres: rate limits that must survive a flush of Redis, and removed installations."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from github_adapters.calls.governor import Governor, paces
from models.db.engine import transaction
from models.routing import installations
from models.upstream import backoffs
from ostler.clock import utcnow
from ostler.reasons import reason_of
from ostler.settings import Settings

log = structlog.get_logger(__name__)


def make_governor(settings: Settings, engine: Engine) -> Governor:
    """Return the rate limiter of this process.

    The rate limiter queries Postgres in short transactions before or after a call to GitHub, never during the call (law
    L15).
    """

    def remember(installation_id: int, quota: str, seconds: float) -> None:
        log.warning("github.rate_limit_reached", installation=installation_id, quota=quota, wait_seconds=round(seconds))
        try:
            transaction(
                engine,
                lambda db: backoffs.record_limit(
                    db, installation_id=installation_id, quota=quota, seconds=seconds, now=utcnow()
                ),
            )
        except SQLAlchemyError as error:  # Redis and this process still have the limit, so the call must not fail
            log.warning("github.rate_limit_not_stored", installation=installation_id, error=reason_of(error))

    def recall(installation_id: int) -> Mapping[str, float]:
        return transaction(engine, lambda db: backoffs.limits_of(db, installation_id=installation_id, now=utcnow()))

    return Governor(
        settings.redis_url,
        paces=paces(mints_per_minute=settings.github_mints_per_minute),
        remember=remember,
        recall=recall,
    )


def make_left(engine: Engine) -> Callable[[int], None]:
    """Return the callback that GitHub's client calls when GitHub does not know an installation.

    The callback marks the installation as removed, in a transaction of its own.
    """

    def left(installation_id: int) -> None:
        try:
            marked = transaction(engine, lambda db: installations.mark_left(db, installation_id, now=utcnow()))
        except SQLAlchemyError as error:  # the next call for the installation tries again; this call must not fail
            log.warning("github.uninstall_not_recorded", installation=installation_id, error=reason_of(error))
            return
        if marked:
            log.warning("github.installation_uninstalled", installation=installation_id)

    return left

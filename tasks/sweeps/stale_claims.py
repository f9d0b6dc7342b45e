"""`ostler.stale_claims`: releases claims that were never delivered."""

from __future__ import annotations

import structlog
from sqlalchemy.exc import DBAPIError

from models import releases, sweeps
from models.engine import transaction
from ostler.clock import utcnow
from tasks.base import SWEEP, task
from tasks.release import send_release
from tasks.runtime import Runtime, runtime

log = structlog.get_logger(__name__)


@task("stale_claims", queue="sweeps", policy=SWEEP)
def stale_claims() -> None:
    """Release what has not been delivered within `OSTLER_STALE_CLAIM_AFTER`."""
    rt = runtime()
    older = rt.settings.stale_claim_after
    for claim_id in transaction(rt.engine, lambda db: sweeps.never_delivered(db, older_than=older, now=utcnow())):
        try:
            begun = begin(rt, claim_id)
        except DBAPIError as error:  # one claim that fails stops no other (L14)
            log.warning("stale_claims.claim_skipped", claim=claim_id, error=type(error).__name__)
            continue
        if begun:
            log.warning("stale_claims.released", claim=claim_id)
            send_release(rt, claim_id)


def begin(rt: Runtime, claim_id: int) -> bool:
    """Commit the release of one claim, unless it was delivered meanwhile."""
    return transaction(
        rt.engine,
        lambda db: releases.request_release(
            db, claim_id, reason="never delivered", undelivered=True, now=utcnow(), who=rt.who
        ),
    )

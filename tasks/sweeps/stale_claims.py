"""`ostler.stale_claims`: releases claims that were never delivered."""

from __future__ import annotations

import structlog

from models import releases, sweeps
from models.engine import transaction
from ostler.clock import utcnow
from tasks.base import SWEEP, task
from tasks.release import send_release
from tasks.runtime import runtime

log = structlog.get_logger(__name__)


@task("stale_claims", queue="sweeps", policy=SWEEP)
def stale_claims() -> None:
    """Release what has not been delivered within `OSTLER_STALE_CLAIM_AFTER`."""
    rt = runtime()
    older = rt.settings.stale_claim_after
    for claim_id in transaction(rt.engine, lambda db: sweeps.never_delivered(db, older_than=older, now=utcnow())):
        begun = transaction(
            rt.engine,
            lambda db: releases.request_release(
                db, claim_id, reason="never delivered", undelivered=True, now=utcnow(), who=rt.who  # noqa: B023
            ),
        )  # fmt: skip
        if begun:
            log.warning("stale_claims.released", claim=claim_id)
            send_release(rt, claim_id)

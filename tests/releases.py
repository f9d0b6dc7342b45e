"""The release of a claim as the senders of `ostler.release` begin it: first the row, then the task."""

from __future__ import annotations

from sqlalchemy import Engine

from models.db.engine import transaction
from models.state import claim_transitions
from ostler.clock import utcnow
from tasks.claims.release import release


def release_claim(engine: Engine, claim_id: int, *, reason: str = "test") -> None:
    """Commit the release of a claim, unless it is `releasing` already, and run the task."""
    transaction(
        engine, lambda db: claim_transitions.request_release(db, claim_id, reason=reason, now=utcnow(), who="test")
    )
    release.run(claim_id=claim_id)

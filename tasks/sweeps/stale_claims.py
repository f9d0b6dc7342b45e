"""`ostler.stale_claims`: releases claims that were not delivered within `stale_claim_after` seconds."""

from __future__ import annotations

from models.state import claim_transitions
from models.sweeps import sweeps
from models.sweeps.repairs import Case
from ostler.clock import utcnow
from ostler.task_names import STALE_CLAIMS
from rules.sweeps.limits import Expect
from tasks.claims.release import send_release
from tasks.sweeps.frame.sweep import sweep
from tasks.sweeps.frame.tick import Tick
from tasks.worker.transactions import NOW


@sweep(STALE_CLAIMS)
def stale_claims(tick: Tick) -> None:
    """Release the claims that have not been delivered within `stale_claim_after` seconds."""
    older = tick.rt.timings.stale_claim_after
    found = tick.read(sweeps.never_delivered, older_than=older, now=NOW)
    tick.each(found, lambda claim: check(tick, claim))


def check(tick: Tick, claim: sweeps.StaleClaim) -> None:
    """Release one claim, unless it was delivered meanwhile."""
    case = Case(
        what="release",
        why="never delivered",
        claim_id=claim.id,
        job_id=claim.job_id,
        pod_uid=claim.pod_uid,
        before=claim.state,
        after="releasing",
        expects=Expect.CLAIM_ENDED,
    )
    begun = tick.repair(
        case,
        lambda db: claim_transitions.request_release(
            db, claim.id, reason=case.why, undelivered=True, now=utcnow(), who=tick.rt.who
        ),
    )
    if begun:
        send_release(tick.rt, claim.id)

"""`ostler.resume`: re-sends the next step of every claim that is past its due time, and wakes idle matches."""

from __future__ import annotations

import structlog

from models import resume as due
from models.engine import transaction
from ostler.clock import utcnow
from ostler.wakes import RELEASE, RETIRE, UNSTAMP
from rules.machines import ClaimState, Purpose, Stamp
from tasks.base import SWEEP, task
from tasks.dispatch import start_chains
from tasks.runtime import Runtime, runtime

log = structlog.get_logger(__name__)


@task("resume", queue="sweeps", policy=SWEEP)
def resume() -> None:
    """Take what is due, raise its chain number in the same commit, then send the step that comes next."""
    rt = runtime()
    settings = rt.settings
    found = transaction(rt.engine, lambda db: due.take_due(db, due_after=settings.due_after, now=utcnow()))
    for claim in found:
        log.info("resume.claim", claim=claim.claim_id, state=claim.state, purpose=claim.purpose)
        send_next(rt, claim)
    removing = transaction(
        rt.engine,
        lambda db: due.begin_unstamps(db, unstamp_after=settings.unstamp_after, now=utcnow(), who=rt.who),
    )
    for claim_id in removing:
        log.warning("resume.unstamp", claim=claim_id)
        rt.waker.send(UNSTAMP, queue="dispatch", claim_id=claim_id)
    for pool_id in transaction(
        rt.engine, lambda db: due.pools_with_work(db, probe_every=settings.probe_every, now=utcnow())
    ):
        rt.waker.wake(pool_id)


def send_next(rt: Runtime, claim: due.Due) -> None:
    """Send the step that a claim waits for. A minted one was notified again in the transaction."""
    if claim.purpose == Purpose.RETIRE:
        rt.waker.send(RETIRE, queue="dispatch", claim_id=claim.claim_id)
    elif claim.state == ClaimState.RELEASING:
        rt.waker.send(RELEASE, queue="dispatch", claim_id=claim.claim_id)
    elif claim.stamp == Stamp.REMOVING:
        rt.waker.send(UNSTAMP, queue="dispatch", claim_id=claim.claim_id)
    elif claim.state == ClaimState.CLAIMED:
        start_chains([claim.claim_id], chain_no=claim.chain_no)

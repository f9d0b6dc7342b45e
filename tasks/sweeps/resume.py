"""`ostler.resume`: re-sends the next step of every claim that is past its due time, and wakes idle matches.

It runs every few seconds, so it is quiet: a tick that finds nothing leaves no row but its lease
(`docs/decisions/0012-the-frame-of-the-sweeps.md`).
"""

from __future__ import annotations

import structlog

from models import epochs
from models import resume as due
from models.repairs import Case
from ostler.clock import utcnow
from ostler.wakes import RELEASE, RETIRE, UNSTAMP
from rules.machines import ClaimState, Purpose, Stamp
from rules.reaping import Expect
from tasks.dispatch import start_chains
from tasks.runtime import Runtime
from tasks.sweeps.frame import sweep
from tasks.sweeps.tick import Tick

log = structlog.get_logger(__name__)

LEASE = 6.0
"""Seconds: it repairs the kills of others, so its own must not be felt for long. Two that meet do no harm."""


@sweep("resume", quiet=True, lease=LEASE)
def resume(tick: Tick) -> None:
    """Take what is due, raise its chain number in the same commit, then send the step that comes next."""
    rt, settings = tick.rt, tick.rt.settings
    if tick.read(epochs.is_older):  # what these rows say is due was done, or undone, long ago
        tick.incomplete("Postgres is older than the cluster")
        return
    removing = tick.repair_all(
        lambda db: due.begin_unstamps(db, unstamp_after=settings.unstamp_after, now=utcnow(), who=rt.who), _cut_off
    )
    for claim_id in removing:
        log.warning("resume.unstamp", claim=claim_id)
        rt.waker.send(UNSTAMP, queue="dispatch", claim_id=claim_id)
    if not tick.dry:
        for pool_id in tick.read(lambda db: due.pools_with_work(db, probe_every=settings.probe_every, now=utcnow())):
            rt.waker.wake(pool_id)
    while send_late_steps(tick) and tick.page():
        pass


def send_late_steps(tick: Tick) -> bool:
    """Send the steps of a page of claims that are late and whose messages wait in no queue; False when it was the last.

    The queues are looked at anew for each page: what the page before sent waits in them.
    """
    rt, due_after = tick.rt, tick.rt.settings.due_after
    heads = {queue: rt.waker.oldest(queue) for queue in due.QUEUES}
    for queue, head in heads.items():
        if head is not None and (late := (utcnow() - head).total_seconds()) > due_after:
            log.warning("resume.messages_wait", queue=queue, seconds=round(late))
    found = tick.repair_all(lambda db: due.take_due(db, due_after=due_after, heads=heads, now=utcnow()), _overdue)
    for claim in found:
        log.info("resume.claim", claim=claim.claim_id, state=claim.state, purpose=claim.purpose)
        send_next(rt, claim)
    return len(found) == due.PAGE


def _overdue(claim: due.Due) -> Case:
    return Case(
        what="repeat", why="its step was not done in time", claim_id=claim.claim_id, before=claim.state,
        expects=Expect.CLAIM_MOVED,
    )  # fmt: skip


def _cut_off(claim_id: int) -> Case:
    return Case(
        what="un-stamp", why="its Pod stopped polling", claim_id=claim_id, before=Stamp.ON, after=Stamp.REMOVING,
        expects=Expect.UNSTAMPED,
    )  # fmt: skip


def send_next(rt: Runtime, claim: due.Due) -> None:
    """Send the step that a claim waits for. A minted one was notified again in the transaction."""
    if claim.purpose == Purpose.RETIRE:
        rt.waker.send(RETIRE, queue="retire", claim_id=claim.claim_id)
    elif claim.state == ClaimState.RELEASING:
        rt.waker.send(RELEASE, queue="dispatch", claim_id=claim.claim_id)
    elif claim.stamp == Stamp.REMOVING:
        rt.waker.send(UNSTAMP, queue="dispatch", claim_id=claim.claim_id)
    elif claim.state == ClaimState.CLAIMED:
        start_chains([claim.claim_id], chain_no=claim.chain_no)

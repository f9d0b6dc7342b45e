"""`ostler.resume`: sends the next steps of claims that are past their due time, and wakes matchers that have work.

A step is not sent while its message might still wait in a queue. The sweep runs every few seconds and is quiet: a tick
that finds nothing stores no run (`docs/decisions/0012-the-frame-of-the-sweeps.md`).
"""

from __future__ import annotations

import structlog

from models.claims import cuts
from models.claims import resume as due
from models.db import epochs
from models.state import claim_leases
from models.sweeps.repairs import Case
from ostler.clock import utcnow
from ostler.task_names import RELEASE, RESUME, RETIRE, STAMP, UNSTAMP
from rules.claims.machines import ClaimState, Purpose, Stamp
from rules.sweeps.limits import Expect
from tasks.claims.dispatch import start_chains
from tasks.sweeps.frame.sweep import sweep
from tasks.sweeps.frame.tick import Tick
from tasks.worker import base
from tasks.worker.runtime import Runtime
from tasks.worker.transactions import NOW

log = structlog.get_logger(__name__)

DELIVERED = frozenset({ClaimState.DELIVERED, ClaimState.EXECUTING})
"""States in which only the stamp of a claim can be due."""

LEASE = 6.0
"""Duration of the lease in seconds. A short lease lets a new tick run soon after a tick was killed.

Two ticks at the same time do no harm.
"""


@sweep(RESUME, quiet=True, lease=LEASE, fenced=False)
def resume(tick: Tick) -> None:
    """Find the claims that are due and send their next step.

    Nothing is sent while Postgres is known to be older than the cluster. The chain number of a due claim is raised in
    the transaction that finds the claim. The parts of the sweep are independent: if one part fails, the others still
    run.
    """
    if tick.read(epochs.is_older):  # a step that looks due might have been done before the restore
        tick.incomplete("Postgres is older than the cluster")
        return
    tick.part("un-stamps", lambda: unstamp_cut_off_pods(tick))
    if not tick.dry:
        tick.part("cuts", lambda: check_suspects(tick))
        tick.part("wakes", lambda: wake_pools(tick))
    tick.part("late steps", lambda: send_all_late_steps(tick))


def unstamp_cut_off_pods(tick: Tick) -> None:
    """Begin the un-stamps of minted claims whose Pods stopped polling, one page per transaction."""
    while send_unstamps(tick) and tick.page():
        pass


def send_unstamps(tick: Tick) -> bool:
    """Begin a page of un-stamps and send their messages. Return True if another page might follow; False if not."""
    rt, after = tick.rt, tick.rt.timings.unstamp_after
    removing = tick.repair_all(
        lambda db: due.begin_unstamps(db, unstamp_after=after, now=utcnow(), who=rt.who), _cut_off
    )
    for claim_id in removing:
        log.warning("resume.unstamp_sent", claim=claim_id)
        rt.waker.send(UNSTAMP, claim_id=claim_id)
    return len(removing) == due.UNSTAMPS


def check_suspects(tick: Tick) -> None:
    """Request a check of each Pod whose poller has not ended `cut_off_after` seconds after the delivery of its claim.

    The poller ends when it has received the JIT. The stamp might cut the Pod off from Ostler before the JIT arrives.
    """
    rt, settings = tick.rt, tick.rt.settings
    for claim_id in rt.transaction(
        cuts.suspects, cut_off_after=settings.timings.cut_off_after, due_after=settings.timings.due_after, now=NOW
    ):
        rt.waker.send(UNSTAMP, claim_id=claim_id)


def wake_pools(tick: Tick) -> None:
    """Wake the matchers of pools that have offered Pods and a job for one of them."""
    every = tick.rt.timings.probe_every
    for pool_id in tick.read(due.pools_with_work, probe_every=every, now=NOW):
        tick.rt.waker.wake(pool_id)


def send_all_late_steps(tick: Tick) -> None:
    """Send late steps page by page while there is time."""
    while send_late_steps(tick) and tick.page():
        pass


def send_late_steps(tick: Tick) -> bool:
    """Send the steps of one page of late claims. A claim is left out while its message might still wait in a queue.

    Return True if another page might follow; False if not. The heads of the queues are read again for each page,
    because the queues then contain the messages of the previous page.
    """
    rt, due_after = tick.rt, tick.rt.timings.due_after
    heads = {queue: rt.waker.oldest(queue) for queue in claim_leases.QUEUES}
    for queue, head in heads.items():
        if head is not None and (late := (utcnow() - head).total_seconds()) > due_after:
            log.warning("queue.oldest_message_late", queue=queue, oldest_message_seconds=round(late))
    found = tick.repair_all(lambda db: due.claim_due(db, due_after=due_after, heads=heads, now=utcnow()), _overdue)
    for claim in found:
        log.info("resume.step_sent_again", claim=claim.claim_id, state=claim.state, purpose=claim.purpose)
        send_next(rt, claim)
    return len(found) == due.PAGE


def _overdue(claim: due.Due) -> Case | None:
    if claim.waited:  # nothing had to be repaired
        return None
    if claim.state in DELIVERED:
        off = claim.stamp == Stamp.REMOVING
        return Case(
            what="un-stamp" if off else "stamp",
            why="the pending change of the Pod's stamp is due",
            claim_id=claim.claim_id,
            before=claim.stamp,
            expects=Expect.UNSTAMPED if off else Expect.STAMPED,
        )
    return Case(
        what="repeat",
        why="the step of the claim was not done by its due time",
        claim_id=claim.claim_id,
        before=claim.state,
        expects=Expect.CLAIM_MOVED,
    )


def _cut_off(claim_id: int) -> Case:
    return Case(
        what="un-stamp",
        why="the Pod of the claim stopped polling",
        claim_id=claim_id,
        before=Stamp.ON,
        after=Stamp.REMOVING,
        expects=Expect.UNSTAMPED,
    )


def send_next(rt: Runtime, claim: due.Due) -> None:
    """Send the step that a claim waits for.

    No step is sent for a minted claim. The transaction that found the claim has already notified web again. If an
    earlier attempt has set the due time, the message has no retry left: the attempts of one step by messages and by
    rows are counted together, and the next waits come from the row.
    """
    if claim.purpose == Purpose.RETIRE:
        rt.waker.send(RETIRE, retries=base.RETIRE.task_retries if claim.tried else 0, claim_id=claim.claim_id)
    elif claim.state == ClaimState.RELEASING:
        rt.waker.send(RELEASE, retries=base.RELEASE.task_retries if claim.tried else 0, claim_id=claim.claim_id)
    elif claim.stamp == Stamp.REMOVING:
        rt.waker.send(UNSTAMP, retries=base.UNSTAMP.task_retries if claim.tried else 0, claim_id=claim.claim_id)
    elif claim.state == ClaimState.CLAIMED:
        start_chains([claim.claim_id], chain_no=claim.chain_no)
    elif claim.state in DELIVERED:
        rt.waker.send(STAMP, claim_id=claim.claim_id)

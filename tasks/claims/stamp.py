"""`ostler.stamp(claim_id, chain_no)` stamps the Pod of a claim, and `ostler.unstamp` removes the stamp.

If the stamp is not written after at most three attempts within 2 seconds, or if another client keeps changing the
annotation, the missing stamp is counted in a metric. The claim then continues with its mint (law L10).
"""

from __future__ import annotations

from datetime import timedelta

import structlog
from sqlalchemy import Connection

from k8s_adapters.runners.stamps import StampOutcome
from models.claims import steps
from models.state import claim_leases, claim_transitions, pod_facts
from ostler import task_names, telemetry
from ostler.clock import utcnow
from ostler.errors import UpstreamError
from ostler.logging import also_about
from ostler.reasons import meaning_of
from tasks.claims.annotation import read_pod, write
from tasks.claims.cuts import reopen
from tasks.claims.evidence import ask
from tasks.claims.postpone import release_on_failure
from tasks.claims.release import send_release
from tasks.worker.base import LATE, STAMP, UNSTAMP, Again, task, wait_for_retry
from tasks.worker.runtime import Runtime, runtime
from tasks.worker.transactions import NOW

log = structlog.get_logger(__name__)


@task(task_names.STAMP, policy=STAMP)
def stamp(*, claim_id: int, chain_no: int | None = None) -> None:
    """Stamp the Pod of a claim before its mint, or later if the stamp is missing.

    `chain_no`: number of the chain that this message belongs to. A message of an older chain changes nothing.
    """
    rt = runtime()
    work = rt.transaction(steps.begin_stamp, claim_id, chain_no=chain_no, now=NOW)
    if work is None:
        return
    also_about(job=work.job_id, pod=work.pod_name, pod_uid=work.pod_uid)
    with release_on_failure(rt, work):
        put_on(rt, work)


def put_on(rt: Runtime, work: steps.StampWork) -> None:
    """Stamp the Pod, and record whether the stamp was written. If the Pod is gone, release the claim."""
    error: str | None = None
    why = "another client changed the annotation of the Pod"
    outcome: StampOutcome | None = None
    try:
        outcome = write(rt, work, owner=work.account_id).outcome
    except UpstreamError as failure:
        error = meaning_of(failure)
        why = str(failure)
    if outcome is StampOutcome.POD_GONE:
        give_up_pod(rt, work, "the Pod of the claim is gone")
        return
    on = outcome is StampOutcome.DONE
    if not on:
        telemetry.STAMPS_MISSED.inc()
        log.warning("stamp.not_written", error=error, why=why)

    def finish(db: Connection) -> None:
        if on:
            pod_facts.record_annotation(db, pod_uid=work.pod_uid, value=work.value)
        claim_transitions.finish_stamp(
            db,
            work,
            "stamp_on" if on else "stamp_gave_up",
            error=error,
            due_after=rt.timings.due_after,
            now=utcnow(),
            who=rt.who,
        )

    rt.transaction(finish)


@task(task_names.UNSTAMP, policy=UNSTAMP)
def unstamp(*, claim_id: int, chain_no: int | None = None) -> None:
    """Remove the stamp of a minted claim whose Pod stopped polling, so that the Pod can reach Ostler again.

    `chain_no`: chain number of the claim if this message repeats a failed attempt, otherwise None. A message of an
    older chain changes nothing.

    If the answer of the cluster is lost, the stamp stays `removing`, and the un-stamp is repeated. A Pod that might
    hold a JIT keeps its stamp. In this case, and if the Pod is gone, the claim is released. The Pod of a delivered
    claim is un-stamped only if the stamp cut the Pod off from Ostler before the JIT arrived (`tasks.claims.cuts`).
    """
    rt = runtime()
    work = rt.transaction(steps.begin_unstamp, claim_id, chain_no=chain_no, now=NOW)
    if work is None:
        if chain_no is None:
            reopen(rt, claim_id)
        return
    also_about(job=work.job_id, pod=work.pod_name, pod_uid=work.pod_uid)
    try:
        remove_stamp(rt, work)
    except UpstreamError as error:
        soon = wait_for_retry(error)
        due_at = work.lease_until if soon is None else utcnow() + timedelta(seconds=soon + LATE)
        rt.transaction(claim_leases.give_back, work, due_at=due_at, error=meaning_of(error))
        if soon is None:
            raise
        raise Again(error, after=soon, chain_no=work.chain_no) from error


def remove_stamp(rt: Runtime, work: steps.StampWork) -> None:
    """Remove the stamp, or release the claim if its Pod is gone or might hold a JIT.

    Raises what the Kubernetes adapter raises.
    """
    pod = read_pod(rt, work)  # first: a failover of Postgres might have lost the row of a delivery (law L3)
    verdict = ask(rt, work.pod_uid, pod, gone=pod is None)
    if verdict.busy:
        log.error("stamp.not_removed_from_busy_pod", reasons=verdict.reasons)
        give_up_pod(rt, work, "the Pod of the claim might hold a JIT")
        return
    outcome = write(rt, work, owner=None).outcome
    if outcome is StampOutcome.POD_GONE:
        give_up_pod(rt, work, "the Pod of the claim is gone")
    elif outcome is StampOutcome.DONE:

        def finish(db: Connection) -> None:
            pod_facts.record_annotation(db, pod_uid=work.pod_uid, value=work.value)
            claim_transitions.finish_stamp(
                db, work, "stamp_off", error=None, due_after=rt.timings.due_after, now=utcnow(), who=rt.who
            )
            steps.notify_minted(db, work.claim_id, work.pod_uid)

        rt.transaction(finish)


def give_up_pod(rt: Runtime, work: steps.StampWork, why: str) -> None:
    """Release a claim whose Pod is gone or unusable, if nothing was delivered.

    A delivered claim is not released here. The sweep `missing_pods` asks GitHub for the result of its job.
    """
    now = utcnow()

    def body(db: Connection) -> bool:
        claim_leases.give_back(db, work, due_at=now, error=why)
        return claim_transitions.request_release(db, work.claim_id, reason=why, undelivered=True, now=now, who=rt.who)

    if rt.transaction(body):
        send_release(rt, work.claim_id)

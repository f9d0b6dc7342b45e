"""`ostler.release(claim_id)` undoes a claim: the job is queued again at its old age, the Pod warm or retired.

Never delivered: deregister what was minted, un-stamp, end; the Pod is warm again at once. After `requeue_after`
the job waits no longer. Where GitHub fails the deregistration, the release goes on without it. Where the cluster fails
the un-stamp, or the epoch is not confirmed, a retire claim keeps the Pod from being matched. Delivered:
deregister and obey a refusal (the runner is busy: it executes); when GitHub has no such runner any more, one
transaction ends the claim, moves its job by what GitHub says of it and inserts the retire claim (L3, L4, L7).
"""

from __future__ import annotations

import structlog

from k8s_adapters.pods import get_pod
from k8s_adapters.stamps import StampOutcome
from models.claims import releases
from models.claims.releases import Warmth
from ostler import clock
from ostler.clock import utcnow
from ostler.errors import Busy, Forbidden, Gone, Invalid, NotInstalled, RateLimited, UpstreamError
from ostler.logging import also_about
from ostler.reasons import meaning_of
from ostler.wakes import RELEASE as NAME
from tasks.claims.annotation import read_pod, write
from tasks.claims.evidence import ask
from tasks.claims.github import ask_job_outcome, deregister, follow_owner
from tasks.claims.postpone import OUT_OF_REACH, SELDOM, postpone, postpone_on_failure, postpone_until_token
from tasks.claims.retire import send_retire
from tasks.worker.base import RELEASE, calls, task
from tasks.worker.runtime import Runtime, runtime
from tasks.worker.transactions import NOW

log = structlog.get_logger(__name__)

_WARMTH = {
    StampOutcome.DONE: Warmth.WARM,
    StampOutcome.POD_GONE: Warmth.GONE,
    StampOutcome.MOVED_ON: Warmth.UNKNOWN,
}


@task("release", queue="dispatch", policy=RELEASE)
def release(*, claim_id: int, chain_no: int | None = None, reason: str = "released") -> None:
    """Release a claim.

    With `chain_no`, as the errback of a chain, only while that chain is the current one and the claim is
    `claimed`. Without it a claim in any of the first three states is taken, and a `releasing` one goes on.
    """
    rt = runtime()
    why = "its chain failed" if chain_no is not None else reason
    begun = rt.transaction(releases.request_release, claim_id, reason=why, chain_no=chain_no, now=NOW, who=rt.who)
    if chain_no is not None and not begun:
        return
    requeue_after = rt.timings.requeue_after + clock.process.leeway()
    work = rt.transaction(releases.begin_release, claim_id, requeue_after=requeue_after, now=NOW)
    if work is None:
        return
    also_about(job=work.job_id, pod=work.pod_name, pod_uid=work.pod_uid)
    log.info("release.begun", reason=work.reason, delivered=work.delivered)
    with postpone_on_failure(rt, work):
        carry_out(rt, work)


def carry_out(rt: Runtime, work: releases.ReleaseWork) -> None:
    """Deregister what was minted, and end the claim by what comes of that."""
    if not work.trusted:
        requeue(rt, work, "the epoch is not confirmed")
        return
    try:
        deregister(rt, work.registrations)
    except Busy:
        record_busy(rt, work)
    except UpstreamError as error:
        if work.delivered:
            wait_for_github(rt, work, error)
        else:
            go_on_without_github(rt, work, error)
    else:
        if work.delivered:
            end_delivered(rt, work)
        else:
            end_never_delivered(rt, work)


def record_busy(rt: Runtime, work: releases.ReleaseWork) -> None:
    """GitHub would not remove the runner, as it is busy: the claim executes after all."""
    refused = rt.transaction(releases.refuse_release, work.claim_id, now=NOW, who=rt.who)
    log.info("release.refused")
    if not refused:
        postpone(rt, work, "GitHub says that its runner is busy", after=SELDOM)


def wait_for_github(rt: Runtime, work: releases.ReleaseWork, error: UpstreamError) -> None:
    """Leave a delivered claim to `resume`: its job goes back only when GitHub has no such runner any more."""
    match error:
        case RateLimited():
            postpone_until_token(rt, work, after=error.after)
        case NotInstalled() | Forbidden():
            postpone(rt, work, meaning_of(error), after=OUT_OF_REACH)
            raise error
        case Gone() if follow_owner(rt, work.registrations[0].installation_id):
            postpone(rt, work, "its owner has another name")
        case Gone():
            postpone(rt, work, meaning_of(error), after=OUT_OF_REACH)
            raise error
        case _:
            raise error


def go_on_without_github(rt: Runtime, work: releases.ReleaseWork, error: UpstreamError) -> None:
    """Let GitHub keep the job of a claim that was never delivered from the queue for `requeue_after` at most."""
    if isinstance(error, Forbidden | Gone):
        # The App may not, or not any more. Nobody has this JIT, so the job need not wait for that.
        log.warning("release.runner_left", error=meaning_of(error))
        end_never_delivered(rt, work)
    elif time_left(rt, work) <= 0:
        log.warning("release.runner_left", error=meaning_of(error))
        end_never_delivered(rt, work)
    elif isinstance(error, RateLimited):
        postpone_until_token(rt, work, after=min(error.after, time_left(rt, work)))
    else:
        raise error


def send_release(rt: Runtime, claim_id: int) -> None:
    """Ask for the release step of a claim whose release is committed."""
    rt.waker.send(NAME, queue="dispatch", claim_id=claim_id)


def end_never_delivered(rt: Runtime, work: releases.ReleaseWork) -> None:
    """Un-stamp, whatever we believe of the stamp: a late one must find another value than it tests for.

    Where that cannot be done (the annotation is missing, the patch is forbidden) the Pod is retired instead. So is one
    that may hold a JIT, of another claim: it is never un-stamped.
    """
    try:
        warmth = make_warm(rt, work)
    except UpstreamError as error:
        if time_left(rt, work) > 0:
            raise
        requeue(rt, work, meaning_of(error))
        return
    if warmth is not None:
        end(rt, work, warmth)


def time_left(rt: Runtime, work: releases.ReleaseWork) -> float:
    """Return the seconds for which a release may still keep its job from the queue; negative when it is overdue."""
    return rt.timings.requeue_after + clock.process.leeway() - (utcnow() - work.since).total_seconds()


def requeue(rt: Runtime, work: releases.ReleaseWork, why: str) -> None:
    """Queue the job of a claim again that was never delivered, although nothing is known of the stamp of its Pod.

    A runner that is still registered stays in `mint_attempts`, where the retirement finds it.
    """
    log.warning("release.requeued", why=why, registered=len(work.registrations))
    end(rt, work, Warmth.UNKNOWN)


def end(rt: Runtime, work: releases.ReleaseWork, warmth: Warmth) -> None:
    """End a claim that was never delivered, and have its Pod retired where it may not be warm."""
    ended = rt.transaction(
        releases.end_never_delivered, work, warmth=warmth, retire_due=rt.timings.due_after, now=NOW, who=rt.who
    )
    if ended is None:
        return
    if ended.retire_id is not None:
        send_retire(rt, ended.retire_id)
    wake_after(rt, pool_id=work.pool_id, account_id=work.account_id)


def make_warm(rt: Runtime, work: releases.ReleaseWork) -> Warmth | None:
    """Take the stamp off and return what is known of the Pod then; None when that has to be tried again.

    The Pod is read first: rows that lost a delivery in a failover say that nothing was ever delivered to it.
    """
    pod = read_pod(rt, work)
    verdict = ask(rt, work.pod_uid, pod, gone=pod is None)
    if verdict.busy:
        log.error("release.stamp_remains", reasons=verdict.reasons)
        return Warmth.UNKNOWN
    try:
        result = write(rt, work, owner=None)
    except (Forbidden, Invalid) as error:
        log.warning("release.stamp_remains", error=meaning_of(error))
        return Warmth.UNKNOWN
    if result.outcome is StampOutcome.MOVED_ON and result.seen is not None:
        log.warning("release.annotation_moves")
        if time_left(rt, work) <= 0:
            return Warmth.UNKNOWN
        postpone(rt, work, "its annotation moves")
        return None
    return _WARMTH[result.outcome]


def end_delivered(rt: Runtime, work: releases.ReleaseWork) -> None:
    """Ask GitHub what became of the job, then end the claim and retire the Pod.

    A Pod that may hold this claim's JIT even though nothing is left to deregister has to end by itself first. What
    others gave to it is the retirement's to ask.
    """
    verdict = ask(rt, work.pod_uid, claim_id=work.claim_id)
    if verdict.busy:  # rarely: nothing was registered that we know of, so the Pod itself is asked
        pod = get_pod(rt.kube, namespace=work.namespace, name=work.pod_name, policy=calls(RELEASE))
        gone = pod is None or pod.uid != work.pod_uid
        verdict = ask(rt, work.pod_uid, None if gone else pod, gone=gone, claim_id=work.claim_id)
    if verdict.busy:
        log.error("release.kept", reasons=verdict.reasons)
        error = "its Pod may hold a JIT: " + ", ".join(verdict.reasons)
        postpone(rt, work, error, after=OUT_OF_REACH)
        return
    try:
        job_outcome = ask_job_outcome(
            rt, job_id=work.job_id, repository=work.repository, installation_id=work.installation_id
        )
    except RateLimited as error:
        postpone_until_token(rt, work, after=error.after)
        return
    retire_id = rt.transaction(
        releases.end_delivered, work, job_outcome, now=NOW, who=rt.who, retire_due=rt.timings.due_after
    )
    if retire_id is None:
        postpone(rt, work, "it lost its job meanwhile")
        return
    send_retire(rt, retire_id)
    wake_after(rt, pool_id=work.pool_id, account_id=work.account_id)


def wake_after(rt: Runtime, *, pool_id: int, account_id: int | None) -> None:
    """Wake the pools that the end of a claim of this pool and account may help."""
    for each in rt.transaction(releases.pools_to_wake, pool_id=pool_id, account_id=account_id):
        rt.waker.wake(each)

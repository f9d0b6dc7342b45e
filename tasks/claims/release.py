"""`ostler.release(claim_id)` undoes a claim whose release is committed.

The job returns to the queue and keeps its age. The Pod becomes warm or is retired.

For a claim that was never delivered, the release deregisters its runner, removes the stamp and ends the claim. The Pod
is warm again at once. The job returns to the queue after `requeue_after` seconds at the latest, unless GitHub answers
that the runner is busy. If GitHub does not answer within this time, or if the App lacks the permission, the release
continues without the deregistration. In four cases a retire claim for the Pod is inserted, so that the matcher does not
claim the Pod again:

- The stamp could not be removed within `requeue_after` seconds.
- Kubernetes refuses to remove the stamp.
- The Pod might hold another JIT.
- The epoch is not confirmed.

For a delivered claim, the release deregisters its runner. If GitHub refuses because the runner is busy, the claim
becomes `executing` and stays live. When GitHub no longer has the runner, one transaction ends the claim, moves its job
to a new state and inserts the retire claim (laws L3, L4 and L7). GitHub's answer about the job decides the new state of
the job.
"""

from __future__ import annotations

import structlog

from k8s_adapters.runners.pods import get_pod
from k8s_adapters.runners.stamps import StampOutcome
from models.claims import releases
from models.claims.releases import ReleaseWork, Warmth
from ostler import clock, task_names
from ostler.clock import utcnow
from ostler.errors import Busy, Forbidden, Gone, Invalid, NotInstalled, RateLimited, UpstreamError
from ostler.logging import also_about
from ostler.reasons import meaning_of
from ostler.task_names import RELEASE as NAME
from tasks.claims.annotation import read_pod, write
from tasks.claims.evidence import ask
from tasks.claims.github import ask_job_outcome, deregister, follow_owner
from tasks.claims.postpone import LONGEST_WAIT, OUT_OF_REACH, SELDOM, NotYet, postpone_on_failure, until_token
from tasks.claims.retire import send_retire
from tasks.worker.base import RELEASE, calls, task
from tasks.worker.runtime import Runtime, runtime
from tasks.worker.transactions import NOW

log = structlog.get_logger(__name__)

BUSY_AGAIN = 60.0
"""Seconds until GitHub is asked again to remove a persistent runner that executes a job."""

_WARMTH = {
    StampOutcome.DONE: Warmth.WARM,
    StampOutcome.POD_GONE: Warmth.GONE,
    StampOutcome.MOVED_ON: Warmth.UNKNOWN,
}


@task(task_names.RELEASE, policy=RELEASE)
def release(*, claim_id: int, chain_no: int | None = None) -> None:
    """Continue the release of a `releasing` claim. A claim in any other state is not changed (law L6).

    `chain_no`: number of the chain if this task is the errback of a chain or repeats a failed attempt, otherwise None.
    With a number, only a claim on this chain is released. Every sender first commits the release with
    `models.state.claim_transitions.request_release`.
    """
    rt = runtime()
    requeue_after = rt.timings.requeue_after + clock.process.leeway()
    work = rt.transaction(releases.begin_release, claim_id, chain_no=chain_no, requeue_after=requeue_after, now=NOW)
    if work is None:
        return
    also_about(job=work.job_id, pod=work.pod_name, pod_uid=work.pod_uid)
    log.info("release.started", reason=work.reason, jit_delivered=work.delivered)
    with postpone_on_failure(rt, work):
        carry_out(rt, work)


def carry_out(rt: Runtime, work: ReleaseWork) -> None:
    """Deregister the runners of the claim, then end the claim. Raises `NotYet` if this must wait."""
    if not work.trusted:
        requeue(rt, work, "it is not confirmed that Postgres is as new as the cluster")
    elif not remove_runners(rt, work):
        return
    elif work.delivered:
        end_delivered(rt, work)
    else:
        end_never_delivered(rt, work)


def remove_runners(rt: Runtime, work: ReleaseWork) -> bool:
    """Remove the runners of the claim from GitHub. Return False if the claim is `executing` instead.

    The job of a delivered claim returns to the queue only when GitHub no longer has the runner. If the claim was never
    delivered, no process has received its JIT. Its job then waits for the removal for at most `requeue_after` seconds,
    and not at all if the App lacks the permission or GitHub does not find the scope.

    Raises `NotYet`, and any other error of GitHub's adapter.
    """
    try:
        deregister(rt, work.registrations)
    except Busy:
        return record_busy(rt, work)
    except UpstreamError as error:
        left = LONGEST_WAIT if work.delivered else time_left(rt, work)
        match error:
            case _ if not work.delivered and (left <= 0 or isinstance(error, Forbidden | Gone)):
                log.warning("release.runner_not_deregistered", error=meaning_of(error))
            case RateLimited():
                raise until_token(error, at_most=left) from error
            case Gone() if owner_renamed(rt, work, error):
                raise NotYet("the owner was renamed; the next try uses the new name") from error
            case Forbidden() | Gone():
                raise NotYet(meaning_of(error), after=OUT_OF_REACH, failure=error) from error
            case _:
                raise
    return True


def owner_renamed(rt: Runtime, work: ReleaseWork, error: Gone) -> bool:
    """Ask GitHub for the name of an owner whose scope was not found, and return True if the name has changed."""
    return not isinstance(error, NotInstalled) and follow_owner(rt, work.registrations[0].installation_id)


def record_busy(rt: Runtime, work: ReleaseWork) -> bool:
    """Set the claim to `executing`, because GitHub answered that the claim's runner is busy. Return False.

    If the claim was never delivered, the claim stays `releasing`, and its release is retried after `SELDOM` seconds.
    The claim of a persistent runner also stays `releasing`. GitHub is asked again every `BUSY_AGAIN` seconds, however
    long the runner is busy, and its Pod stays (law L3).
    """
    if work.persistent:
        log.info("release.waits_for_busy_runner")
        raise NotYet("GitHub says that the runner is busy", after=BUSY_AGAIN)
    refused = rt.transaction(releases.refuse_release, work.claim_id, now=NOW, who=rt.who)
    log.info("release.stopped_because_runner_is_busy")
    if not refused:
        raise NotYet("GitHub says that the runner of the claim is busy", after=SELDOM)
    return False


def end_delivered(rt: Runtime, work: ReleaseWork) -> None:
    """Ask GitHub for the result of the job, then end the claim and retire the Pod.

    If the Pod might hold the JIT of this claim although no runner is left to deregister, the claim stays live until the
    Pod has ended by itself. JITs of other claims of the Pod are not checked here, because the retirement checks them.
    """
    verdict = ask(rt, work.pod_uid, claim_id=work.claim_id)
    if verdict.busy:  # rare: no registration was recorded; the Pod itself is read
        pod = get_pod(rt.kube, namespace=work.namespace, name=work.pod_name, policy=calls(RELEASE))
        gone = pod is None or pod.uid != work.pod_uid
        verdict = ask(rt, work.pod_uid, None if gone else pod, gone=gone, claim_id=work.claim_id)
    if verdict.busy:
        log.error("release.postponed_for_busy_pod", reasons=verdict.reasons)
        raise NotYet("the Pod might hold a JIT: " + ", ".join(verdict.reasons), after=OUT_OF_REACH)
    try:
        job_outcome = ask_job_outcome(
            rt, job_id=work.job_id, repository=work.repository, installation_id=work.installation_id
        )
    except RateLimited as error:
        raise until_token(error) from error
    retire_id = rt.transaction(
        releases.end_delivered, work, job_outcome, now=NOW, who=rt.who, retire_due=rt.timings.due_after
    )
    if retire_id is None:
        raise NotYet("the claim lost its job during the release")
    send_retire(rt, retire_id)
    wake_after(rt, pool_id=work.pool_id, account_id=work.account_id)


def end_never_delivered(rt: Runtime, work: ReleaseWork) -> None:
    """Remove the stamp of the Pod and end the claim.

    The annotation is written even if the rows record no stamp. A stamp request that arrives later then finds another
    annotation than it expects, and changes nothing. If the un-stamp is impossible (the annotation is missing, the patch
    is forbidden), the Pod is retired instead. A Pod that might hold a JIT of another claim is never un-stamped, but
    retired.
    """
    try:
        warmth = make_warm(rt, work)
    except UpstreamError as error:
        if time_left(rt, work) > 0:
            raise
        requeue(rt, work, meaning_of(error))
    else:
        end(rt, work, warmth)


def make_warm(rt: Runtime, work: ReleaseWork) -> Warmth:
    """Remove the stamp and return the resulting state of the Pod. Raises `NotYet` if another client changed the Pod.

    The Pod is read first, because a failover of Postgres might have lost the row of a delivery. The rows alone would
    then show that nothing was delivered.
    """
    pod = read_pod(rt, work)
    verdict = ask(rt, work.pod_uid, pod, gone=pod is None)
    if verdict.busy:
        log.error("release.stamp_not_removed", reasons=verdict.reasons)
        return Warmth.UNKNOWN
    try:
        result = write(rt, work, owner=None)
    except (Forbidden, Invalid) as error:
        log.warning("release.stamp_not_removed", error=meaning_of(error))
        return Warmth.UNKNOWN
    if result.outcome is StampOutcome.MOVED_ON and result.seen is not None:
        log.warning("release.stamp_not_removed_because_annotation_changed")
        if time_left(rt, work) <= 0:
            return Warmth.UNKNOWN
        raise NotYet("another client changed the annotation of the Pod")
    if result.outcome is StampOutcome.POD_GONE and (living := read_pod(rt, work)) is not None and living.exit_held:
        # Somebody deleted the Pod, and Ostler's finalizer keeps it. Its retirement removes the finalizer.
        return Warmth.UNKNOWN
    return _WARMTH[result.outcome]


def requeue(rt: Runtime, work: ReleaseWork, why: str) -> None:
    """Queue the job of a claim that was never delivered, although it is unknown whether its Pod is still stamped.

    A runner that is still registered stays in `mint_attempts`, so that the retirement of the Pod removes the runner.
    """
    log.warning("release.job_requeued", why=why, runners_still_registered=len(work.registrations))
    end(rt, work, Warmth.UNKNOWN)


def end(rt: Runtime, work: ReleaseWork, warmth: Warmth) -> None:
    """End a claim that was never delivered. Retire its Pod if `warmth` is `Warmth.UNKNOWN`."""
    ended = rt.transaction(
        releases.end_never_delivered, work, warmth=warmth, retire_due=rt.timings.due_after, now=NOW, who=rt.who
    )
    if ended is None:
        return
    if ended.retire_id is not None:
        send_retire(rt, ended.retire_id)
    wake_after(rt, pool_id=work.pool_id, account_id=work.account_id)


def time_left(rt: Runtime, work: ReleaseWork) -> float:
    """Return for how many more seconds the job may wait for this release.

    The value is negative if the release is overdue.
    """
    return rt.timings.requeue_after + clock.process.leeway() - (utcnow() - work.since).total_seconds()


def wake_after(rt: Runtime, *, pool_id: int, account_id: int | None) -> None:
    """Wake the pools that might match more jobs after a claim of this pool and account ended."""
    for each in rt.transaction(releases.pools_to_wake, pool_id=pool_id, account_id=account_id):
        rt.waker.wake(each)


def send_release(rt: Runtime, claim_id: int) -> None:
    """Send the release step of a claim whose release is committed."""
    rt.waker.send(NAME, claim_id=claim_id)

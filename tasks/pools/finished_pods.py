"""Pods that are over or gone: end or release their claims, then delete the Pod and its ServiceAccount.

GitHub is asked about the job before a claim ends here. A spent Pod is deleted when no claim needs it any more. One GET
by name and UID proves that an unlisted Pod is gone. A Pod that is over but not terminal is deleted under a retire claim
(law L7).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import structlog
from sqlalchemy import Connection

from k8s_adapters.runners.pods import get_pod
from k8s_adapters.runners.runners import Deletion, delete_account_left, delete_runner
from models.claims import pod_claims, pod_ends, releases
from models.pools import pod_rows, pool_plans
from models.pools.pod_rows import PodRow
from models.state import claim_transitions, stalls
from ostler import telemetry
from ostler.clock import utcnow
from ostler.errors import Busy, RateLimited, Retryable, UpstreamError
from ostler.logging import about
from ostler.reasons import meaning_of
from rules.claims.job_outcomes import JobOutcome, NextStep
from rules.claims.machines import Purpose
from rules.claims.pod_ends import describe
from rules.claims.pod_view import PodView
from rules.claims.stalls import Cause, FoundBy
from rules.pools.starts import trouble_of_ended
from tasks.claims.budget_wakes import wake_after_pods
from tasks.claims.evidence import judge
from tasks.claims.github import Lookups, ask_job_outcome, deregister
from tasks.claims.pod_events import ask_for_events
from tasks.claims.release import send_release, wake_after
from tasks.claims.retire import send_retire
from tasks.worker.base import SWEEP_ROW, calls, remaining
from tasks.worker.runtime import Runtime

log = structlog.get_logger(__name__)

IDLE_SECONDS = 5.0
"""Seconds from the end of a Pod until its job claim is released, if a JIT was delivered and no job was seen to begin.

The webhooks of a short job might arrive in these seconds. The release asks GitHub about the job in any case.
"""

ACCOUNT_RESERVE = 10.0
"""Seconds of the task's deadline that must be left before a ServiceAccount is deleted.

With less time, the sweep `orphaned_service_accounts` deletes the ServiceAccount later.
"""


def handle_missing(rt: Runtime, row: PodRow, *, namespace: str, unavailable: set[int | None], now: datetime) -> None:
    """Handle a row whose Pod was not listed, if one GET by name and UID proves that the Pod is gone.

    If the Pod has a job claim, the claim is ended. If the Pod has no claim, the Pod is marked as gone. If the Pod has a
    retire claim, nothing is done, because the task `retire` handles this Pod.
    """
    uid = row.uid
    if uid is None or (row.claim_purpose == Purpose.RETIRE):
        return
    pod = get_pod(rt.kube, namespace=namespace, name=row.name, policy=calls(SWEEP_ROW))
    if pod is not None and pod.uid == uid:
        return
    if row.claim_id is None:
        rt.transaction(releases.mark_gone, uid, now=now)
        wake_after_pods(rt, [uid])
        delete_account(rt, namespace=namespace, name=row.name, uid=uid, attempt=row.attempt_id or None)
    else:
        end_claim(rt, row.claim_id, found_by=FoundBy.LISTS, spent=False, unavailable=unavailable)


def delete_account(rt: Runtime, *, namespace: str, name: str, uid: str, attempt: str | None) -> None:
    """Delete the ServiceAccount of a Pod that is proven gone, and its StatefulSet before, if enough time is left.

    When many Pods are gone at once, the remaining time is used for the creation of new Pods. The sweep
    `orphaned_service_accounts` deletes the ServiceAccounts that remain.
    """
    if remaining() < ACCOUNT_RESERVE:
        return
    try:
        delete_account_left(rt.kube, namespace=namespace, name=name, uid=uid, attempt=attempt, policy=calls(SWEEP_ROW))
    except UpstreamError as error:
        log.warning("service_account.not_deleted", pod=name, error=meaning_of(error))


def handle_spent(
    rt: Runtime,
    row: PodRow,
    pod: PodView,
    *,
    pool: str,
    unavailable: set[int | None],
    owner_within: float,
    now: datetime,
) -> None:
    """Handle a Pod of the pool with this name that is over: delete a Pod without a claim, or end an overdue job claim.

    A job claim is overdue if GitHub's webhook `completed` has not ended the claim in time (`grace_of`). A Pod that has
    no claim but might still hold a JIT is not deleted (law L3). A Pod that has no claim and is not terminal is retired,
    unless the kubelet is about to report the Pod as terminal.
    """
    grace = grace_of(row, spent_after=rt.timings.spent_after)
    waited = row.terminal_at is not None and now - row.terminal_at >= timedelta(seconds=grace)
    if row.claim_id is None and judge(row.recorded, pod).busy:
        log.error("pod.not_deleted_because_it_might_hold_jit", pod=row.name)
        return
    if row.claim_id is None and not pod.is_terminal:
        # If no other container runs, the kubelet is about to report the Pod as terminal, unless its node is lost.
        if pod.is_over and (pod.company or waited):
            retire_over(rt, row, now=now)
        return
    if row.claim_id is None:
        if row.first_polled_at is None and not row.offered and not pod.terminating:
            count_failed_start(rt, row, pod, pool=pool, now=now)
        with rt.waker.single_flight(f"delete:{pod.uid}") as first:
            if first:
                delete_pod(rt, pod, owner_within=owner_within, now=now)
        return
    if row.claim_purpose == Purpose.RETIRE:
        return
    if waited:
        end_claim(rt, row.claim_id, found_by=FoundBy.LISTS, spent=True, unavailable=unavailable)


def grace_of(row: PodRow, *, spent_after: float) -> float:
    """Return how many seconds after the end of a Pod its claim waits for the webhook `completed`.

    Without a delivered JIT, no job can have run, so the claim does not wait. `spent_after` is the grace of a claim
    whose runner executed a job, and of a Pod without a claim.
    """
    if row.claim_purpose != Purpose.JOB or row.executing:
        return spent_after
    return min(IDLE_SECONDS, spent_after) if row.claim_delivered else 0.0


def count_failed_start(rt: Runtime, row: PodRow, pod: PodView, *, pool: str, now: datetime) -> None:
    """Count a Pod that ended before its first poll as a failed start.

    After each failed start in a row, the pool waits longer before it creates the next Pod.
    """
    # Kubernetes gives times in whole seconds, and its clock might be ahead of this process's clock. A creation time in
    # the future is therefore replaced by a time just before `now`.
    made_at = min(max(row.created_at, pod.created_at), now - timedelta(milliseconds=1))
    trouble, detail = trouble_of_ended(reason=pod.reason, poller_exit_code=pod.poller_exit_code)
    counted = rt.transaction(
        pool_plans.record_failed_start,
        row.id,
        template_hash=row.template_hash,
        trouble=trouble,
        detail=detail,
        made_at=made_at,
        now=now,
    )
    if counted:
        telemetry.FAILED_STARTS.labels(pod.namespace, pool, trouble).inc()
        log.warning("pod.ended_before_its_first_poll", pod=pod.name, why=detail)


def retire_over(rt: Runtime, row: PodRow, *, now: datetime) -> None:
    """Commit and send the retire claim of a Pod that is over and not terminal.

    If another session has locked the Pod's row, nothing is done, and the next reconcile tries again.
    """
    claim_id = rt.transaction(pod_rows.retire_over, row_id=row.id, due_after=rt.timings.due_after, now=now, who=rt.who)
    if claim_id is not None:
        telemetry.PODS_RETIRED.labels("over").inc()
        send_retire(rt, claim_id)


def delete_pod(rt: Runtime, pod: PodView, *, owner_within: float, now: datetime) -> None:
    """Delete a terminal Pod. Mark it as gone if the answer shows its removal, or if a GET no longer finds it.

    `owner_within`: time in seconds to wait for the end of its StatefulSet.
    """
    if not pod.terminating:
        rt.transaction(pod_ends.record_request, pod.uid, now=now)
    deleted = delete_runner(
        rt.kube,
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        attempt=pod.attempt,
        owner_within=owner_within,
        policy=calls(SWEEP_ROW),
    )
    removed = deleted is Deletion.REMOVED
    if removed or get_pod(rt.kube, namespace=pod.namespace, name=pod.name, policy=calls(SWEEP_ROW)) is None:
        rt.transaction(releases.mark_gone, pod.uid, now=now)


def _nothing_else(_db: Connection) -> None:
    """Do nothing. This function is the default of the argument `also` of `end_claim`."""


def end_claim(
    rt: Runtime,
    claim_id: int,
    *,
    found_by: FoundBy,
    spent: bool,
    unavailable: set[int | None],
    also: Callable[[Connection], None] = _nothing_else,
    lookups: Lookups | None = None,
) -> bool:
    """End a job claim whose Pod is proven gone or terminal, after asking GitHub about its job.

    This function ends a claim that is executing. It also ends a delivered claim that is already releasing, because this
    release might wait for GitHub forever, for example after the App was removed. Any other claim is released instead,
    and the release deregisters the runner.

    `found_by`: the source that showed the end of the Pod. `spent`: True if the Pod is terminal, False if it is gone.
    `unavailable`: installations whose calls to GitHub failed in this run. The claims of these installations wait for
    the next run. If a call to GitHub fails here, the installation of the claim is added to `unavailable`. `also`:
    function that is called in the transaction that ends the claim or begins its release. `lookups`: answers of GitHub
    that one run of a sweep shares, or None to ask GitHub each time.

    Return True if the claim was ended or its release began; False otherwise.
    """

    def stalled_claim(db: Connection) -> pod_claims.ClaimFacts | None:
        stalls.mark(db, claim_id, Cause.POD_SPENT if spent else Cause.POD_GONE, found_by, now=utcnow())
        return pod_claims.claim_facts(db, claim_id)

    claim = rt.transaction(stalled_claim)
    if claim is None:
        return False
    with about(claim=claim_id, job=claim.job_id, pod=claim.pod_name, pod_uid=claim.pod_uid):
        ended = _end(rt, claim_id, claim, spent=spent, unavailable=unavailable, also=also, lookups=lookups)
        if ended:
            ask_for_events(rt, [claim.pod_uid], live=True)
        return ended


def _end(
    rt: Runtime,
    claim_id: int,
    claim: pod_claims.ClaimFacts,
    *,
    spent: bool,
    unavailable: set[int | None],
    also: Callable[[Connection], None],
    lookups: Lookups | None,
) -> bool:
    """End a claim that was found to be live, as `end_claim` describes."""
    if not claim.executing and not (claim.releasing and claim.delivered):
        return _begin_release(rt, claim_id, claim, also)
    job_outcome = job_outcome_of(rt, claim, spent=spent, unavailable=unavailable, lookups=lookups)
    if job_outcome is None:
        return False
    if job_outcome.next_step is NextStep.REQUEUE and not deregister_runner(rt, claim, unavailable=unavailable):
        return False

    def end(db: Connection) -> bool:
        ended = releases.end_without_pod(
            db, claim_id, job_id=claim.job_id, job_outcome=job_outcome, spent=spent, now=utcnow(), who=rt.who
        )
        if ended:
            also(db)
        return ended

    ended = rt.transaction(end)
    if ended:
        log.info("claim.ended_without_pod", pod_spent=spent, next_step_of_job=job_outcome.next_step)
        count_lost(rt, claim)
        clean_up(rt, claim, gone=not spent)
    return ended


def clean_up(rt: Runtime, claim: pod_claims.ClaimFacts, *, gone: bool) -> None:
    """Wake the matchers of the claim's pool and account, and delete the ServiceAccount of a Pod that is gone.

    `gone`: True if the Pod is gone. If False, the ServiceAccount stays and is deleted together with the Pod.
    """
    wake_after(rt, pool_id=claim.pool_id, account_id=claim.account_id)
    if gone:
        delete_account(
            rt, namespace=claim.namespace, name=claim.pod_name, uid=claim.pod_uid, attempt=claim.attempt or None
        )


def count_lost(rt: Runtime, claim: pod_claims.ClaimFacts) -> None:
    """Count a Pod that ended while it had a job claim. The metric has the cause of the end as a label."""
    how = rt.transaction(pod_ends.read, claim.pod_uid).how
    telemetry.PODS_LOST.labels(claim.namespace, claim.pool, how).inc()


def _begin_release(
    rt: Runtime, claim_id: int, claim: pod_claims.ClaimFacts, also: Callable[[Connection], None]
) -> bool:
    def body(db: Connection) -> bool:
        why = describe(pod_ends.read(db, claim.pod_uid)) or "the Pod has ended"
        begun = claim_transitions.request_release(db, claim_id, reason=why, now=utcnow(), who=rt.who)
        if begun:
            also(db)
        return begun

    begun = rt.transaction(body)
    if begun:
        count_lost(rt, claim)
        send_release(rt, claim_id)
    return begun


def job_outcome_of(
    rt: Runtime,
    claim: pod_claims.ClaimFacts,
    *,
    spent: bool,
    unavailable: set[int | None],
    lookups: Lookups | None,
) -> JobOutcome | None:
    """Return the outcome of the job of a claim whose Pod is over or gone, or None if the claim has to wait.

    The claim waits if its installation is in `unavailable`, or if Ostler's own rate limiter refused the request. The
    claim of a gone Pod also waits after every other temporary error of GitHub. After every other error, the returned
    outcome says that the job is still running. The claim can then end, and a spent Pod no longer takes a place in the
    pool. The sweep `unresolved_jobs` asks GitHub about the job again.
    """
    if claim.installation_id in unavailable:
        return None
    try:
        return ask_job_outcome(
            rt,
            job_id=claim.job_id,
            repository=claim.repository,
            installation_id=claim.installation_id,
            policy=SWEEP_ROW,
            lookups=lookups,
        )
    except UpstreamError as error:
        if isinstance(error, Retryable | RateLimited):
            unavailable.add(claim.installation_id)
        paced = isinstance(error, RateLimited) and error.paced
        if paced or (not spent and isinstance(error, Retryable | RateLimited)):
            log.warning("claim.job_result_unknown", error=meaning_of(error))
            return None
        # The claim ends now, so that a spent Pod takes no place in the pool. `unresolved_jobs` asks GitHub again.
        return JobOutcome(NextStep.RUNNING, "GitHub did not answer the question about the job")


def deregister_runner(rt: Runtime, claim: pod_claims.ClaimFacts, *, unavailable: set[int | None]) -> bool:
    """Deregister the runner of a claim that ends and whose job returns to the queue.

    Return True if the claim can end; False if the next run must try the removal again. GitHub might have assigned a job
    that this runner never began. No other runner gets this job before GitHub has withdrawn it from this runner. The
    claim ends here without a release, so no release removes this runner.
    """
    try:
        deregister(rt, claim.registrations, policy=SWEEP_ROW)
    except (Busy, Retryable, RateLimited) as error:
        if not isinstance(error, Busy):
            unavailable.add(claim.installation_id)
        log.info("claim.runner_deregistration_postponed", error=meaning_of(error))
        return False
    except UpstreamError as error:  # the App was removed or lacks the permission: the job does not wait
        log.warning("claim.runner_not_deregistered", error=meaning_of(error))
    return True

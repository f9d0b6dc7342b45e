"""Pods that are over: their claims end after GitHub was asked, then Pod and ServiceAccount go.

A spent Pod is deleted when no claim needs it any more; one that was not in the list is proven gone by a GET.
A Pod is spent when it is over. One that is over and not terminal is deleted under a retire claim (L7).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import structlog
from sqlalchemy import Connection

from k8s_adapters.pods import PodSeen, get_pod
from k8s_adapters.runners import delete_account_left, delete_runner
from models.claims import pod_claims, pod_ends, releases
from models.pools import pod_rows, pool_plans
from models.pools.pod_rows import PodRow
from models.tables import stalls
from ostler import telemetry
from ostler.clock import utcnow
from ostler.errors import Busy, RateLimited, Retryable, UpstreamError
from ostler.logging import about
from ostler.reasons import meaning_of
from rules.claims.job_outcomes import JobOutcome, NextStep
from rules.claims.machines import Purpose
from rules.claims.pod_ends import describe
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

SPARED = 10.0
"""Seconds of the deadline that are left to what is needed more than the end of a ServiceAccount."""


def handle_missing(rt: Runtime, row: PodRow, *, namespace: str, unavailable: set[int | None], now: datetime) -> None:
    """A row whose Pod was not in the list: one GET by name and UID proves that it is gone."""
    uid = row.uid
    if uid is None or (row.claim_purpose == Purpose.RETIRE):
        return
    pod = get_pod(rt.kube, namespace=namespace, name=row.name, policy=calls(SWEEP_ROW))
    if pod is not None and pod.uid == uid:
        return
    if row.claim_id is None:
        rt.transaction(releases.mark_gone, uid, now=now)
        wake_after_pods(rt, [uid])
        forget_account(rt, namespace=namespace, name=row.name, uid=uid)
    else:
        end_claim(rt, row.claim_id, found_by=FoundBy.LISTS, spent=False, unavailable=unavailable)


def forget_account(rt: Runtime, *, namespace: str, name: str, uid: str) -> None:
    """Delete the ServiceAccount of a Pod that is proven gone; one that stays is `orphaned_service_accounts`'.

    So it stays where many Pods went at once: their successors come first.
    """
    if remaining() < SPARED:
        return
    try:
        delete_account_left(rt.kube, namespace=namespace, name=name, uid=uid, policy=calls(SWEEP_ROW))
    except UpstreamError as error:
        log.warning("service_account.left", pod=name, error=meaning_of(error))


def handle_spent(rt: Runtime, row: PodRow, pod: PodSeen, *, unavailable: set[int | None], now: datetime) -> None:
    """A Pod that is over: wait for its `completed`, then ask GitHub; delete it when no claim needs it."""
    waited = row.terminal_at is not None and now - row.terminal_at > timedelta(seconds=rt.timings.spent_after)
    if row.claim_id is None and judge(row.recorded, pod).busy:
        log.error("reconcile.pod_remains", pod=row.name)
        return
    if row.claim_id is None and not pod.is_terminal:
        # Without company the kubelet is about to report it terminal, unless the node is lost.
        if pod.is_over and (pod.company or waited):
            retire_over(rt, row, now=now)
        return
    if row.claim_id is None:
        if row.first_polled_at is None and not row.offered and not pod.terminating:
            count_failed_start(rt, row, pod, now=now)
        with rt.waker.single_flight(f"delete:{pod.uid}") as alone:
            if alone:
                remove(rt, pod, now=now)
        return
    if row.claim_purpose == Purpose.RETIRE:
        return
    if waited:
        end_claim(rt, row.claim_id, found_by=FoundBy.LISTS, spent=True, unavailable=unavailable)


def count_failed_start(rt: Runtime, row: PodRow, pod: PodSeen, *, now: datetime) -> None:
    """Count a Pod that ended before its first poll: its successors are made with a growing wait."""
    # The cluster's time is in whole seconds, and may be ahead of ours.
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
        telemetry.FAILED_STARTS.labels(trouble).inc()
        log.warning("pod.ended_before_its_first_poll", pod=pod.name, why=detail)


def retire_over(rt: Runtime, row: PodRow, *, now: datetime) -> None:
    """Commit and send the retire claim of a Pod that is over and not terminal; not when its row is locked."""
    claim_id = rt.transaction(pod_rows.retire_over, row_id=row.id, due_after=rt.timings.due_after, now=now, who=rt.who)
    if claim_id is not None:
        telemetry.PODS_RETIRED.labels("over").inc()
        send_retire(rt, claim_id)


def remove(rt: Runtime, pod: PodSeen, *, now: datetime) -> None:
    """Delete a terminal Pod, and record that it is gone when a GET shows so."""
    delete_runner(
        rt.kube, namespace=pod.namespace, name=pod.name, uid=pod.uid, attempt=pod.attempt, policy=calls(SWEEP_ROW)
    )
    if get_pod(rt.kube, namespace=pod.namespace, name=pod.name, policy=calls(SWEEP_ROW)) is None:
        rt.transaction(releases.mark_gone, pod.uid, now=now)


def _nothing_else(_db: Connection) -> None:
    """Write nothing more."""


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

    One that is not executing is released instead, which also deregisters its runner; where GitHub will never
    answer that release (the App was removed), the end of the Pod ends the claim.
    `unavailable` are the installations for which GitHub did not answer in this run: their claims wait for the next one.
    `also` is called in the transaction that ends it or begins its release; `lookups` are a tick's, as for `ask_job`.
    False when neither was done.
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
    """Do what `end_claim` says with a claim that was found to be live."""
    if not claim.executing and not (claim.releasing and claim.delivered):
        return _begin_release(rt, claim_id, claim, also)
    job_outcome = job_outcome_of(rt, claim, spent=spent, unavailable=unavailable, lookups=lookups)
    if job_outcome is None:
        return False
    if job_outcome.next_step is NextStep.REQUEUE and not runner_removed(rt, claim, unavailable=unavailable):
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
        log.info("claim.ended_without_pod", spent=spent, job_outcome=job_outcome.next_step)
        count_lost(rt, claim)
        clean_up(rt, claim, gone=not spent)
    return ended


def clean_up(rt: Runtime, claim: pod_claims.ClaimFacts, *, gone: bool) -> None:
    """Wake the pools that the end of a claim may help, and delete what its Pod left if it is gone."""
    wake_after(rt, pool_id=claim.pool_id, account_id=claim.account_id)
    if gone:
        forget_account(rt, namespace=claim.namespace, name=claim.pod_name, uid=claim.pod_uid)


def count_lost(rt: Runtime, claim: pod_claims.ClaimFacts) -> None:
    """Count a Pod that ended while a job claim had it, by what took it."""
    how = rt.transaction(pod_ends.read, claim.pod_uid).how
    telemetry.PODS_LOST.labels(how).inc()


def _begin_release(
    rt: Runtime, claim_id: int, claim: pod_claims.ClaimFacts, also: Callable[[Connection], None]
) -> bool:
    def body(db: Connection) -> bool:
        why = describe(pod_ends.read(db, claim.pod_uid)) or "its Pod has ended"
        begun = releases.request_release(db, claim_id, reason=why, now=utcnow(), who=rt.who)
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
    """Return what becomes of the job of a claim whose Pod is over; None when that has to be asked again."""
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
            log.warning("claim.job_outcome_unknown", error=meaning_of(error))
            return None
        # Its Pod is over and holds a place in the pool: `unresolved_jobs` asks on.
        return JobOutcome(NextStep.RUNNING, "GitHub cannot be asked")


def runner_removed(rt: Runtime, claim: pod_claims.ClaimFacts, *, unavailable: set[int | None]) -> bool:
    """Deregister the runner of a claim that ends while its job is queued; False when that has to be tried again.

    GitHub may have given this runner a job that it never began: no other runner gets that one before GitHub has
    taken it back, and nobody else removes this runner.
    """
    try:
        deregister(rt, claim.registrations, policy=SWEEP_ROW)
    except (Busy, Retryable, RateLimited) as error:
        if not isinstance(error, Busy):
            unavailable.add(claim.installation_id)
        log.info("claim.runner_stays", error=meaning_of(error))
        return False
    except UpstreamError as error:  # the App was removed, or may not: the job need not wait for that
        log.warning("claim.runner_left", error=meaning_of(error))
    return True

"""`ostler.pools` and `ostler.keep(pool_id)`: the keeper. It mirrors the pools and keeps their `replicas` Pods.

Under load several runs look at one pool at once, and see the same work: they share it (`Waker.alone`).
Rows are written before Pods are created. A spent Pod is recorded, replaced at once, and deleted when no claim
needs it any more; a Pod that is not terminal is only ever deleted under a retire claim (L7).
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import Connection, Row
from sqlalchemy.exc import DBAPIError

from k8s_adapters.pods import PodSeen, get_pod, list_pods
from k8s_adapters.pools import PoolSeen, get_pool, list_pools
from k8s_adapters.runners import create_runner, delete_account_left, delete_runner
from models import keeper, releases, stranded
from models.engine import transaction
from ostler.clock import utcnow
from ostler.errors import Busy, Conflict, RateLimited, Retryable, UpstreamError
from ostler.wakes import KEEP, REMATCH
from rules.fates import Fate, JobFate
from rules.machines import Purpose
from rules.stamps import INITIAL
from rules.stranding import Cause, FoundBy
from tasks.base import SWEEP, SWEEP_ROW, calls, remaining, task
from tasks.evidence import judge
from tasks.github import LookUps, ask_fate, deregister
from tasks.release import send_release, wake_after
from tasks.retire import send_retire
from tasks.runtime import Runtime, runtime

log = structlog.get_logger(__name__)

CREATIONS = 50
"""Pods that one run creates at most; the rest waits for the next."""

RESERVE = 3.0
"""Seconds of the deadline after which no further Pod is begun."""

SPARED = 10.0
"""Seconds of the deadline that are left to what is needed more than the end of a ServiceAccount."""

LOOK_AGAIN = 1.0
"""Seconds between two looks at a pool of which a Pod is ending, so that its successor need not wait for a period."""

ENDING = 15.0
"""Seconds for which such a Pod is looked for; one that takes longer is seen by the next period."""


@task("pools", queue="pools", policy=SWEEP)
def pools() -> None:
    """Mirror the pools of the cluster into their rows, then have each reconciled in a task of its own."""
    rt = runtime()
    namespace = rt.settings.namespace
    seen = list_pools(rt.kube, namespace=namespace, policy=calls(SWEEP))
    changed = False
    for pool in seen:
        if pool.problem is not None:
            log.warning("pool.unusable", pool=pool.name, problem=pool.problem)
            continue
        try:
            changed |= mirror(rt, pool)
        except DBAPIError as error:  # one bad pool stops no other (L14)
            log.warning("pool.not_mirrored", pool=pool.name, error=type(error).__name__)
    uids = {pool.uid for pool in seen}
    for row in transaction(rt.engine, lambda db: keeper.live_pools(db, namespace=namespace)):
        if row.uid in uids:
            continue
        try:
            changed |= see_missing_pool(rt, row, namespace=namespace)
        except (UpstreamError, DBAPIError) as error:
            log.warning("pool.not_asked_for", pool=row.name, error=type(error).__name__)
    if changed:
        rt.waker.send(REMATCH, queue="sweeps")
    for row in transaction(rt.engine, lambda db: keeper.kept_pools(db, namespace=namespace)):
        rt.waker.send(KEEP, queue="pools", pool_id=row.id)


def mirror(rt: Runtime, pool: PoolSeen) -> bool:
    """Mirror one pool; return whether jobs may find another pool now."""
    return transaction(rt.engine, lambda db: keeper.mirror_pool(db, facts(pool), now=utcnow()))


def see_missing_pool(rt: Runtime, row: Row[Any], *, namespace: str) -> bool:
    """A pool that was not in the list, which may have been a bad one (L8): one GET by name and UID proves it gone."""
    found = get_pool(rt.kube, namespace=namespace, name=row.name, policy=calls(SWEEP))
    if found is not None and found.uid == row.uid:
        return False
    log.warning("pool.gone", pool=row.name)
    transaction(rt.engine, lambda db: keeper.end_pool(db, row.id, now=utcnow()))
    return True


@task("keep", queue="pools", policy=SWEEP)
def keep(*, pool_id: int) -> None:
    """Reconcile one pool: look at its Pods first, at its rows second (L8)."""
    rt = runtime()
    rt.waker.kept(pool_id)
    pool = transaction(rt.engine, lambda db: keeper.pool_name(db, pool_id))
    if pool is None:
        return
    namespace, name = pool
    began = utcnow()
    seen = list_pods(rt.kube, namespace=namespace, pool=name, policy=calls(SWEEP))
    now = utcnow()
    transaction(
        rt.engine,
        lambda db: keeper.record_pods(db, pool_id=pool_id, pods=[pod_facts(pod) for pod in seen], now=now),
    )
    rows = transaction(rt.engine, lambda db: keeper.pod_rows(db, pool_id=pool_id, now=now))
    by_uid = {pod.uid: pod for pod in seen}
    asking = [row for row in rows if asks_github(row, by_uid)]
    others = [row for row in rows if not asks_github(row, by_uid)]
    complete = see_all(rt, others, by_uid, namespace=namespace, now=now)
    # A GitHub that does not answer may use up the rest of the time, and not always for the same Pods (L14).
    warm = [row.id for row in rows if (pod := by_uid.get(row.uid or "")) and not judge(row.recorded, pod).busy]
    fill(rt, pool_id, namespace, name, warm=warm)
    random.shuffle(asking)
    complete &= see_all(rt, asking, by_uid, namespace=namespace, now=now)
    if complete:
        transaction(rt.engine, lambda db: keeper.record_listed(db, pool_id=pool_id, at=began))
    # While the Pods are watched, the end of this one wakes us.
    if any(is_ending(row, now=now) for row in rows) and not rt.waker.watched(namespace):
        rt.waker.send(KEEP, queue="pools", after=LOOK_AGAIN, pool_id=pool_id)


def asks_github(row: keeper.PodRow, by_uid: Mapping[str, PodSeen]) -> bool:
    """Return whether the Pod is over while a job claim of it lives: GitHub says what becomes of the job."""
    return row.claim_purpose == Purpose.JOB and (row.terminal_at is not None or row.uid not in by_uid)


def see_all(
    rt: Runtime, rows: Sequence[keeper.PodRow], by_uid: Mapping[str, PodSeen], *, namespace: str, now: datetime
) -> bool:
    """Deal with these Pods of a pool, one after the other; False when some were left to the next run."""
    complete = True
    silent: set[int | None] = set()
    for row in rows:
        if remaining() < RESERVE:
            log.info("keep.to_be_continued")
            return False
        pod = by_uid.get(row.uid or "")
        try:
            see(rt, row, pod, namespace=namespace, silent=silent, now=now)
        except (UpstreamError, DBAPIError) as error:  # one Pod that cannot be dealt with stops no other (L14)
            log.warning("keep.pod_skipped", pod=row.name, error=type(error).__name__)
            complete = False
    return complete


def is_ending(row: keeper.PodRow, *, now: datetime) -> bool:
    """Return whether the job of this Pod is over and the Pod about to be: GitHub tells the one before the other."""
    if row.freed_at is None or row.claim_id is not None or row.terminal_at is not None:
        return False
    return now - row.freed_at < timedelta(seconds=ENDING)


def see(
    rt: Runtime,
    row: keeper.PodRow,
    pod: PodSeen | None,
    *,
    namespace: str,
    silent: set[int | None],
    now: datetime,
) -> None:
    """Deal with one Pod that is over; a silent one is left to `silent_pods`."""
    if row.uid is None:
        return
    if pod is None:
        see_missing(rt, row, namespace=namespace, silent=silent, now=now)
    elif row.terminal_at is not None:
        see_spent(rt, row, pod, silent=silent, now=now)


def facts(pool: PoolSeen) -> keeper.PoolFacts:
    """Return what is mirrored of a pool."""
    return keeper.PoolFacts(
        uid=pool.uid,
        namespace=pool.namespace,
        name=pool.name,
        image=pool.image,
        labels=pool.runner_labels,
        runner_group_id=pool.runner_group,
        vcpu=pool.vcpu_millicores,
        memory=pool.memory_mib,
        replicas=pool.replicas,
        allowed_accounts=pool.allowed_accounts,
        allowed_repositories=pool.allowed_repositories,
        routing_priority=pool.routing_priority,
        template_hash=pool.template_hash,
        draining=pool.terminating,
        draining_since=pool.deleted_at,
        generation=pool.generation,
        paused=pool.paused,
        autoscaled=pool.autoscaled,
        min_warm=pool.min_warm,
        max_replicas=pool.max_replicas,
        scale_down_delay=pool.scale_down_delay,
        max_unavailable_percent=pool.max_unavailable_percent,
        start_timeout=pool.start_timeout,
        max_concurrent=pool.max_concurrent,
        drain_timeout=pool.drain_timeout,
    )


def pod_facts(pod: PodSeen) -> keeper.PodFacts:
    """Return what is recorded of a Pod."""
    reason = pod.reason or pod.runner_exit_reason
    if pod.runner_exit_signal is not None:
        reason = f"{reason or 'signal'} ({pod.runner_exit_signal})"
    return keeper.PodFacts(
        name=pod.name,
        namespace=pod.namespace,
        uid=pod.uid,
        attempt_id=pod.attempt or "",
        template_hash=pod.digest or "",
        stamp_value=pod.stamp or INITIAL,
        created_at=pod.created_at,
        terminal=pod.is_terminal,
        poller_exit_code=pod.poller_exit_code,
        runner_exit_code=pod.runner_exit_code,
        exit_reason=reason,
    )


def fill(rt: Runtime, pool_id: int, namespace: str, name: str, *, warm: Sequence[int]) -> None:
    """Create the Pods that are missing, or retire some of the `warm` rows when there are too many."""
    names = [(f"{name}-{secrets.token_hex(4)}", secrets.token_hex(8)) for _ in range(CREATIONS)]
    plan = transaction(
        rt.engine,
        lambda db: keeper.plan_pods(
            db, pool_id=pool_id, names=names, warm=warm, due_after=rt.settings.due_after, now=utcnow(), who=rt.who
        ),
    )
    for claim_id in plan.retire:
        send_retire(rt, claim_id)
    if not plan.create:
        return
    pool = get_pool(rt.kube, namespace=namespace, name=name, policy=calls(SWEEP))
    if pool is None or pool.problem is not None or pool.terminating:
        return
    for row_id, pod_name, attempt in plan.create:
        if remaining() < RESERVE:
            return
        try:
            with rt.waker.alone(f"create:{row_id}") as alone:
                if alone and still_wanted(rt, row_id):
                    create(rt, pool, row_id=row_id, pod_name=pod_name, attempt=attempt)
        except UpstreamError as error:
            log.warning("pod.not_created", pod=pod_name, error=type(error).__name__)
            return


def still_wanted(rt: Runtime, row_id: int) -> bool:
    """Look again right before a creation, which may come long after the plan."""
    return transaction(rt.engine, lambda db: keeper.is_wanted(db, row_id=row_id))


def create(rt: Runtime, pool: PoolSeen, *, row_id: int, pod_name: str, attempt: str) -> None:
    """Create one Pod for its row. A failure leaves the row: the next round repeats the same attempt."""
    try:
        created = create_runner(
            rt.kube, pool=pool, name=pod_name, attempt=attempt, dispatch_url=rt.settings.dispatch_url,
            audience=rt.settings.token_audience, policy=calls(SWEEP),
        )  # fmt: skip
    except Conflict:
        log.warning("pod.name_taken", pod=pod_name)
        transaction(rt.engine, lambda db: keeper.forget_row(db, row_id=row_id, now=utcnow()))
        return
    transaction(rt.engine, lambda db: keeper.record_created(db, row_id=row_id, uid=created.uid))


def see_missing(rt: Runtime, row: keeper.PodRow, *, namespace: str, silent: set[int | None], now: datetime) -> None:
    """A row whose Pod was not in the list: one GET by name and UID proves that it is gone."""
    uid = row.uid
    if uid is None or (row.claim_purpose == Purpose.RETIRE):
        return
    pod = get_pod(rt.kube, namespace=namespace, name=row.name, policy=calls(SWEEP_ROW))
    if pod is not None and pod.uid == uid:
        return
    if row.claim_id is None:
        transaction(rt.engine, lambda db: releases.mark_gone(db, uid, now=now))
        forget_account(rt, namespace=namespace, name=row.name, uid=uid)
    else:
        end_claim(rt, row.claim_id, found_by=FoundBy.LISTS, spent=False, silent=silent)


def forget_account(rt: Runtime, *, namespace: str, name: str, uid: str) -> None:
    """Delete the ServiceAccount of a Pod that is proven gone; one that stays is `orphaned_service_accounts`'.

    So it stays where many Pods went at once: their successors come first.
    """
    if remaining() < SPARED:
        return
    try:
        delete_account_left(rt.kube, namespace=namespace, name=name, uid=uid, policy=calls(SWEEP_ROW))
    except UpstreamError as error:
        log.warning("service_account.left", pod=name, error=type(error).__name__)


def see_spent(rt: Runtime, row: keeper.PodRow, pod: PodSeen, *, silent: set[int | None], now: datetime) -> None:
    """A terminal Pod: wait for its `completed`, then ask GitHub; delete it when no claim needs it."""
    if row.claim_id is None and judge(row.recorded, pod).busy:
        log.error("keep.pod_stays", pod=row.name)
        return
    if row.claim_id is None:
        with rt.waker.alone(f"delete:{pod.uid}") as alone:
            if alone:
                remove(rt, pod, now=now)
        return
    if row.claim_purpose == Purpose.RETIRE:
        return
    waited = row.terminal_at is not None and now - row.terminal_at > timedelta(seconds=rt.settings.spent_after)
    if waited:
        end_claim(rt, row.claim_id, found_by=FoundBy.LISTS, spent=True, silent=silent)


def remove(rt: Runtime, pod: PodSeen, *, now: datetime) -> None:
    """Delete a terminal Pod, and record that it is gone when a GET shows so."""
    delete_runner(
        rt.kube, namespace=pod.namespace, name=pod.name, uid=pod.uid, attempt=pod.attempt, policy=calls(SWEEP_ROW)
    )
    if get_pod(rt.kube, namespace=pod.namespace, name=pod.name, policy=calls(SWEEP_ROW)) is None:
        transaction(rt.engine, lambda db: releases.mark_gone(db, pod.uid, now=now))


def _nothing_else(_db: Connection) -> None:
    """Write nothing more."""


def end_claim(
    rt: Runtime,
    claim_id: int,
    *,
    found_by: FoundBy,
    spent: bool,
    silent: set[int | None],
    also: Callable[[Connection], None] = _nothing_else,
    look_ups: LookUps | None = None,
) -> bool:
    """End a job claim whose Pod is proven gone or terminal, after asking GitHub about its job.

    One that is not executing is released instead, which also deregisters its runner; where GitHub will never
    answer that release (the App was removed), the end of the Pod ends the claim.
    `silent` are the installations for which GitHub did not answer in this run: their claims wait for the next one.
    `also` is called in the transaction that ends it or begins its release; `look_ups` are a tick's, as for `ask_job`.
    False when neither was done.
    """

    def stranded_claim(db: Connection) -> keeper.ClaimFacts | None:
        stranded.mark(db, claim_id, Cause.POD_SPENT if spent else Cause.POD_GONE, found_by, now=utcnow())
        return keeper.claim_facts(db, claim_id)

    claim = transaction(rt.engine, stranded_claim)
    if claim is None:
        return False
    if not claim.executing and not (claim.releasing and claim.delivered):
        return _begin_release(rt, claim_id, also)
    fate = fate_of(rt, claim_id, claim, spent=spent, silent=silent, look_ups=look_ups)
    if fate is None:
        return False
    if fate.fate is Fate.REQUEUE and not runner_removed(rt, claim_id, claim, silent=silent):
        return False

    def end(db: Connection) -> bool:
        ended = releases.end_without_pod(
            db, claim_id, job_id=claim.job_id, fate=fate, spent=spent, now=utcnow(), who=rt.who
        )
        if ended:
            also(db)
        return ended

    ended = transaction(rt.engine, end)
    if ended:
        log.info("claim.ended_without_pod", claim=claim_id, spent=spent, fate=fate.fate)
        clean_up(rt, claim, gone=not spent)
    return ended


def clean_up(rt: Runtime, claim: keeper.ClaimFacts, *, gone: bool) -> None:
    """Wake the pools that the end of a claim may help, and delete what its Pod left if it is gone."""
    wake_after(rt, pool_id=claim.pool_id, account_id=claim.account_id)
    if gone:
        forget_account(rt, namespace=claim.namespace, name=claim.pod_name, uid=claim.pod_uid)


def _begin_release(rt: Runtime, claim_id: int, also: Callable[[Connection], None]) -> bool:
    def body(db: Connection) -> bool:
        begun = releases.request_release(db, claim_id, reason="its Pod has ended", now=utcnow(), who=rt.who)
        if begun:
            also(db)
        return begun

    begun = transaction(rt.engine, body)
    if begun:
        send_release(rt, claim_id)
    return begun


def fate_of(
    rt: Runtime,
    claim_id: int,
    claim: keeper.ClaimFacts,
    *,
    spent: bool,
    silent: set[int | None],
    look_ups: LookUps | None,
) -> JobFate | None:
    """Return what becomes of the job of a claim whose Pod is over; None when that has to be asked again."""
    if claim.installation_id in silent:
        return None
    try:
        return ask_fate(
            rt, job_id=claim.job_id, repository=claim.repository, installation_id=claim.installation_id,
            policy=SWEEP_ROW, look_ups=look_ups,
        )  # fmt: skip
    except UpstreamError as error:
        if isinstance(error, Retryable | RateLimited):
            silent.add(claim.installation_id)
        paced = isinstance(error, RateLimited) and error.paced
        if paced or (not spent and isinstance(error, Retryable | RateLimited)):
            log.warning("claim.fate_unknown", claim=claim_id, error=type(error).__name__)
            return None
        # Its Pod is over and holds a place in the pool: `adrift_jobs` asks on.
        return JobFate(Fate.RUNNING, "GitHub cannot be asked")


def runner_removed(rt: Runtime, claim_id: int, claim: keeper.ClaimFacts, *, silent: set[int | None]) -> bool:
    """Deregister the runner of a claim that ends while its job is queued; False when that has to be tried again.

    GitHub may have given this runner a job that it never began: no other runner gets that one before GitHub has
    taken it back, and nobody else removes this runner.
    """
    try:
        deregister(rt, claim.registrations, policy=SWEEP_ROW)
    except (Busy, Retryable, RateLimited) as error:
        if not isinstance(error, Busy):
            silent.add(claim.installation_id)
        log.info("claim.runner_stays", claim=claim_id, error=type(error).__name__)
        return False
    except UpstreamError as error:  # the App was removed, or may not: the job need not wait for that
        log.warning("claim.runner_left", claim=claim_id, error=type(error).__name__)
    return True

"""`ostler.pools` and `ostler.reconcile(pool_id)`: the reconciler. It mirrors the pools and keeps their `replicas` Pods.

Under load several runs check one pool at once, and see the same work: they share it (`Waker.alone`).
Rows are written before Pods are created. A spent Pod is recorded, replaced at once, and deleted when no claim
needs it any more; a Pod that is not terminal is only ever deleted under a retire claim (L7).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import structlog
from sqlalchemy import Row
from sqlalchemy.exc import DBAPIError

from k8s_adapters.names import POOL_LABEL
from k8s_adapters.pods import PodSeen, list_pods
from k8s_adapters.pools import PoolSeen, get_pool, list_pools
from models.claims import watch_reports
from models.pools import pod_rows, pool_mirror
from models.pools.pod_lists import AHEAD
from models.pools.pod_rows import PodRow
from ostler.clock import utcnow
from ostler.errors import UpstreamError
from ostler.reasons import words_of
from ostler.task_names import POOL_CHANGED, POOLS, RECONCILE, REMATCH
from rules.claims.machines import Purpose
from tasks.claims.braking import update_brake
from tasks.claims.budget_wakes import wake_after_pods
from tasks.pools import draining, pod_lists
from tasks.pools.deadlines import limit_jobs
from tasks.pools.mirror import mark_unusable, mirror, pod_facts
from tasks.pools.pod_lists import Listed
from tasks.pools.pool_status import write_status
from tasks.pools.provision import RESERVE, act, decide
from tasks.pools.runner_versions import outdated
from tasks.pools.spent import handle_missing, handle_spent
from tasks.routing.rerouting import move_jobs_away
from tasks.worker.base import SWEEP, begin_page, calls, remaining, task
from tasks.worker.named_pools import pools_meant
from tasks.worker.runtime import Runtime, runtime
from tasks.worker.transactions import NOW

log = structlog.get_logger(__name__)

LOOK_AGAIN = 1.0
"""Seconds between two checks of a pool of which a Pod is ending, so that its successor need not wait for a period."""

ENDING = 15.0
"""Seconds for which such a Pod is looked for; one that takes longer is seen by the next period."""


@task(POOLS, policy=SWEEP)
def pools() -> None:
    """Mirror the pools of the cluster into their rows, then have each reconciled in a task of its own.

    One list of their Pods serves all of them. A pool that leaves is listed by itself: it goes by what is there now.
    """
    rt = runtime()
    namespace = rt.settings.namespace
    try:
        mirror_all(rt, namespace)
    finally:  # what there is of pools is kept also while the pools themselves cannot be read
        kept = rt.transaction(pool_mirror.mirrored_pools, namespace=namespace)
        shared = pod_lists.take(rt, namespace=namespace, pools={row.name for row in kept if not row.leaving})
        for row in kept:
            rt.waker.reconcile(row.id, shared=row.name in shared and not row.leaving)


def mirror_all(rt: Runtime, namespace: str) -> None:
    """Mirror every pool that is listed, and see about those that no longer are."""
    seen = list_pools(rt.kube, namespace=namespace, policy=calls(SWEEP))
    changed = False
    for pool in seen:
        try:
            changed |= mirror_pool_object(rt, pool)
        except DBAPIError as error:  # one bad pool stops no other (L14)
            log.warning("pool.not_mirrored", pool=pool.name, error=words_of(error))
    uids = {pool.uid for pool in seen}
    for row in rt.transaction(pool_mirror.live_pools, namespace=namespace):
        if row.uid in uids:
            continue
        try:
            changed |= end_missing_pool(rt, row, namespace=namespace)
        except (UpstreamError, DBAPIError) as error:
            log.warning("pool.not_checked", pool=row.name, error=words_of(error))
    if changed:
        rt.waker.send(REMATCH)


@task(POOL_CHANGED, policy=SWEEP)
def pool_changed(*, namespace: str, pool: str) -> None:
    """Look at one pool that has changed, come or gone, as the watch says (L6), and have it reconciled."""
    rt = runtime()
    found = get_pool(rt.kube, namespace=namespace, name=pool, policy=calls(SWEEP))
    changed = found is not None and mirror_pool_object(rt, found)
    for row in rt.transaction(pool_mirror.live_pools, namespace=namespace):
        if row.name == pool and (found is None or row.uid != found.uid):
            changed |= end_missing_pool(rt, row, namespace=namespace)
    if changed:
        rt.waker.send(REMATCH)
    for pool_id in rt.transaction(watch_reports.pools_named, namespace=namespace, names=[pool]):
        rt.waker.reconcile(pool_id)


def mirror_pool_object(rt: Runtime, pool: PoolSeen) -> bool:
    """Mirror a pool, or what is wrong with it; return whether jobs may find another pool now.

    One whose spec cannot be used is marked Degraded and keeps its Pods.
    """
    pool = newest(rt, pool)
    if pool.problem is None:
        draining.hold(rt, pool)
        return mirror(rt, pool)
    log.warning("pool.unusable", pool=pool.name, problem=pool.problem)
    mark_unusable(rt, pool, problem=pool.problem)
    return draining.note(rt, pool)


def newest(rt: Runtime, pool: PoolSeen) -> PoolSeen:
    """Return a pool as it is now, where its row knows a later generation than this check.

    Either somebody looked later, or etcd was put back to a backup: then the pool that is read *after* its row has a
    smaller generation still, and its row follows.
    """
    known = rt.transaction(pool_mirror.generation_of, uid=pool.uid)
    if known is None or known <= pool.generation:
        return pool
    found = get_pool(rt.kube, namespace=pool.namespace, name=pool.name, policy=calls(SWEEP))
    if found is None or found.uid != pool.uid:
        return pool
    if found.generation < known:
        followed = rt.transaction(pool_mirror.go_back, uid=pool.uid, known=known, generation=found.generation)
        if followed:
            why = "etcd was restored from a backup; the pool follows its object as it is now"
            log.error("pool.generation_went_back", pool=pool.name, known=known, found=found.generation, why=why)
    return found


def end_missing_pool(rt: Runtime, row: Row[Any], *, namespace: str) -> bool:
    """A pool that was not in the list, which may have been a bad one (L8): one GET by name and UID proves it gone."""
    found = get_pool(rt.kube, namespace=namespace, name=row.name, policy=calls(SWEEP))
    if found is not None and found.uid == row.uid:
        return False
    log.warning("pool.gone", pool=row.name)
    rt.transaction(pool_mirror.end_pool, row.id, now=NOW)
    return True


@task(RECONCILE, policy=SWEEP)
def reconcile(*, pool_id: int | None = None, pool: str | None = None, shared: bool = False) -> None:
    """Reconcile the pool of this id, or of this name in the runners' namespace where no id is given.

    `shared`: the list of the last tick may serve. A wake tells of something that is newer than that.
    """
    rt = runtime()
    for each in pools_meant(rt, pool_id=pool_id, pool=pool):
        reconcile_pool(rt, each, shared=shared is True)


def reconcile_pool(rt: Runtime, pool_id: int, *, shared: bool) -> None:
    """Reconcile one pool, by the list of the last tick if it may be `shared` and serves, else by one of now."""
    rt.waker.clear_reconcile(pool_id, shared=shared)
    listed = pod_lists.find(rt, pool_id) if shared else None
    if listed is None and not rt.waker.may_reconcile(pool_id):
        rt.waker.reconcile(pool_id)
        return
    pool = rt.transaction(pool_mirror.pool_name, pool_id)
    if pool is None:
        return
    namespace, name = pool
    move_jobs_away(rt, pool_id)
    if listed is None:
        began = utcnow()
        pods = list_pods(rt.kube, namespace=namespace, pool=name, policy=calls(SWEEP))
        begin_page()  # each page of a list may take as long as a task, and the work begins only now
        listed = Listed(pods, began)
    if not listed.dealt:
        reconcile_pods(rt, pool_id, listed, namespace=namespace, name=name)


def reconcile_pods(rt: Runtime, pool_id: int, listed: Listed, *, namespace: str, name: str) -> None:
    """Reconcile one pool: its Pods were checked first, its rows are second (L8)."""
    seen = listed.pods
    for pod in seen:
        if not pod.is_ours:
            report_stranger(pod.uid, pod.name, name)
    rt.waker.record_pod_count(pool_id, pods=len(seen))
    now = utcnow()
    by_uid = {pod.uid: pod for pod in seen}
    facts = [pod_facts(pod) for pod in seen]
    over = rt.transaction(pod_rows.record_pods, pool_id=pool_id, pods=facts, now=now)
    wake_after_pods(rt, over)
    rows = rt.transaction(pod_rows.over_rows, pool_id=pool_id, listed=list(by_uid), now=now)
    rows = [row for row in rows if not is_younger(row, by_uid, than=listed, now=now)]
    asking = [row for row in rows if asks_github(row, by_uid)]
    others = [row for row in rows if not asks_github(row, by_uid)]
    complete = handle_all(rt, others, by_uid, namespace=namespace, now=now)
    # A GitHub that does not answer may use up the rest of the time, and not always for the same Pods (L14).
    decided = decide(rt, pool_id, name=name, by_uid=by_uid)
    act(rt, decided)
    brake = update_brake(rt, decided.pool, now=utcnow())
    write_status(
        rt, decided.pool, decided.observed, decided.plan, brake=brake, version=outdated(rt, pool_id), now=utcnow()
    )
    limit_jobs(rt, pool_id, [pod for pod in seen if pod.is_ours], max_job_seconds=decided.pool.max_job_seconds)
    random.shuffle(asking)
    complete &= handle_all(rt, asking, by_uid, namespace=namespace, now=now)
    if complete:
        rt.transaction(pool_mirror.record_listed, pool_id=pool_id, at=listed.began, now=NOW)
    # While the Pods are watched, the end of this one wakes us.
    awaited = any(is_ending(row, now=now) for row in decided.rows) and not rt.waker.is_watched(namespace)
    if awaited or decided.plan.goes_on:
        rt.waker.reconcile(pool_id, after=LOOK_AGAIN)
    if not listed.shared:  # a pool goes by a list that began after it was asked to
        draining.settle(rt, pool_id, [pod for pod in seen if pod.is_ours])


@lru_cache(maxsize=1000)
def report_stranger(uid: str, name: str, pool: str) -> None:
    """Say once in this process that a Pod has the label of a pool and was not made by Ostler. It is left alone."""
    cure = f"remove the label {POOL_LABEL} from it, or ignore this: it is neither counted nor deleted"
    log.warning("pod.not_adopted", pod=name, pod_uid=uid, pool=pool, cure=cure)


def is_younger(row: PodRow, by_uid: Mapping[str, PodSeen], *, than: Listed, now: datetime) -> bool:
    """Return whether a Pod is missing from a shared list only as its row was made after that had begun.

    A row of the future was made by a clock that was ahead, and tells nothing about the list.
    """
    missing = than.shared and row.terminal_at is None and row.uid not in by_uid
    return missing and than.began < row.created_at <= now + AHEAD


def asks_github(row: PodRow, by_uid: Mapping[str, PodSeen]) -> bool:
    """Return whether the Pod is over while a job claim of it lives: GitHub says what becomes of the job."""
    return row.claim_purpose == Purpose.JOB and (row.terminal_at is not None or row.uid not in by_uid)


def handle_all(
    rt: Runtime, rows: Sequence[PodRow], by_uid: Mapping[str, PodSeen], *, namespace: str, now: datetime
) -> bool:
    """Deal with these Pods of a pool, one after the other; False when some were left to the next run."""
    complete = True
    unavailable: set[int | None] = set()
    for row in rows:
        if remaining() < RESERVE:
            log.info("reconcile.unfinished")
            return False
        pod = by_uid.get(row.uid or "")
        try:
            see(rt, row, pod, namespace=namespace, unavailable=unavailable, now=now)
        except (UpstreamError, DBAPIError) as error:  # one Pod that cannot be dealt with stops no other (L14)
            log.warning("reconcile.pod_skipped", pod=row.name, error=words_of(error))
            complete = False
    return complete


def is_ending(row: PodRow, *, now: datetime) -> bool:
    """Return whether the job of this Pod is over and the Pod about to be: GitHub tells the one before the other."""
    if row.freed_at is None or not row.ever_delivered or row.claim_id is not None or row.terminal_at is not None:
        return False
    return now - row.freed_at < timedelta(seconds=ENDING)


def see(
    rt: Runtime,
    row: PodRow,
    pod: PodSeen | None,
    *,
    namespace: str,
    unavailable: set[int | None],
    now: datetime,
) -> None:
    """Deal with one Pod that is over; an unresponsive one is left to `unresponsive_pods`."""
    if row.uid is None:
        return
    if pod is None:
        handle_missing(rt, row, namespace=namespace, unavailable=unavailable, now=now)
    elif row.terminal_at is not None:
        handle_spent(rt, row, pod, unavailable=unavailable, now=now)

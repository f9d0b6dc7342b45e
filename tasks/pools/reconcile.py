"""`ostler.pools` and `ostler.reconcile(pool_id)`: the reconciler. It mirrors the pools and keeps their `replicas` Pods.

Under load several runs check one pool at once, and see the same work: they share it (`Waker.alone`).
Rows are written before Pods are created. A spent Pod is recorded, replaced at once, and deleted when no claim
needs it any more; a Pod that is not terminal is only ever deleted under a retire claim (L7).
"""

from __future__ import annotations

import random
from datetime import datetime, timedelta

import structlog

from k8s_adapters.pods import list_pods
from models.pools import pod_rows, pool_mirror
from models.pools.pod_rows import PodRow
from ostler.clock import utcnow
from ostler.wakes import RECONCILE
from tasks.claims.braking import update_brake
from tasks.claims.budget_wakes import wake_after_pods
from tasks.pools import finalizers, pod_lists
from tasks.pools.act import act, finish_pods
from tasks.pools.deadlines import limit_jobs
from tasks.pools.facts import pod_facts
from tasks.pools.observe import is_younger, needs_github, report_foreign_pod
from tasks.pools.plan import decide
from tasks.pools.pod_lists import Listed
from tasks.pools.report import write_status
from tasks.pools.runner_versions import outdated
from tasks.routing.rerouting import move_jobs_away
from tasks.worker.base import SWEEP, begin_page, calls, task
from tasks.worker.named_pools import pools_meant
from tasks.worker.runtime import Runtime, runtime
from tasks.worker.transactions import NOW

log = structlog.get_logger(__name__)

RECHECK_SECONDS = 1.0
"""Seconds between two checks of a pool of which a Pod is ending, so that its successor need not wait for a period."""

ENDING_SECONDS = 15.0
"""Seconds for which such a Pod is looked for; one that takes longer is seen by the next period."""


@task("reconcile", queue="pools", policy=SWEEP)
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
        rt.waker.send(RECONCILE, queue="pools", pool_id=pool_id)
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
            report_foreign_pod(pod.uid, pod.name, name)
    rt.waker.record_pod_count(pool_id, pods=len(seen))
    now = utcnow()
    by_uid = {pod.uid: pod for pod in seen}
    facts = [pod_facts(pod) for pod in seen]
    over = rt.transaction(pod_rows.record_pods, pool_id=pool_id, pods=facts, now=now)
    wake_after_pods(rt, over)
    rows = rt.transaction(pod_rows.over_rows, pool_id=pool_id, listed=list(by_uid), now=now)
    rows = [row for row in rows if not is_younger(row, by_uid, than=listed, now=now)]
    asking = [row for row in rows if needs_github(row, by_uid)]
    others = [row for row in rows if not needs_github(row, by_uid)]
    complete = finish_pods(rt, others, by_uid, namespace=namespace, now=now)
    # A GitHub that does not answer may use up the rest of the time, and not always for the same Pods (L14).
    decided = decide(rt, pool_id, name=name, by_uid=by_uid)
    act(rt, decided)
    brake = update_brake(rt, decided.pool, now=utcnow())
    write_status(
        rt, decided.pool, decided.observed, decided.plan, brake=brake, version=outdated(rt, pool_id), now=utcnow()
    )
    limit_jobs(rt, pool_id, [pod for pod in seen if pod.is_ours], max_job_seconds=decided.pool.max_job_seconds)
    random.shuffle(asking)
    complete &= finish_pods(rt, asking, by_uid, namespace=namespace, now=now)
    if complete:
        rt.transaction(pool_mirror.record_listed, pool_id=pool_id, at=listed.began, now=NOW)
    # While the Pods are watched, the end of this one wakes us.
    awaited = any(is_ending(row, now=now) for row in decided.rows) and not rt.waker.is_watched(namespace)
    if awaited or decided.plan.goes_on:
        rt.waker.send(RECONCILE, queue="pools", after=RECHECK_SECONDS, pool_id=pool_id)
    if not listed.shared:  # a pool goes by a list that began after it was asked to
        finalizers.remove_finalizer_if_empty(rt, pool_id, [pod for pod in seen if pod.is_ours])


def is_ending(row: PodRow, *, now: datetime) -> bool:
    """Return whether the job of this Pod is over and the Pod about to be: GitHub tells the one before the other."""
    if row.freed_at is None or not row.ever_delivered or row.claim_id is not None or row.terminal_at is not None:
        return False
    return now - row.freed_at < timedelta(seconds=ENDING_SECONDS)

"""`ostler.reconcile(pool_id)`: the reconciler of one pool. It observes the pool, plans, acts and reports.

`reconcile_if_due` decides whether a reconcile may begin, which list of Pods the reconcile uses, and when the next
reconcile is requested. `reconcile_pool` is the reconcile itself, with one line per step.

Under load, several workers might reconcile one pool at the same time and see the same work. They divide this work among
themselves (`Waker.single_flight`). Rows are written before Pods are created. A spent Pod is recorded, replaced at once,
and deleted when no claim needs it any more. A Pod that is not terminal is deleted only under a retire claim (law L7).
"""

from __future__ import annotations

from datetime import datetime, timedelta

from k8s_adapters.calls.writes import Writes, recorded
from models.pools import pool_mirror
from models.pools.pod_rows import PodRow
from ostler.task_names import RECONCILE
from rules.pools.volumes import Reclaim
from tasks.pools import pod_lists
from tasks.pools.act import act, finish_jobs, finish_pods
from tasks.pools.annotate import annotate_pods
from tasks.pools.detach import detach_busy_pods
from tasks.pools.finalizers import remove_finalizer_if_empty
from tasks.pools.observe import list_ended, list_pool, observe
from tasks.pools.plan import Planned, plan
from tasks.pools.pod_lists import Listed
from tasks.pools.report import record, report
from tasks.routing.rerouting import move_jobs_away
from tasks.worker.base import SWEEP, task
from tasks.worker.named_pools import pools_meant
from tasks.worker.runtime import Runtime, runtime

RECHECK_SECONDS = 1.0
"""Seconds until the next reconcile of a pool while one of its Pods is ending.

The short wait lets the pool replace the Pod soon after the end of the Pod.
"""

ENDING_SECONDS = 15.0
"""Seconds after the end of a job during which its Pod causes reconciles every `RECHECK_SECONDS`.

If the Pod ends later, the next regular reconcile finds that the Pod has ended.
"""


@task(RECONCILE, policy=SWEEP)
def reconcile(
    *, pool_id: int | None = None, pool: str | None = None, shared: bool = False, ended: bool = False
) -> None:
    """Reconcile the pool with the given id. If `pool_id` is None, reconcile every pool with the name `pool`.

    The name is looked up in both namespaces of runners, and might also belong to deleted pools that still have Pods.
    `shared`: True if the reconcile may use the last shared list of Pods. Only the task `ostler.pools` sets `shared`. A
    message that reports a change does not set it, because the change is newer than that list.
    `ended`: True if the message reports only Pods that have ended. The reconcile then lists only such Pods, finishes
    them and replaces them. The next reconcile of `ostler.pools` does all other work.
    """
    rt = runtime()
    for each in pools_meant(rt, pool_id=pool_id, pool=pool):
        reconcile_if_due(rt, each, shared=shared is True, ended=ended is True and shared is not True)


def reconcile_if_due(rt: Runtime, pool_id: int, *, shared: bool, ended: bool = False) -> None:
    """Reconcile a pool now, or request the reconcile again if the pool was reconciled too recently.

    `shared`: True if the last shared list may be used. If that list is no evidence (`tasks.pools.pod_lists`), or if
    `shared` is False, the pool's Pods are listed now. If another reconcile has already handled that list, or if the
    pool has no row, the pool is not reconciled. `ended`: True if a list of the ended Pods is enough (`list_ended`).
    """
    rt.waker.clear_reconcile(pool_id, shared=shared, ended=ended)
    listed = pod_lists.find(rt, pool_id) if shared else None
    if listed is None and not rt.waker.may_reconcile(pool_id):
        rt.waker.reconcile(pool_id, ended=ended)
        return
    pool = rt.transaction(pool_mirror.pool_ref, pool_id)
    if pool is None:
        return
    if not ended:
        move_jobs_away(rt, pool_id)
    listed = listed or (list_ended(rt, pool) if ended else None) or list_pool(rt, pool)
    if listed.dealt:
        return
    with recorded() as writes:
        planned = reconcile_pool(rt, pool, listed, writes=writes)
        try:
            if needs_recheck(rt, planned):
                rt.waker.reconcile(pool_id, after=RECHECK_SECONDS)
            # The list has all Pods, and it began after the deletion request.
            if not (listed.shared or listed.ended) and has_no_volumes_to_delete(planned):
                remove_finalizer_if_empty(rt, pool_id, listed)
        finally:
            record(rt, planned, writes)
    if not listed.ended:
        rt.waker.record_pod_count(pool_id, pods=len(listed.pods))
        annotate_pods(rt, planned)  # a refused annotation is no problem of the pool


def reconcile_pool(rt: Runtime, pool: pool_mirror.PoolRef, listed: Listed, *, writes: Writes) -> Planned:
    """Reconcile a pool with a list of its Pods, and return the plan that was carried out.

    `writes`: the writes to the API server that this reconcile makes. The report shows the writes that keep failing.

    The list was made before the steps read any row (law L8). Pods that are over are finished in two steps, because
    calls that GitHub does not answer might use up the remaining time. The first step finishes the Pods without a live
    job claim, which needs no call to GitHub. The plan then replaces these Pods. The second step finishes the other
    Pods, after the status is written. Only a pool that drains has Pods to detach, and their detachment is not urgent.
    """
    observed = observe(rt, pool, listed)
    complete = finish_pods(rt, observed, observed.over)
    planned = plan(rt, observed)
    act(rt, planned)
    report(rt, planned, writes=writes)
    finish_jobs(rt, planned, complete=complete)
    detach_busy_pods(rt, planned)
    return planned


def has_no_volumes_to_delete(planned: Planned) -> bool:
    """Return True if no volume of the pool is left that must be deleted.

    After the object of a pool is gone, no reconcile deletes its volumes.
    """
    retained = planned.pool_row.volume_reclaim != Reclaim.DELETE
    return retained or (planned.volumes is not None and planned.volumes.count == 0)


def needs_recheck(rt: Runtime, planned: Planned) -> bool:
    """Return True if the next reconcile must come before the next regular one; False otherwise.

    The reconcile must come early in two cases: the plan could not do everything at once, or a Pod is ending while no
    watch of its namespace runs. Without a watch, only a new list shows the end of the Pod.
    """
    observed = planned.observed
    awaited = any(is_ending(row, now=observed.at) for row in planned.pod_rows)
    return (awaited and not rt.waker.is_watched(observed.pool.namespace)) or planned.plan.goes_on


def is_ending(row: PodRow, *, now: datetime) -> bool:
    """Return True if the job of a Pod ended within the last `ENDING_SECONDS` and the Pod has not ended yet.

    GitHub reports the end of the job before the Pod's containers end.
    """
    if row.freed_at is None or not row.ever_delivered or row.claim_id is not None or row.terminal_at is not None:
        return False
    return now - row.freed_at < timedelta(seconds=ENDING_SECONDS)

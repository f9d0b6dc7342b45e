"""`ostler.reconcile(pool_id)`: the reconciler of one pool. It observes the pool, plans, acts and reports.

`reconcile_if_due` is the caller of a reconcile. It decides whether a reconcile may begin, which list of Pods it uses,
and when the next one is requested. `reconcile_pool` is the reconcile itself, one line per step.

Under load several workers reconcile one pool at once and see the same work. They share it (`Waker.single_flight`).
Rows are written before Pods are created. A spent Pod is recorded, replaced at once, and deleted when no claim needs it
any more. A Pod that is not terminal is only ever deleted under a retire claim (L7).
"""

from __future__ import annotations

from datetime import datetime, timedelta

from models.pools import pool_mirror
from models.pools.pod_rows import PodRow
from ostler.task_names import RECONCILE
from tasks.pools import pod_lists
from tasks.pools.act import act, finish_jobs, finish_pods
from tasks.pools.finalizers import remove_finalizer_if_empty
from tasks.pools.observe import PoolName, list_pool, observe
from tasks.pools.plan import Planned, plan
from tasks.pools.pod_lists import Listed
from tasks.pools.report import report
from tasks.routing.rerouting import move_jobs_away
from tasks.worker.base import SWEEP, task
from tasks.worker.named_pools import pools_meant
from tasks.worker.runtime import Runtime, runtime

RECHECK_SECONDS = 1.0
"""Seconds until the next reconcile of a pool while one of its Pods is ending. Its successor is then created at once."""

ENDING_SECONDS = 15.0
"""Seconds after the end of its job during which a Pod causes such early reconciles. Then the next tick sees its end."""


@task(RECONCILE, policy=SWEEP)
def reconcile(*, pool_id: int | None = None, pool: str | None = None, shared: bool = False) -> None:
    """Reconcile the pool with this id, or with this name in the runners' namespace if no id is given.

    `shared`: the list of the last tick may be used. A wake reports something newer than that list, so it never sets
    `shared`.
    """
    rt = runtime()
    for each in pools_meant(rt, pool_id=pool_id, pool=pool):
        reconcile_if_due(rt, each, shared=shared is True)


def reconcile_if_due(rt: Runtime, pool_id: int, *, shared: bool) -> None:
    """Reconcile a pool now, or request the reconcile again if the pool was reconciled too recently.

    `shared`: the list of the last tick is used if it can prove enough. Otherwise the pool's Pods are listed now.
    """
    rt.waker.clear_reconcile(pool_id, shared=shared)
    listed = pod_lists.find(rt, pool_id) if shared else None
    if listed is None and not rt.waker.may_reconcile(pool_id):
        rt.waker.reconcile(pool_id)
        return
    names = rt.transaction(pool_mirror.pool_name, pool_id)
    if names is None:
        return
    pool = PoolName(pool_id, *names)
    move_jobs_away(rt, pool_id)
    if listed is None:
        listed = list_pool(rt, pool)
    if listed.dealt:
        return
    rt.waker.record_pod_count(pool_id, pods=len(listed.pods))
    planned = reconcile_pool(rt, pool, listed)
    if needs_recheck(rt, planned):
        rt.waker.reconcile(pool_id, after=RECHECK_SECONDS)
    if not listed.shared:  # a pool is released only by a list that began after its deletion was requested
        remove_finalizer_if_empty(rt, pool_id, listed.own_pods)


def reconcile_pool(rt: Runtime, pool: PoolName, listed: Listed) -> Planned:
    """Reconcile a pool by a list of its Pods, and return the plan that was carried out.

    The list is older than every row that the steps read (L8). Pods that are over are finished in two steps, because a
    GitHub that does not answer might use up the rest of the time. Pods that need no answer from GitHub come first, so
    that the plan replaces them. The others come last, after the status is written.
    """
    observed = observe(rt, pool, listed)
    complete = finish_pods(rt, observed, observed.over)
    planned = plan(rt, observed)
    act(rt, planned)
    report(rt, planned)
    finish_jobs(rt, planned, complete=complete)
    return planned


def needs_recheck(rt: Runtime, planned: Planned) -> bool:
    """Return whether the next reconcile must come before the next tick.

    It must if the plan could not do everything at once, or if a Pod is ending whose end no watch reports.
    """
    observed = planned.observed
    awaited = any(is_ending(row, now=observed.at) for row in planned.pod_rows)
    return (awaited and not rt.waker.is_watched(observed.pool.namespace)) or planned.plan.goes_on


def is_ending(row: PodRow, *, now: datetime) -> bool:
    """Return whether the job of a Pod ended a moment ago, so that the Pod is expected to end as well.

    GitHub reports the end of the job before the Pod's containers end.
    """
    if row.freed_at is None or not row.ever_delivered or row.claim_id is not None or row.terminal_at is not None:
        return False
    return now - row.freed_at < timedelta(seconds=ENDING_SECONDS)

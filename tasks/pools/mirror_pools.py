"""`ostler.pools` and `ostler.pool_changed`: mirror the pools of the cluster into their rows."""

from __future__ import annotations

from typing import Any

import structlog
from sqlalchemy import Row
from sqlalchemy.exc import DBAPIError

from k8s_adapters.pools import PoolSeen, get_pool, list_pools
from models.claims import watch_reports
from models.pools import draining, pool_mirror
from ostler.errors import UpstreamError
from ostler.reasons import words_of
from ostler.wakes import RECONCILE, REMATCH
from tasks.pools import finalizers, pod_lists
from tasks.pools.facts import pool_facts
from tasks.worker.base import SWEEP, calls, task
from tasks.worker.runtime import Runtime, runtime
from tasks.worker.transactions import NOW

log = structlog.get_logger(__name__)


@task("pools", queue="pools", policy=SWEEP)
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
        shared = pod_lists.share_list(rt, namespace=namespace, pools={row.name for row in kept if not row.leaving})
        for row in kept:
            how = {"shared": True} if row.name in shared and not row.leaving else {}
            rt.waker.send(RECONCILE, queue="pools", pool_id=row.id, **how)


def mirror_all(rt: Runtime, namespace: str) -> None:
    """Mirror every pool that is listed, and see about those that no longer are."""
    seen = list_pools(rt.kube, namespace=namespace, policy=calls(SWEEP))
    changed = False
    for pool in seen:
        try:
            changed |= mirror_listed_pool(rt, pool)
        except DBAPIError as error:  # one bad pool stops no other (L14)
            log.warning("pool.not_mirrored", pool=pool.name, error=words_of(error))
    uids = {pool.uid for pool in seen}
    for row in rt.transaction(pool_mirror.live_pools, namespace=namespace):
        if row.uid in uids:
            continue
        try:
            changed |= end_missing_pool(rt, row, namespace=namespace)
        except (UpstreamError, DBAPIError) as error:
            log.warning("pool.not_asked_for", pool=row.name, error=words_of(error))
    if changed:
        rt.waker.send(REMATCH, queue="sweeps")


@task("pool_changed", queue="pools", policy=SWEEP)
def pool_changed(*, namespace: str, pool: str) -> None:
    """Look at one pool that has changed, come or gone, as the watch says (L6), and have it reconciled."""
    rt = runtime()
    found = get_pool(rt.kube, namespace=namespace, name=pool, policy=calls(SWEEP))
    changed = found is not None and mirror_listed_pool(rt, found)
    for row in rt.transaction(pool_mirror.live_pools, namespace=namespace):
        if row.name == pool and (found is None or row.uid != found.uid):
            changed |= end_missing_pool(rt, row, namespace=namespace)
    if changed:
        rt.waker.send(REMATCH, queue="sweeps")
    for pool_id in rt.transaction(watch_reports.pools_named, namespace=namespace, names=[pool]):
        rt.waker.send(RECONCILE, queue="pools", pool_id=pool_id)


def mirror_listed_pool(rt: Runtime, pool: PoolSeen) -> bool:
    """Mirror a pool, or what is wrong with it; return whether jobs may find another pool now.

    One whose spec cannot be used is marked Degraded and keeps its Pods.
    """
    pool = read_newest(rt, pool)
    if pool.problem is None:
        finalizers.add_finalizer_if_missing(rt, pool)
        return mirror_pool(rt, pool)
    log.warning("pool.unusable", pool=pool.name, problem=pool.problem)
    mark_unusable(rt, pool, problem=pool.problem)
    return record_draining(rt, pool)


def read_newest(rt: Runtime, pool: PoolSeen) -> PoolSeen:
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


def mirror_pool(rt: Runtime, pool: PoolSeen) -> bool:
    """Mirror one pool; return whether jobs may find another pool now."""
    return rt.transaction(pool_mirror.mirror_pool, pool_facts(rt, pool), now=NOW)


def mark_unusable(rt: Runtime, pool: PoolSeen, *, problem: str) -> None:
    """Record why a pool cannot be used."""
    known = pool_facts(rt, pool)
    rt.transaction(pool_mirror.mark_problem, known, problem=problem, now=NOW)


def record_draining(rt: Runtime, pool: PoolSeen) -> bool:
    """Have a pool drain whose spec cannot be used; return whether jobs may find another pool now."""
    if not pool.terminating:
        return False
    return rt.transaction(draining.record_draining, uid=pool.uid, since=pool.deleted_at, now=NOW)

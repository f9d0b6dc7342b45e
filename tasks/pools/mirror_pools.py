"""`ostler.pools` and `ostler.pool_changed`: mirror the pools into their rows, and request their reconciles."""

from __future__ import annotations

import structlog
from sqlalchemy.exc import DBAPIError

from k8s_adapters.calls.writes import recorded
from k8s_adapters.pools.pools import get_pool, list_pools
from models.claims import watch_reports
from models.pools import draining, pause_requests, pool_mirror
from ostler.clock import utcnow
from ostler.errors import UpstreamError
from ostler.reasons import words_of
from ostler.task_names import POOL_CHANGED, POOLS, REMATCH
from rules.pools.pool_spec import PoolSpec
from tasks.pools import finalizers, pod_lists
from tasks.pools.facts import problem_of, stored
from tasks.pools.pause_requests import carry_out
from tasks.worker.base import HINT, SWEEP, calls, repeated, task
from tasks.worker.failing_calls import record_writes
from tasks.worker.runtime import Runtime, runtime
from tasks.worker.transactions import NOW

log = structlog.get_logger(__name__)


@task(POOLS, policy=SWEEP)
def pools() -> None:
    """Mirror the pools of each namespace, list their Pods once per namespace, and request a reconcile of each pool.

    Each reconcile uses its pool's share of the list. If no list is stored, each reconcile lists the Pods of its own
    pool. The reconcile of a pool that is being deleted lists the pool's Pods again. The finalizer of such a pool is
    removed only after a list that began after the deletion request.
    """
    rt = runtime()
    failed: UpstreamError | None = None
    for namespace in rt.settings.namespaces:
        try:
            mirror_namespace(rt, namespace)
        except UpstreamError as error:  # an error of one namespace must not stop the other (L14)
            log.warning("pools.namespace_not_mirrored", namespace=namespace, error=words_of(error))
            failed = error
    if failed is not None:
        raise failed


def mirror_namespace(rt: Runtime, namespace: str) -> None:
    """Mirror the pools of one namespace and request their reconciles."""
    try:
        mirror_all(rt, namespace)
    finally:  # Pods are also reconciled while the pool objects cannot be read
        rows = rt.transaction(pool_mirror.mirrored_pools, namespace=namespace)
        shared = pod_lists.share_list(rt, namespace=namespace, pools={row.name for row in rows if not row.leaving})
        for row in rows:
            rt.waker.reconcile(row.id, shared=row.name in shared and not row.leaving)


def mirror_all(rt: Runtime, namespace: str) -> None:
    """Mirror every listed pool, and end the rows of pools that are gone."""
    seen = list_pools(rt.kube, namespace=namespace, policy=calls(SWEEP))
    changed = False
    for pool in seen:
        try:
            changed |= mirror_listed_pool(rt, pool)
        except DBAPIError as error:  # an error of one pool must not stop the others (L14)
            log.warning("pool.not_mirrored", namespace=namespace, pool=pool.name, error=words_of(error))
    uids = {pool.uid for pool in seen}
    for row in rt.transaction(pool_mirror.live_pools, namespace=namespace):
        if row.uid in uids:
            continue
        try:
            changed |= end_missing_pool(rt, row)
        except (UpstreamError, DBAPIError) as error:
            log.warning("pool.existence_not_checked", namespace=namespace, pool=row.name, error=words_of(error))
    carry_out_requests(rt, namespace)
    if changed:
        rt.waker.send(REMATCH)


@task(POOL_CHANGED, policy=HINT)
def pool_changed(*, namespace: str, pool: str) -> None:
    """Mirror one pool that was changed, created or deleted, and request its reconcile.

    The watch sends this task as a hint. The pool is read again, because a hint proves nothing (law L6).
    """
    rt = runtime()
    with repeated():
        found = get_pool(rt.kube, namespace=namespace, name=pool, policy=calls(SWEEP))
        changed = found is not None and mirror_listed_pool(rt, found)
        for row in rt.transaction(pool_mirror.live_pools, namespace=namespace):
            if row.name == pool and (found is None or row.uid != found.uid):
                changed |= end_missing_pool(rt, row)
        carry_out_requests(rt, namespace, name=pool)
    if changed:
        rt.waker.send(REMATCH)
    for pool_id in rt.transaction(watch_reports.pools_named, namespaces=[namespace], names=[pool]):
        rt.waker.reconcile(pool_id)


def carry_out_requests(rt: Runtime, namespace: str, *, name: str | None = None) -> None:
    """Carry out the requests to pause or resume pools of a namespace, or of one of them, and mirror these pools."""
    for row in rt.transaction(pause_requests.pools_with_requests, namespace=namespace):
        if name not in (None, row.name):
            continue
        began = utcnow()
        with recorded() as writes:
            try:
                pool = carry_out(rt, namespace=namespace, name=row.name, uid=row.uid)
                if pool is not None:
                    mirror_listed_pool(rt, pool)
            except (UpstreamError, DBAPIError) as error:  # an error of one pool must not stop the others (L14)
                log.warning("pool.request_not_carried_out", namespace=namespace, pool=row.name, error=words_of(error))
        if writes.outcomes:
            record_writes(rt, namespace=namespace, pool=row.name, uid=row.uid, outcomes=writes.outcomes, began=began)


def mirror_listed_pool(rt: Runtime, pool: PoolSpec) -> bool:
    """Add the finalizer to a pool, and mirror the pool or record why it cannot be used.

    Return True if jobs might be routed to another pool now; False otherwise. A pool whose spec cannot be used becomes
    Degraded and keeps its Pods.
    """
    pool = read_newest(rt, pool)
    began = utcnow()
    with recorded() as writes:
        finalizers.add_finalizer_if_missing(rt, pool)
    problem = problem_of(rt, pool)
    if problem is None:
        changed = mirror_pool(rt, pool)
    else:
        log.warning("pool.unusable", namespace=pool.namespace, pool=pool.name, problem=problem)
        mark_unusable(rt, pool, problem=problem)
        changed = record_draining(rt, pool)
    if writes.outcomes:
        record_writes(rt, namespace=pool.namespace, pool=pool.name, uid=pool.uid, outcomes=writes.outcomes, began=began)
    return changed


def read_newest(rt: Runtime, pool: PoolSpec) -> PoolSpec:
    """Return the given pool. If the pool's row has a later generation, read the pool again and return the result.

    A later generation in the row has one of two causes: another process has read a newer object, or etcd was restored
    from a backup. After a restore, the object that is read again still has a smaller generation than the row. The
    generation in the row is then set back to the generation of the object.
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
            log.error(
                "pool.generation_decreased",
                namespace=pool.namespace,
                pool=pool.name,
                recorded_generation=known,
                object_generation=found.generation,
                why=why,
            )
    return found


def end_missing_pool(rt: Runtime, row: pool_mirror.PoolRef) -> bool:
    """End the row of a pool that was not listed, if one GET by name and UID proves that the pool is gone.

    The list alone might be wrong (law L8). Return True if the row was ended; False if the pool exists.
    """
    found = get_pool(rt.kube, namespace=row.namespace, name=row.name, policy=calls(SWEEP))
    if found is not None and found.uid == row.uid:
        return False
    log.warning("pool.deleted", namespace=row.namespace, pool=row.name)
    rt.transaction(pool_mirror.end_pool, row.id, now=NOW)
    return True


def mirror_pool(rt: Runtime, pool: PoolSpec) -> bool:
    """Mirror one pool into its row. Return True if jobs might be routed to another pool now; False otherwise."""
    return rt.transaction(pool_mirror.mirror_pool, stored(rt, pool), now=NOW)


def mark_unusable(rt: Runtime, pool: PoolSpec, *, problem: str) -> None:
    """Record in a pool's row why its spec cannot be used.

    `problem`: one sentence, which the pool's condition shows.
    """
    rt.transaction(pool_mirror.mark_problem, stored(rt, pool), problem=problem, now=NOW)


def record_draining(rt: Runtime, pool: PoolSpec) -> bool:
    """Record the deletion request of a pool with an unusable spec. Do nothing if the pool is not being deleted.

    A pool with an unusable spec is not mirrored, so its row would otherwise not show the deletion request. Return True
    if jobs might be routed to another pool now; False otherwise.
    """
    if not pool.terminating:
        return False
    return rt.transaction(draining.record_draining, uid=pool.uid, since=pool.deleted_at, now=NOW)

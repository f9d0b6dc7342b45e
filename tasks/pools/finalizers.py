"""Finalizer of a pool: added while the pool lives, removed when none of its Pods is left.

While a pool is being deleted, the reconciler retires the pool's warm Pods and waits for its busy Pods. The reconciler
does the same for a pool whose object is already gone. `rules.pools.draining.judge_drain` decides when the object may be
deleted, and this module then removes the finalizer. Without the finalizer, Kubernetes' garbage collector would delete
the pool's remaining Pods together with the object.
"""

from __future__ import annotations

import structlog

from k8s_adapters.pools.draining import add_finalizer, remove_finalizer
from k8s_adapters.runners.events import pool_of
from models.pools import draining
from ostler.errors import UpstreamError
from ostler.halt import halt
from ostler.reasons import meaning_of
from rules.pools.draining import DrainSeen, judge_drain
from rules.pools.pool_spec import PoolSpec
from tasks.pools.pod_lists import Listed
from tasks.worker.base import SWEEP, SWEEP_ROW, calls
from tasks.worker.runtime import Runtime

log = structlog.get_logger(__name__)


def add_finalizer_if_missing(rt: Runtime, pool: PoolSpec) -> None:
    """Add the finalizer to a pool that has none and is not being deleted.

    No Pod is created for a pool that has no finalizer.
    """
    if pool.has_finalizer or pool.terminating:
        return
    halt("add_finalizer.before_call")
    try:
        added = add_finalizer(rt.kube, namespace=pool.namespace, name=pool.name, uid=pool.uid, policy=calls(SWEEP_ROW))
    except UpstreamError as error:  # an error of one pool must not stop the others (L14)
        log.warning("pool.finalizer_not_added", namespace=pool.namespace, pool=pool.name, error=meaning_of(error))
        return
    halt("add_finalizer.after_call")
    log.info(
        "pool.finalizer_added" if added else "pool.deleted_before_finalizer_added",
        namespace=pool.namespace,
        pool=pool.name,
    )


def remove_finalizer_if_empty(rt: Runtime, pool_id: int, listed: Listed) -> None:
    """Remove the finalizer of a pool that is being deleted, if none of its Pods is left.

    `listed`: a complete list of the pool's Pods that began after the deletion was requested. The pool's rows are read
    after the list (law L8). The list and the rows must agree that no Pod of the pool is alive.
    """
    seen = listed.own_pods
    over = [pod.uid for pod in seen if pod.is_terminal]
    pool = rt.transaction(draining.draining_pool, pool_id, over=over, listed_at=listed.began)
    if pool is None:
        return
    verdict = judge_drain(
        DrainSeen(
            alive=len(seen) - len(over),
            unrecorded=len(set(over) - pool.recorded),
            open_rows=pool.open_rows,
        )
    )
    if not verdict.go:
        return
    halt("remove_finalizer.before_call")
    if remove_finalizer(rt.kube, namespace=pool.namespace, name=pool.name, uid=pool.uid, policy=calls(SWEEP)):
        halt("remove_finalizer.after_call")
        log.info("pool.drained", pool=pool.name)
        about = pool_of(namespace=pool.namespace, name=pool.name, uid=pool.uid)
        rt.events.record(about, "Normal", "Drained", "No Pod is left, so the pool can be deleted")

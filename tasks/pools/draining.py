"""A pool's way out: held by our finalizer while it lives, let go once nothing of it does.

Its warm Pods are retired and its busy ones kept by `keep`, as those of any pool that wants none; so it goes for a pool
whose object is gone already. What is decided here is only when the object may go: the collector would take with it
whatever is left of the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import structlog
from sqlalchemy import Row

from k8s_adapters.draining import add_finalizer, remove_finalizer
from k8s_adapters.events import pool_of
from k8s_adapters.pods import PodSeen
from k8s_adapters.pools import PoolSeen
from models.pools import draining
from ostler.errors import UpstreamError
from ostler.halt import halt
from ostler.reasons import meaning_of
from rules.pools.draining import Drain, DrainReport, DrainSeen, judge_drain, report
from rules.pools.pod_states import PodState
from rules.pools.pool_plan import PoolPlan
from tasks.worker.base import SWEEP, SWEEP_ROW, calls
from tasks.worker.runtime import Runtime
from tasks.worker.transactions import NOW

log = structlog.get_logger(__name__)


def hold(rt: Runtime, pool: PoolSeen) -> None:
    """Put our finalizer on a pool that lives without it. Until that is done no Pod of it is made."""
    if pool.has_finalizer or pool.terminating:
        return
    halt("add_finalizer.before_call")
    try:
        held = add_finalizer(rt.kube, namespace=pool.namespace, name=pool.name, uid=pool.uid, policy=calls(SWEEP_ROW))
    except UpstreamError as error:  # one pool stops no other (L14)
        log.warning("pool.finalizer_not_added", pool=pool.name, error=meaning_of(error))
        return
    halt("add_finalizer.after_call")
    log.info("pool.finalizer_added" if held else "pool.gone_before_finalizer", pool=pool.name)


def note(rt: Runtime, pool: PoolSeen) -> bool:
    """Have a pool drain whose spec cannot be used; return whether jobs may find another pool now."""
    if not pool.terminating:
        return False
    return rt.transaction(draining.record_draining, uid=pool.uid, since=pool.deleted_at, now=NOW)


def settle(rt: Runtime, pool_id: int, seen: Sequence[PodSeen]) -> None:
    """Let a pool go of which nothing is left: by a complete list of its Pods, and by its rows, which are read now."""
    over = [pod.uid for pod in seen if pod.is_terminal]
    pool = rt.transaction(draining.draining_pool, pool_id, over=over)
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


def told(rt: Runtime, pool: Row[Any], plan: PoolPlan, *, now: datetime) -> DrainReport:
    """Return what is said of a pool that drains: since when, how many of its Pods are busy, and the oldest job."""
    oldest = rt.transaction(draining.oldest_job, pool.id)
    drain = Drain(
        since=pool.draining_since or now,
        timeout=pool.drain_timeout,
        busy=plan.counts.get(PodState.BUSY, 0),
        left=plan.alive + plan.lost,
        oldest_job=None if oldest is None else oldest.id,
        oldest_since=None if oldest is None else oldest.since,
    )
    return report(drain, now=now)

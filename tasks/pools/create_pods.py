"""Creations of a reconcile: create a Pod for each committed row that has none.

A row is written before its Pod. A creation that fails leaves the row, and the next reconcile repeats it with the same
name.
"""

from __future__ import annotations

from typing import Any

import structlog
from sqlalchemy import Connection, Row
from sqlalchemy.exc import DBAPIError

from k8s_adapters.events import pool_of
from k8s_adapters.pools import PoolSeen, get_pool
from k8s_adapters.refusals import refusal_of
from k8s_adapters.runners import create_runner
from models.pools import pod_rows, pool_plans
from models.tables import pod_births
from ostler import telemetry
from ostler.clock import utcnow
from ostler.errors import Conflict, UpstreamError
from ostler.reasons import meaning_of, words_of
from rules.pools.starts import Trouble
from tasks.pools.facts import pod_hash_of
from tasks.pools.plan import Planned
from tasks.worker.base import SWEEP, calls, remaining
from tasks.worker.runtime import Runtime
from tasks.worker.transactions import NOW

log = structlog.get_logger(__name__)


MAX_FAILURES = 2
"""Number of creations that may fail in one run without a refusal. Such failures need not concern the pool, so one more
name is tried."""


RESERVE = 3.0
"""Seconds of the task's deadline that must be left before another Pod is begun."""


def create_pods(rt: Runtime, planned: Planned) -> None:
    """Create the Pods of a plan, unless the pool's object no longer fits its row.

    Nothing is created while the object is missing, unusable, being deleted or without its finalizer.
    """
    row = planned.pool_row
    pool = get_pool(rt.kube, namespace=row.namespace, name=row.name, policy=calls(SWEEP))
    if pool is None or pool.uid != row.uid or pool.problem is not None or pool.terminating or not pool.has_finalizer:
        return
    if pod_hash_of(rt, pool) != row.template_hash:
        # Another version of Ostler mirrored the pool, or its spec is not mirrored yet. New Pods would be stale at once.
        log.info("pool.template_differs", pool=row.name)
        return
    create_each(rt, planned, pool)


def create_each(rt: Runtime, planned: Planned, pool: PoolSeen) -> None:
    """Create the Pods of a plan, until the API server refuses one or the time is up."""
    row = planned.pool_row
    failures = 0
    taken = planned.plan.starts.trouble not in {Trouble.QUOTA, Trouble.REFUSED}
    for row_id, pod_name, attempt in planned.committed.create:
        if remaining() < RESERVE:
            return
        try:
            if create_once(rt, pool, row_id=row_id, pod_name=pod_name, attempt=attempt) and not taken:
                rt.transaction(pool_plans.record_taken, row.id)
                taken = True
        except UpstreamError as error:
            log.warning("pod.not_created", pod=pod_name, error=meaning_of(error))
            failures += 1
            if record_refusal(rt, row, error) or failures == MAX_FAILURES:
                return
        except DBAPIError as error:  # for example a locked row: the next reconcile repeats the attempt (L14)
            log.warning("pod.not_recorded", pod=pod_name, error=words_of(error))


def create_once(rt: Runtime, pool: PoolSeen, *, row_id: int, pod_name: str, attempt: str) -> bool:
    """Create one Pod, unless another reconciler creates it now or has created it. Return whether this one did."""
    with rt.waker.single_flight(f"create:{row_id}") as first:
        if not first or not is_still_wanted(rt, row_id):
            return False
        create(rt, pool, row_id=row_id, pod_name=pod_name, attempt=attempt)
        return True


def record_refusal(rt: Runtime, pool: Row[Any], error: UpstreamError) -> bool:
    """Record that the API server refused to admit a Pod, and publish an Event of it.

    Return False if the error is of another kind. Nothing is recorded then.
    """
    refusal = refusal_of(error)
    if refusal is None:
        return False
    if not refusal.quota:
        telemetry.FAILED_STARTS.labels(Trouble.REFUSED).inc()

    def body(db: Connection) -> None:
        pool_plans.record_refusal(db, pool.id, detail=refusal.text, quota=refusal.quota, now=utcnow())

    rt.transaction(body)
    about = pool_of(namespace=pool.namespace, name=pool.name, uid=pool.uid)
    rt.events.record(about, "Warning", "FailedCreate", f"The API server refused a Pod: {refusal.text}")
    return True


def is_still_wanted(rt: Runtime, row_id: int) -> bool:
    """Return whether a row still needs its Pod. A creation may come long after the plan."""
    return rt.transaction(pod_rows.is_wanted, row_id=row_id)


def create(rt: Runtime, pool: PoolSeen, *, row_id: int, pod_name: str, attempt: str) -> None:
    """Create one Pod for its row, and record its UID.

    If another object has the name, the row is given up. After any other failure the row stays, and the next reconcile
    repeats the same attempt.
    """
    try:
        created = create_runner(
            rt.kube,
            pool=pool,
            name=pod_name,
            attempt=attempt,
            dispatch_url=rt.settings.dispatch_url,
            audience=rt.settings.token_audience,
            dispatch_ca=rt.settings.dispatch_ca,
            policy=calls(SWEEP),
        )
    except Conflict:
        log.warning("pod.name_taken", pod=pod_name)
        rt.transaction(pod_births.give_up_row, row_id=row_id, now=NOW)
        return

    def body(db: Connection) -> None:
        pod_births.record_created(db, row_id=row_id, uid=created.uid, template_hash=pod_hash_of(rt, pool))

    rt.transaction(body)
    telemetry.PODS_CREATED.inc()

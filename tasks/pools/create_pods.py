"""Creations of a reconcile: Pods for committed rows."""

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
"""Creations of one run that may fail in a way that says nothing of the pool: the next is another name."""


RESERVE = 3.0
"""Seconds of the deadline after which no further Pod is begun."""


def create_pods(rt: Runtime, planned: Planned) -> None:
    """Create the Pods whose rows wait for them, unless the pool's object does not fit its row any more."""
    row = planned.pool_row
    pool = get_pool(rt.kube, namespace=row.namespace, name=row.name, policy=calls(SWEEP))
    if pool is None or pool.uid != row.uid or pool.problem is not None or pool.terminating or not pool.has_finalizer:
        return
    if pod_hash_of(rt, pool) != row.template_hash:
        # Another version of Ostler, or a spec that is not mirrored yet: such Pods would be stale from the start.
        log.info("pool.template_of_another", pool=row.name)
        return
    create_each(rt, planned, pool)


def create_each(rt: Runtime, planned: Planned, pool: PoolSeen) -> None:
    """Create the Pods whose rows wait for them, until the API server refuses one or time is up."""
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
        except DBAPIError as error:  # for example because its row is locked: the next round repeats the attempt (L14)
            log.warning("pod.not_recorded", pod=pod_name, error=words_of(error))


def create_once(rt: Runtime, pool: PoolSeen, *, row_id: int, pod_name: str, attempt: str) -> bool:
    """Create one Pod for its row, unless another reconciler does, or did; return whether this one did."""
    with rt.waker.single_flight(f"create:{row_id}") as alone:
        if not alone or not is_still_wanted(rt, row_id):
            return False
        create(rt, pool, row_id=row_id, pod_name=pod_name, attempt=attempt)
        return True


def record_refusal(rt: Runtime, pool: Row[Any], error: UpstreamError) -> bool:
    """Write down that the API server would not take a Pod, where it was that; return whether it was."""
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
    """Look again right before a creation, which may come long after the plan."""
    return rt.transaction(pod_rows.is_wanted, row_id=row_id)


def create(rt: Runtime, pool: PoolSeen, *, row_id: int, pod_name: str, attempt: str) -> None:
    """Create one Pod for its row. A failure leaves the row: the next round repeats the same attempt."""
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

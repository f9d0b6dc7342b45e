"""Actions of a reconcile on a pool's Pods: creations for committed rows, retirements under committed claims.

Decided under the pool's lock, with the claims read after the list (L8); done after the commit, each step such that
another reconciler may do it as well, or do it again after us.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog
from sqlalchemy import Connection, Row
from sqlalchemy.exc import DBAPIError

from k8s_adapters.events import pool_of
from k8s_adapters.pods import PodSeen
from k8s_adapters.pools import PoolSeen, get_pool
from k8s_adapters.refusals import refusal_of
from k8s_adapters.runners import create_runner
from models.pools import pod_rows, pool_plans
from models.pools.pod_rows import PodRow
from models.tables import pod_births, pod_facts
from ostler import telemetry
from ostler.clock import utcnow
from ostler.errors import Conflict, UpstreamError
from ostler.reasons import meaning_of, words_of
from rules.pools.pool_plan import ObservedPool, PoolPlan, Why
from rules.pools.starts import Trouble
from tasks.claims.budget_wakes import wake_after_pods
from tasks.claims.retire import send_retire
from tasks.pools.mirror import pod_hash_of
from tasks.pools.observing import make_plan, on_gone_node
from tasks.worker.base import SWEEP, calls, remaining
from tasks.worker.nodes import NodeSnapshot, observe_nodes
from tasks.worker.runtime import Runtime
from tasks.worker.transactions import NOW

log = structlog.get_logger(__name__)

CREATIONS = 50
"""Pods that one run creates at most; the rest waits for the next."""

FAILURES = 2
"""Creations of one run that may fail in a way that says nothing of the pool: the next is another name."""

RESERVE = 3.0
"""Seconds of the deadline after which no further Pod is begun."""


@dataclass(frozen=True, slots=True)
class Decided:
    """What a reconcile found and committed. `pool` is its row, `rows` those of its Pods."""

    pool: Row[Any]
    rows: list[PodRow]
    observed: ObservedPool
    plan: PoolPlan
    committed: pool_plans.Committed
    freed: list[str]
    """UIDs of the Pods whose node was found gone: they count in no budget any more."""


def decide(rt: Runtime, pool_id: int, *, name: str, by_uid: Mapping[str, PodSeen]) -> Decided:
    """Plan a pool's reconcile and commit the plan; `by_uid` are its Pods, which were listed before this."""
    names = [(f"{name}-{secrets.token_hex(4)}", secrets.token_hex(8)) for _ in range(CREATIONS)]
    nodes = observe_nodes(rt, {pod.node for pod in by_uid.values() if pod.node is not None})

    def body(db: Connection) -> Decided:
        now = utcnow()
        pool = pool_plans.lock_pool(db, pool_id)
        rows = pod_rows.pod_rows(db, pool_id=pool_id, now=now)
        pod_facts.charge(db, [row.id for row in rows if row.ever_delivered and not row.charged])
        freed = record_nodes(db, rows, by_uid, nodes, now=now)
        observed, plan = make_plan(db, pool, rows, by_uid, nodes=nodes, most=CREATIONS, now=now)
        committed = pool_plans.commit_plan(
            db, pool, plan, names=names, due_after=rt.timings.due_after, now=now, who=rt.who
        )
        return Decided(pool, rows, observed, plan, committed, freed)

    return rt.transaction(body)


def record_nodes(
    db: Connection, rows: Sequence[PodRow], by_uid: Mapping[str, PodSeen], nodes: NodeSnapshot, *, now: datetime
) -> list[str]:
    """Write down which of the listed Pods are on nodes that are gone, where that is news: sweeps go by it.

    Returns the UIDs of those whose node was not known to be gone.
    """
    known = {row.uid: row.node_gone for row in rows}
    gone = [
        uid
        for uid, pod in by_uid.items()
        if pod.node in nodes.gone and not pod.is_terminal and not known.get(uid, False)
    ]
    back = [
        row.uid
        for row in rows
        if row.uid is not None and row.node_gone and not on_gone_node(row, by_uid.get(row.uid), nodes)
    ]
    pod_facts.record_nodes(db, gone=gone, back=back, now=now)
    return gone


def record_events(rt: Runtime, decided: Decided) -> None:
    """Tell in Events of the pool what was committed: how many Pods are retired and why, and starts that back off."""
    row, starts = decided.pool, decided.plan.starts
    pool = pool_of(namespace=row.namespace, name=row.name, uid=row.uid)
    for why, many in sorted(Counter(decided.committed.retired.values()).items()):
        rt.events.record(
            pool, "Normal", "Draining" if why is Why.DRAINED else "Retired", f"{_pods(many)} retired, reason: {why}"
        )
    if decided.committed.failed_starts:
        next_at = "at once" if starts.create_after is None else f"not before {starts.create_after:%H:%M:%S} UTC"
        failed = "1 failed start" if starts.failures == 1 else f"{starts.failures} failed starts"
        note = f"{failed} in a row ({starts.detail}); the next Pod is created {next_at}"
        rt.events.record(pool, "Warning", "BackOff", note)


def _pods(many: int) -> str:
    return "1 Pod is" if many == 1 else f"{many} Pods are"


def act(rt: Runtime, decided: Decided) -> None:
    """Send the retirements, and create the Pods whose rows wait for them."""
    committed, row = decided.committed, decided.pool
    record_events(rt, decided)
    wake_after_pods(rt, decided.freed)
    for claim_id, why in committed.retired.items():
        telemetry.PODS_RETIRED.labels(why.name.lower()).inc()
        send_retire(rt, claim_id)
    for trouble in committed.failed_starts:
        telemetry.FAILED_STARTS.labels(trouble).inc()
    if not committed.create:
        return
    pool = get_pool(rt.kube, namespace=row.namespace, name=row.name, policy=calls(SWEEP))
    if pool is None or pool.uid != row.uid or pool.problem is not None or pool.terminating or not pool.has_finalizer:
        return
    if pod_hash_of(rt, pool) != row.template_hash:
        # Another version of Ostler, or a spec that is not mirrored yet: such Pods would be stale from the start.
        log.info("pool.template_differs", pool=row.name)
        return
    create_all(rt, decided, pool)


def create_all(rt: Runtime, decided: Decided, pool: PoolSeen) -> None:
    """Create the Pods whose rows wait for them, until the API server refuses one or time is up."""
    row = decided.pool
    failures = 0
    taken = decided.plan.starts.trouble not in {Trouble.QUOTA, Trouble.REFUSED}
    for row_id, pod_name, attempt in decided.committed.create:
        if remaining() < RESERVE:
            return
        try:
            if create_alone(rt, pool, row_id=row_id, pod_name=pod_name, attempt=attempt) and not taken:
                rt.transaction(pool_plans.record_taken, row.id)
                taken = True
        except UpstreamError as error:
            log.warning("pod.not_created", pod=pod_name, error=meaning_of(error))
            failures += 1
            if record_refusal(rt, row, error) or failures == FAILURES:
                return
        except DBAPIError as error:  # for example because its row is locked: the next round repeats the attempt (L14)
            log.warning("pod.not_recorded", pod=pod_name, error=words_of(error))


def create_alone(rt: Runtime, pool: PoolSeen, *, row_id: int, pod_name: str, attempt: str) -> bool:
    """Create one Pod for its row, unless another reconciler does, or did; return whether this one did."""
    with rt.waker.single_flight(f"create:{row_id}") as alone:
        if not alone or not still_wanted(rt, row_id):
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


def still_wanted(rt: Runtime, row_id: int) -> bool:
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

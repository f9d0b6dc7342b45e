"""What a reconcile does to a pool's Pods: creations for rows that stand, retirements under claims that stand."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import structlog

from k8s_adapters.pools import PoolSeen, get_pool
from k8s_adapters.runners import create_runner
from models import pod_rows, pool_plans
from models.engine import transaction
from ostler.clock import utcnow
from ostler.errors import Conflict, UpstreamError
from tasks.base import SWEEP, calls, remaining
from tasks.retire import send_retire
from tasks.runtime import Runtime

log = structlog.get_logger(__name__)

CREATIONS = 50
"""Pods that one run creates at most; the rest waits for the next."""

RESERVE = 3.0
"""Seconds of the deadline after which no further Pod is begun."""


def fill(rt: Runtime, pool_id: int, namespace: str, name: str, *, warm: Sequence[int]) -> None:
    """Create the Pods that are missing, or retire some of the `warm` rows when there are too many."""
    names = [(f"{name}-{secrets.token_hex(4)}", secrets.token_hex(8)) for _ in range(CREATIONS)]
    plan = transaction(
        rt.engine,
        lambda db: pool_plans.plan_pods(
            db, pool_id=pool_id, names=names, warm=warm, due_after=rt.settings.due_after, now=utcnow(), who=rt.who
        ),
    )
    for claim_id in plan.retire:
        send_retire(rt, claim_id)
    if not plan.create:
        return
    pool = get_pool(rt.kube, namespace=namespace, name=name, policy=calls(SWEEP))
    if pool is None or pool.problem is not None or pool.terminating or not pool.held:
        return
    for row_id, pod_name, attempt in plan.create:
        if remaining() < RESERVE:
            return
        try:
            with rt.waker.alone(f"create:{row_id}") as alone:
                if alone and still_wanted(rt, row_id):
                    create(rt, pool, row_id=row_id, pod_name=pod_name, attempt=attempt)
        except UpstreamError as error:
            log.warning("pod.not_created", pod=pod_name, error=type(error).__name__)
            return


def still_wanted(rt: Runtime, row_id: int) -> bool:
    """Look again right before a creation, which may come long after the plan."""
    return transaction(rt.engine, lambda db: pod_rows.is_wanted(db, row_id=row_id))


def create(rt: Runtime, pool: PoolSeen, *, row_id: int, pod_name: str, attempt: str) -> None:
    """Create one Pod for its row. A failure leaves the row: the next round repeats the same attempt."""
    try:
        created = create_runner(
            rt.kube, pool=pool, name=pod_name, attempt=attempt, dispatch_url=rt.settings.dispatch_url,
            audience=rt.settings.token_audience, policy=calls(SWEEP),
        )  # fmt: skip
    except Conflict:
        log.warning("pod.name_taken", pod=pod_name)
        transaction(rt.engine, lambda db: pod_rows.forget_row(db, row_id=row_id, now=utcnow()))
        return
    transaction(rt.engine, lambda db: pod_rows.record_created(db, row_id=row_id, uid=created.uid))

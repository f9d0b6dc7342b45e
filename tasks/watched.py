"""What follows from the watch's hints: `ostler.pods_changed` and `ostler.pod_gone`.

A hint says where to look and no more (L6). That a Pod is gone is proven by a GET by name and UID; that one ended, by
the keeper's own list. That a runner began a job cannot become untrue, so the guarded update of its claim is enough.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from k8s_adapters.pods import get_pod
from models import cuts, sweeps, watched
from models.engine import transaction
from ostler.clock import utcnow
from ostler.wakes import KEEP, POD_GONE, STAMP
from rules.machines import Purpose
from rules.stranding import FoundBy
from tasks.base import DISPATCH, SWEEP, calls, task
from tasks.retire import send_retire
from tasks.runtime import Runtime, runtime
from tasks.spent import end_claim

log = structlog.get_logger(__name__)

WHY = "its runner has begun a job"


@task("pods_changed", queue="dispatch", policy=DISPATCH)
def pods_changed(
    *,
    namespace: str,
    pools: Sequence[str] = (),
    gone: Sequence[str] = (),
    executing: Sequence[str] = (),
    unstamped: Sequence[str] = (),
) -> None:
    """Look up what the watch saw: names of pools of which a Pod ended, UIDs that are gone or execute something.

    `unstamped`: UIDs of Pods whose poller has ended and that carry no stamp.
    """
    rt = runtime()
    keep: set[int] = set()
    if pools:
        keep.update(transaction(rt.engine, lambda db: watched.pools_named(db, namespace=namespace, names=pools)))
    if gone:
        keep |= see_gone(rt, gone)
    for pool_id in sorted(keep):
        rt.waker.send(KEEP, queue="pools", pool_id=pool_id)
    if executing:
        see_executing(rt, executing)
    if unstamped:
        for claim_id in transaction(rt.engine, lambda db: cuts.pollers_ended(db, unstamped, now=utcnow())):
            rt.waker.send(STAMP, queue="dispatch", claim_id=claim_id)


def see_gone(rt: Runtime, uids: Sequence[str]) -> set[int]:
    """Have the claims of these Pods looked at, each in a task of its own; return the pools whose keeper is to look."""
    keep = set()
    for pod in transaction(rt.engine, lambda db: watched.known_pods(db, uids)):
        if pod.claim_id is None:
            keep.add(pod.pool_id)
        elif pod.purpose == Purpose.RETIRE:
            send_retire(rt, pod.claim_id)
        else:
            rt.waker.send(POD_GONE, queue="dispatch", claim_id=pod.claim_id)
    return keep


def see_executing(rt: Runtime, uids: Sequence[str]) -> None:
    """Mark the claims of which no webhook said so. A locked one is left to its webhook or `unused_runners` (L14)."""
    for claim_id in transaction(rt.engine, lambda db: watched.not_executing(db, uids)):

        def body(db: Connection, claim_id: int = claim_id) -> bool:
            return watched.execute_unbound(db, claim_id, now=utcnow(), who=rt.who, why=WHY)

        try:
            moved = transaction(rt.engine, body)
        except DBAPIError as error:
            log.warning("claim.not_marked", claim=claim_id, error=type(error).__name__)
            continue
        if moved:
            log.info("claim.executes_unbound", claim=claim_id)


@task("pod_gone", queue="dispatch", policy=SWEEP)
def pod_gone(*, claim_id: int) -> None:
    """End a claim if one GET by name and UID proves that its Pod is gone, as the sweep `missing_pods` does."""
    rt = runtime()
    claim = transaction(rt.engine, lambda db: sweeps.live_pod(db, claim_id))
    if claim is None:
        return
    pod = get_pod(rt.kube, namespace=claim.namespace, name=claim.pod_name, policy=calls(SWEEP))
    if pod is not None and pod.uid == claim.pod_uid:
        return
    log.info("pod.gone", claim=claim_id, pod=claim.pod_name)
    end_claim(rt, claim_id, found_by=FoundBy.WATCH, spent=False, silent=set())
    rt.waker.send(KEEP, queue="pools", pool_id=claim.pool_id)

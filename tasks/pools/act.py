"""Actions of a reconcile on a pool's Pods: creations for committed rows, retirements under committed claims.

Decided under the pool's lock, with the claims read after the list (L8); done after the commit, each step such that
another reconciler may do it as well, or do it again after us.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

import structlog
from sqlalchemy.exc import DBAPIError

from k8s_adapters.events import pool_of
from k8s_adapters.pods import PodSeen
from k8s_adapters.pools import get_pool
from models.pools.pod_rows import PodRow
from ostler import telemetry
from ostler.errors import UpstreamError
from ostler.reasons import words_of
from rules.pools.pool_plan import Why
from tasks.claims.budget_wakes import wake_after_pods
from tasks.claims.retire import send_retire
from tasks.pools.create_pods import RESERVE, create_pods
from tasks.pools.facts import pod_hash_of
from tasks.pools.finished_pods import handle_missing, handle_spent
from tasks.pools.plan import Decided
from tasks.worker.base import SWEEP, calls, remaining
from tasks.worker.runtime import Runtime

log = structlog.get_logger(__name__)


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
        log.info("pool.template_of_another", pool=row.name)
        return
    create_pods(rt, decided, pool)


def finish_pods(
    rt: Runtime, rows: Sequence[PodRow], by_uid: Mapping[str, PodSeen], *, namespace: str, now: datetime
) -> bool:
    """Deal with these Pods of a pool, one after the other; False when some were left to the next run."""
    complete = True
    unavailable: set[int | None] = set()
    for row in rows:
        if remaining() < RESERVE:
            log.info("reconcile.to_be_continued")
            return False
        pod = by_uid.get(row.uid or "")
        try:
            finish_pod(rt, row, pod, namespace=namespace, unavailable=unavailable, now=now)
        except (UpstreamError, DBAPIError) as error:  # one Pod that cannot be dealt with stops no other (L14)
            log.warning("reconcile.pod_skipped", pod=row.name, error=words_of(error))
            complete = False
    return complete


def finish_pod(
    rt: Runtime,
    row: PodRow,
    pod: PodSeen | None,
    *,
    namespace: str,
    unavailable: set[int | None],
    now: datetime,
) -> None:
    """Deal with one Pod that is over; an unresponsive one is left to `unresponsive_pods`."""
    if row.uid is None:
        return
    if pod is None:
        handle_missing(rt, row, namespace=namespace, unavailable=unavailable, now=now)
    elif row.terminal_at is not None:
        handle_spent(rt, row, pod, unavailable=unavailable, now=now)

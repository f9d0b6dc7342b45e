"""Step 1 of a reconcile, observe: record the listed Pods of a pool, and read the rows of Pods that are over or missing.

The list is made before these rows are read (law L8).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

import structlog

from k8s_adapters.names import POOL_LABEL
from k8s_adapters.runners.pods import list_ended_pods, list_pods
from models.pools import pod_rows
from models.pools.pod_lists import AHEAD
from models.pools.pod_rows import PodRow
from models.pools.pool_mirror import PoolRef
from models.state.pod_facts import record_gated
from ostler.clock import utcnow
from rules.claims.machines import RUNNERS
from rules.claims.pod_view import PodView
from tasks.claims.budget_wakes import wake_after_pods
from tasks.pools.pod_lists import Listed
from tasks.worker.base import SWEEP, begin_page, calls
from tasks.worker.runtime import Runtime

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Observed:
    """A pool as a reconcile observed it. The steps after `observe` read this record and never change it."""

    pool: PoolRef
    listed: Listed
    """The list of Pods that this reconcile uses."""
    by_uid: Mapping[str, PodView]
    """The listed Pods by UID."""
    over: Sequence[PodRow]
    """Rows of Pods that are over or missing and have no live claim of a runner. GitHub need not be asked about them.

    A list of ended Pods shows no missing Pods.
    """
    over_with_job: Sequence[PodRow]
    """Rows of Pods that are over or missing although a claim of their runner is live. GitHub is asked about them."""
    at: datetime
    """Time of the observation, after the list and before the rows were read."""


def list_pool(rt: Runtime, pool: PoolRef) -> Listed:
    """List the Pods of one pool now, then give the task a new deadline.

    The list might have used up the first deadline, because each page of the list may take as long as a task.
    """
    began = utcnow()
    pods = list_pods(rt.kube, namespace=pool.namespace, pool=pool.name, policy=calls(SWEEP))
    begin_page()
    return Listed(pods, began)


def list_ended(rt: Runtime, pool: PoolRef) -> Listed | None:
    """List only the Pods of a pool that have ended. Return None if the pool needs a list of all its Pods.

    Such a pool drains, or its runners have volumes. A pool also needs all Pods if the row of a Pod without a claim says
    that the Pod has ended, and the list does not show the Pod. The rows are read after the list (law L8).
    """
    if pool.leaving or pool.has_volumes:
        return None
    began = utcnow()
    pods = list_ended_pods(rt.kube, namespace=pool.namespace, pool=pool.name, policy=calls(SWEEP))
    uids = [pod.uid for pod in pods]
    if rt.transaction(pod_rows.has_unlisted_end, pool_id=pool.id, listed=uids):
        return None
    return Listed(pods, began, ended=True)


def observe(rt: Runtime, pool: PoolRef, listed: Listed) -> Observed:
    """Record the listed Pods of a pool. Return the list together with the rows of Pods that are over or missing.

    If this list is the first to show that a Pod is over, the Pod no longer counts in the budget of its account. The
    matchers of pools with queued jobs of this account are then woken.
    """
    for pod in listed.pods:
        if not pod.is_ours:
            report_foreign_pod(pod.uid, pod.name, pool.name)
    now = utcnow()
    by_uid = {pod.uid: pod for pod in listed.pods}
    newly_over = rt.transaction(
        pod_rows.record_pods, pool_id=pool.id, pods=listed.pods, listed_at=listed.began, now=now
    )
    wake_after_pods(rt, newly_over)
    if gated := [pod.uid for pod in listed.pods if pod.gates]:
        rt.transaction(record_gated, gated, now=now)
    read = pod_rows.ended_rows if listed.ended else pod_rows.over_rows
    rows = rt.transaction(read, pool_id=pool.id, listed=list(by_uid), now=now)
    rows = [row for row in rows if not is_younger(row, by_uid, than=listed, now=now)]
    return Observed(
        pool=pool,
        listed=listed,
        by_uid=by_uid,
        over=[row for row in rows if not needs_github(row, by_uid)],
        over_with_job=[row for row in rows if needs_github(row, by_uid)],
        at=now,
    )


@lru_cache(maxsize=1000)
def report_foreign_pod(uid: str, name: str, pool: str) -> None:
    """Log that a Pod has the label of a pool but was not created by Ostler.

    Each process logs such a Pod once, as long as it knows at most 1,000 of them. Ostler neither counts nor deletes it.
    """
    cure = f"remove the label {POOL_LABEL} from the Pod, or ignore this message: the Pod is neither counted nor deleted"
    log.warning("pod.ignored_because_ostler_did_not_create_it", pod=name, pod_uid=uid, pool=pool, remedy=cure)


def is_younger(row: PodRow, by_uid: Mapping[str, PodView], *, than: Listed, now: datetime) -> bool:
    """Return True if a shared list lacks a Pod only because the Pod's row was written after the list began.

    Return False for a row with a time in the future. The clock of the process that wrote the row was ahead, so the time
    does not show that the row is younger than the list.
    """
    missing = than.shared and row.terminal_at is None and row.uid not in by_uid
    return missing and than.began < row.created_at <= now + AHEAD


def needs_github(row: PodRow, by_uid: Mapping[str, PodView]) -> bool:
    """Return True if the end of a Pod needs GitHub: the Pod is over or missing, but a claim of its runner is live.

    GitHub must be asked how the job of the claim ended, or to remove the persistent runner.
    """
    return row.claim_purpose in RUNNERS and (row.terminal_at is not None or row.uid not in by_uid)

"""Step 3 of a reconcile, act: send retirements, create Pods, set deadlines, finish Pods that are over.

To *finish* a Pod is to end its claim, and to delete the Pod when no claim needs it (`tasks.pools.finished_pods`).

The plan is committed before its actions begin. Two reconcilers might carry out the same action, or a reconciler might
repeat an action after a crash. Each action is therefore safe to repeat.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime

import structlog
from sqlalchemy.exc import DBAPIError

from k8s_adapters.runners.events import pool_of
from models.pools import pool_mirror
from models.pools.pod_rows import PodRow
from ostler import telemetry
from ostler.errors import UpstreamError
from ostler.reasons import words_of
from rules.claims.pod_view import PodView
from rules.pools.pool_plan import Why
from tasks.claims.budget_wakes import wake_after_pods
from tasks.claims.release import send_release
from tasks.claims.retire import send_retire
from tasks.pools.create_pods import RESERVE, create_pods
from tasks.pools.deadlines import limit_jobs
from tasks.pools.delete_volumes import delete_volumes
from tasks.pools.finished_pods import handle_missing, handle_spent
from tasks.pools.observe import Observed
from tasks.pools.plan import Planned
from tasks.worker.base import remaining
from tasks.worker.runtime import Runtime
from tasks.worker.transactions import NOW

log = structlog.get_logger(__name__)

OWNERS_SECONDS = 1.0
"""Seconds that one step of a reconcile waits for the ends of StatefulSets, for all Pods together.

The finalizer of a Pod is removed after the end of its StatefulSet. The next reconcile handles the other Pods.
"""


def act(rt: Runtime, planned: Planned) -> None:
    """Carry out a committed plan: publish Events, wake matchers, send retirements, create Pods, delete volumes.

    The Events are published first, because no later reconcile would publish them if the creation of a Pod failed.
    """
    committed, pool = planned.committed, planned.pool_row
    telemetry.pool_reconciled(pool.namespace, pool.name)
    record_events(rt, planned)
    wake_after_pods(rt, planned.freed)
    for claim_id, why in committed.retired.items():
        telemetry.PODS_RETIRED.labels(why.name.lower()).inc()
        send_retire(rt, claim_id)
    for claim_id, why in committed.unregistering.items():
        telemetry.PODS_RETIRED.labels(why.name.lower()).inc()
        send_release(rt, claim_id)
    for trouble in committed.failed_starts:
        telemetry.FAILED_STARTS.labels(pool.namespace, pool.name, trouble).inc()
    if committed.create:
        create_pods(rt, planned)
    delete_volumes(rt, planned)


def record_events(rt: Runtime, planned: Planned) -> None:
    """Publish Events of the pool: how many Pods are retired and why, and how many starts failed in a row."""
    row, starts = planned.pool_row, planned.plan.starts
    pool = pool_of(namespace=row.namespace, name=row.name, uid=row.uid)
    every = [*planned.committed.retired.values(), *planned.committed.unregistering.values()]
    for why, many in sorted(Counter(every).items()):
        rt.events.record(
            pool, "Normal", "Draining" if why is Why.DRAINED else "Retired", f"{_pods(many)} retired, reason: {why}"
        )
    if planned.committed.failed_starts:
        next_at = "at once" if starts.create_after is None else f"not before {starts.create_after:%H:%M:%S} UTC"
        failed = "1 failed start" if starts.failures == 1 else f"{starts.failures} failed starts"
        note = f"{failed} in a row ({starts.detail}); the next Pod is created {next_at}"
        rt.events.record(pool, "Warning", "BackOff", note)


def _pods(many: int) -> str:
    return "1 Pod is" if many == 1 else f"{many} Pods are"


def finish_pods(rt: Runtime, observed: Observed, rows: Sequence[PodRow]) -> bool:
    """Finish the given Pods of a pool: end their claims, and delete the Pods that no claim needs.

    `rows`: rows of Pods that are over or missing from the list. Return True if all Pods were handled; False if the next
    reconcile must handle any of them.
    """
    complete = True
    unavailable: set[int | None] = set()
    owners_until = time.monotonic() + OWNERS_SECONDS
    for row in rows:
        if remaining() < RESERVE:
            log.info("reconcile.ran_out_of_time")
            return False
        pod = observed.by_uid.get(row.uid or "")
        try:
            finish_pod(
                rt,
                row,
                pod,
                namespace=observed.pool.namespace,
                pool=observed.pool.name,
                unavailable=unavailable,
                owner_within=max(0.0, owners_until - time.monotonic()),
                now=observed.at,
            )
        except (UpstreamError, DBAPIError) as error:  # an error of one Pod must not stop the other Pods (L14)
            log.warning("reconcile.pod_skipped", pod=row.name, error=words_of(error))
            complete = False
    return complete


def finish_jobs(rt: Runtime, planned: Planned, *, complete: bool) -> None:
    """Set the deadlines of running jobs. Then ask GitHub about the jobs of Pods that are over, and end the claims.

    `complete`: True if every other Pod that is over was finished. If the Pods with a job claim are finished as well,
    this function records when the list of Pods began. Another reconcile that gets the same shared list then does
    nothing.
    """
    observed = planned.observed
    pool_id, listed = observed.pool.id, observed.listed
    limit_jobs(rt, pool_id, listed.own_pods, max_job_seconds=planned.given.pool.max_job_seconds)
    rows = list(observed.over_with_job)
    random.shuffle(rows)  # so that a run without enough time does not always skip the same Pods (L14)
    complete &= finish_pods(rt, observed, rows)
    if complete and not listed.ended:
        rt.transaction(pool_mirror.record_listed, pool_id=pool_id, at=listed.began, now=NOW)


def finish_pod(
    rt: Runtime,
    row: PodRow,
    pod: PodView | None,
    *,
    namespace: str,
    pool: str,
    unavailable: set[int | None],
    owner_within: float,
    now: datetime,
) -> None:
    """Finish one Pod that is over or missing: end its claim, or delete the Pod if no claim needs it.

    `unavailable`: installations whose calls to GitHub failed in this run. Pods that are alive but do not poll are not
    handled here, but by the sweep `unresponsive_pods`.
    """
    if row.uid is None:
        return
    if pod is None:
        handle_missing(rt, row, namespace=namespace, unavailable=unavailable, now=now)
    elif row.terminal_at is not None:
        handle_spent(rt, row, pod, pool=pool, unavailable=unavailable, owner_within=owner_within, now=now)

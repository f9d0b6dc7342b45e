"""Detachment of the busy Pods of a pool that drains, so that they can end without Ostler.

A pool usually drains before Ostler is removed. Its busy Pods might end after the workers are gone, and nobody would
remove the finalizer `ostler.dev/exit` then. While a pool drains, its Pods get no successors, so no Pod needs its
StatefulSet any more. A detached Pod is handled as a Pod of the workload `Pod`.
"""

from __future__ import annotations

import random
import time

import structlog

from k8s_adapters.runners.owners.detaching import detach_runner
from models.pools.pod_rows import PodRow
from ostler.errors import UpstreamError
from ostler.reasons import meaning_of
from rules.claims.machines import RUNNERS
from rules.claims.pod_view import PodView
from tasks.claims.evidence import judge
from tasks.pools.act import OWNERS_SECONDS
from tasks.pools.create_pods import RESERVE
from tasks.pools.plan import Planned
from tasks.worker.base import SWEEP_ROW, calls, remaining
from tasks.worker.runtime import Runtime

log = structlog.get_logger(__name__)


def detach_busy_pods(rt: Runtime, planned: Planned) -> None:
    """Detach the busy Pods of a leaving pool. The next reconcile detaches those that remain.

    Other Pods are being retired or are over, and their end removes the finalizer.
    """
    if not planned.given.pool.terminating:
        return
    observed = planned.observed
    until = time.monotonic() + OWNERS_SECONDS
    rows = list(planned.pod_rows)
    random.shuffle(rows)  # so that a Pod that cannot be detached does not always come first (L14)
    for row in rows:
        pod = observed.by_uid.get(row.uid or "")
        if pod is None or pod.attempt is None or not is_to_detach(row, pod):
            continue
        if remaining() < RESERVE:
            return
        try:
            detach_runner(
                rt.kube,
                namespace=observed.pool.namespace,
                name=pod.name,
                uid=pod.uid,
                attempt=pod.attempt,
                within=max(0.0, until - time.monotonic()),
                policy=calls(SWEEP_ROW),
            )
        except UpstreamError as error:  # an error of one Pod must not stop the other Pods (L14)
            log.warning("pod.not_detached", pod=pod.name, error=meaning_of(error))


def is_to_detach(row: PodRow, pod: PodView) -> bool:
    """Return True if a Pod has the finalizer and has a claim of a runner, or might hold a JIT without a claim."""
    if not pod.exit_held or pod.terminating or pod.is_over:
        return False
    return row.claim_purpose in RUNNERS or (row.claim_id is None and judge(row.recorded, pod).busy)

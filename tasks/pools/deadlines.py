"""Deadlines of Pods that execute a job of a pool with `maxJobDuration`.

Each reconcile with a list of all Pods sets the missing deadlines. If the API server fails, a later reconcile sets them.
No other step waits for a deadline; in particular, the delivery of a JIT does not wait.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import structlog

from k8s_adapters.runners.deadlines import set_deadline
from models.claims import pod_claims
from ostler.clock import utcnow
from ostler.errors import UpstreamError
from ostler.reasons import meaning_of
from rules.claims.pod_view import PodView
from rules.pools.job_deadlines import active_deadline
from tasks.pools.create_pods import RESERVE
from tasks.worker.base import SWEEP_ROW, calls, remaining
from tasks.worker.runtime import Runtime

log = structlog.get_logger(__name__)


def limit_jobs(rt: Runtime, pool_id: int, pods: Sequence[PodView], *, max_job_seconds: float | None) -> None:
    """Set the deadline of each listed Pod that executes a job and has no deadline.

    `max_job_seconds`: seconds that a job may run, or None if the pool sets no limit.

    The claims are read after the list (law L8). A claim is `executing` once GitHub or the Pod showed that a job began.
    The Pod of a claim that is only `delivered` might still wait for a job. This wait does not count as time of the job
    (law L3).
    """
    if max_job_seconds is None:
        return
    open_ended = [
        pod
        for pod in pods
        if pod.active_deadline is None and pod.started_at is not None and not (pod.terminating or pod.is_over)
    ]
    if not open_ended:
        return
    executing = rt.transaction(pod_claims.executing_pods, pool_id=pool_id)
    lacking = [pod for pod in open_ended if pod.uid in executing]
    random.shuffle(lacking)  # so that one failing Pod is not always the first (L14)
    for pod in lacking:
        if remaining() < RESERVE:
            return
        try:
            limit(rt, pod, max_job_seconds=max_job_seconds)
        except UpstreamError as error:  # the cause is the API server, not this Pod: the next reconcile continues
            log.warning("pod.deadline_not_set", pod=pod.name, pod_uid=pod.uid, error=meaning_of(error))
            return


def limit(rt: Runtime, pod: PodView, *, max_job_seconds: float) -> None:
    """Set the deadline of one Pod, counted from the start of its job."""
    if pod.started_at is None:
        return
    seconds = active_deadline(started_at=pod.started_at, now=utcnow(), max_job_seconds=max_job_seconds)
    done = set_deadline(
        rt.kube, namespace=pod.namespace, name=pod.name, uid=pod.uid, seconds=seconds, policy=calls(SWEEP_ROW)
    )
    if done:
        log.info("pod.deadline_set", pod=pod.name, pod_uid=pod.uid, active_deadline_seconds=seconds)

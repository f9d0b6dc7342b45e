"""Kubernetes Events of Pods that ended while a job needed them. These Events are only displayed and decide nothing.

The Events of a Pod are read once, after Ostler decided to end the claim. A task on another queue reads them, so that no
claim and no other Pod waits for the API server. If the read fails, the failure is logged, and the history of the Pod
shows no Event.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import structlog

from k8s_adapters.runners.pod_events import list_pod_events
from models.claims import pod_ends
from ostler.clock import utcnow
from ostler.errors import UpstreamError
from ostler.logging import also_about
from ostler.reasons import meaning_of
from ostler.task_names import POD_EVENTS
from rules.claims.pod_events import choose
from rules.upstream.retry import RetryPolicy
from tasks.worker.base import DISPATCH, task
from tasks.worker.runtime import Runtime, runtime
from tasks.worker.transactions import NOW

log = structlog.get_logger(__name__)

ONCE = RetryPolicy(attempts=1, deadline=2.0)

MOST_A_MINUTE = 60
"""Upper bound on Pods whose Events are read in one minute by all workers together.

The API server scans all Events of the namespace for each request. If a cluster loses more Pods at once, the Events of
some of the Pods are enough to show the cause.
"""


def ask_for_events(rt: Runtime, uids: Sequence[str], *, live: bool) -> None:
    """Request the Events of each given Pod that ended while a job needed the Pod.

    `live`: True to include Pods whose job claim is still live.
    """
    for uid in rt.transaction(pod_ends.lost, uids, live=live):
        rt.waker.send(POD_EVENTS, pod_uid=uid)


@task(POD_EVENTS, policy=DISPATCH)
def pod_events(*, pod_uid: str) -> None:
    """Record the Event that best explains the end of a lost Pod.

    Only one list of the Pod's Events is read, and its length is bounded.
    """
    rt = runtime()
    since = utcnow() - timedelta(minutes=1)
    pod = rt.transaction(pod_ends.unread, pod_uid, most=MOST_A_MINUTE, since=since)
    if pod is None:
        return
    also_about(pod=pod.name, pod_uid=pod_uid)
    try:
        found = list_pod_events(rt.kube, namespace=pod.namespace, name=pod.name, uid=pod_uid, policy=ONCE)
    except UpstreamError as error:
        log.info("pod.kubernetes_events_not_read", error=meaning_of(error))
        return
    event = choose(found)
    if not rt.transaction(pod_ends.record_event, pod_uid, event, now=NOW):
        log.info("pod.kubernetes_events_not_recorded", why="the row is locked, or another run has recorded the Events")

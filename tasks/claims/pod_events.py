"""Events about Pods that a job lost: read once, after the end of the claim was decided, and only shown.

A message to another queue asks for them, so no claim and no other Pod waits for the answer. What fails is logged and
not repeated: then the story of the Pod says what it said without.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import structlog

from k8s_adapters.pod_events import list_pod_events
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
"""Pods whose Events are read within a minute by all workers, because the API server goes through all Events of the
namespace for each. When a cluster loses more at once, a few tell enough."""


def ask_for_events(rt: Runtime, uids: Sequence[str], *, live: bool) -> None:
    """Have the Events of those of these Pods read that a job lost; `live`: a job claim that has not ended counts."""
    for uid in rt.transaction(pod_ends.lost, uids, live=live):
        rt.waker.send(POD_EVENTS, pod_uid=uid)


@task(POD_EVENTS, policy=DISPATCH)
def pod_events(*, pod_uid: str) -> None:
    """Record what one bounded list of the Events about a lost Pod says of who ended it."""
    rt = runtime()
    since = utcnow() - timedelta(minutes=1)
    pod = rt.transaction(pod_ends.unread, pod_uid, most=MOST_A_MINUTE, since=since)
    if pod is None:
        return
    also_about(pod=pod.name, pod_uid=pod_uid)
    try:
        found = list_pod_events(rt.kube, namespace=pod.namespace, name=pod.name, uid=pod_uid, policy=ONCE)
    except UpstreamError as error:
        log.info("pod.events_not_read", error=meaning_of(error))
        return
    event = choose(found)
    if not rt.transaction(pod_ends.record_event, pod_uid, event, now=NOW):
        log.info("pod.events_not_recorded")

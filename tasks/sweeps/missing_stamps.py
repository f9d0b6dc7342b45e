"""`ostler.missing_stamps`: stamps the Pods of delivered claims that lack their stamp."""

from __future__ import annotations

from datetime import timedelta

import structlog

from k8s_adapters.pods import list_pods
from models import sweeps
from models.engine import transaction
from ostler.clock import utcnow
from ostler.wakes import STAMP
from rules.stamps import owned_by
from tasks.base import SWEEP, calls, task
from tasks.runtime import runtime

log = structlog.get_logger(__name__)
_STATES = {"delivered", "executing"}


@task("missing_stamps", queue="sweeps", policy=SWEEP)
def missing_stamps() -> None:
    """Stamp where the Pod carries no stamp, or another claim's, for `OSTLER_MISSING_STAMP_AFTER`."""
    rt = runtime()
    seen = {pod.uid: pod for pod in list_pods(rt.kube, namespace=rt.settings.namespace, policy=calls(SWEEP))}
    before = utcnow() - timedelta(seconds=rt.settings.missing_stamp_after)
    for claim in transaction(rt.engine, sweeps.live_pods):
        pod = seen.get(claim.pod_uid)
        if pod is None or pod.terminating or pod.is_terminal or claim.state not in _STATES:
            continue
        if claim.delivered_at is None or claim.delivered_at > before:
            continue
        if pod.owner != claim.account_id or not owned_by(pod.stamp, claim.claim_id):
            log.warning("missing_stamps.stamped", claim=claim.claim_id, pod=claim.pod_name)
            rt.waker.send(STAMP, queue="dispatch", claim_id=claim.claim_id)

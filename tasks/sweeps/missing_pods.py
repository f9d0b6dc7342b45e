"""`ostler.missing_pods`: ends live claims whose Pod is gone, proven by one GET by name and UID."""

from __future__ import annotations

import random

import structlog
from sqlalchemy.exc import DBAPIError

from k8s_adapters.pods import get_pod, list_pods
from models import sweeps
from models.engine import transaction
from ostler.errors import UpstreamError
from tasks.base import SWEEP, SWEEP_ROW, calls, remaining, task
from tasks.pools import end_claim
from tasks.runtime import Runtime, runtime

log = structlog.get_logger(__name__)
RESERVE = 3.0


@task("missing_pods", queue="sweeps", policy=SWEEP)
def missing_pods() -> None:
    """List the cluster first, read claims second; a failed or empty list changes nothing (L8)."""
    rt = runtime()
    seen = {pod.uid for pod in list_pods(rt.kube, namespace=rt.settings.namespace, policy=calls(SWEEP))}
    claims = transaction(rt.engine, sweeps.live_pods)
    if not seen and claims:
        log.warning("missing_pods.empty_list", claims=len(claims))
        return
    random.shuffle(claims)  # those of which GitHub says nothing are not always the first (L14)
    silent: set[int | None] = set()
    for claim in claims:
        if claim.pod_uid in seen:
            continue
        if remaining() < RESERVE:
            log.info("missing_pods.to_be_continued")
            return
        try:
            look(rt, claim, silent)
        except (UpstreamError, DBAPIError) as error:  # one claim that fails stops no other (L14)
            log.warning("missing_pods.claim_skipped", claim=claim.claim_id, error=type(error).__name__)


def look(rt: Runtime, claim: sweeps.LivePod, silent: set[int | None]) -> None:
    """Prove by one GET that the Pod is gone, and end its claim."""
    pod = get_pod(rt.kube, namespace=claim.namespace, name=claim.pod_name, policy=calls(SWEEP_ROW))
    if pod is None or pod.uid != claim.pod_uid:
        log.warning("missing_pods.gone", claim=claim.claim_id, pod=claim.pod_name)
        end_claim(rt, claim.claim_id, spent=False, silent=silent)

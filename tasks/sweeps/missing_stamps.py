"""`ostler.missing_stamps`: stamps Pods that lack the stamp of their delivered claim."""

from __future__ import annotations

import random
from datetime import timedelta

from k8s_adapters.calls.metadata import ObjectSeen
from k8s_adapters.runners.pods import get_pod
from models.sweeps import sweeps
from models.sweeps.repairs import Case
from ostler.clock import utcnow
from ostler.task_names import MISSING_STAMPS, STAMP
from rules.claims.pod_view import PodView
from rules.claims.stamps import owned_by
from rules.sweeps.limits import Expect, Source, Witness
from tasks.sweeps.frame.lists import runner_pages
from tasks.sweeps.frame.pace import LONGEST
from tasks.sweeps.frame.sweep import sweep
from tasks.sweeps.frame.tick import Tick
from tasks.worker.base import SWEEP_ROW, calls
from tasks.worker.transactions import NOW


@sweep(MISSING_STAMPS, longest=LONGEST)
def missing_stamps(tick: Tick) -> None:
    """Stamp each Pod that has had no stamp, or the stamp of another claim, for `missing_stamp_after` seconds.

    Each page of Pods is read before the claims of the Pods on this page. The candidates are checked after the last page
    (law L8).
    """
    rt = tick.rt
    before = utcnow() - timedelta(seconds=rt.timings.missing_stamp_after)
    lacking: list[sweeps.LivePod] = []
    for page in tick.whole("Pods", runner_pages(rt, "pods")):
        seen = {pod.uid: pod for pod in page}
        claims = tick.read(sweeps.delivered_to, list(seen), before=before, now=NOW)
        lacking += [claim for claim in claims if not carries(seen[claim.pod_uid], claim)]
    random.shuffle(lacking)  # so that a slow Pod is not always the last (L14)
    tick.each(lacking, lambda claim: check(tick, claim))


def carries(pod: ObjectSeen | PodView, claim: sweeps.LivePod) -> bool:
    """Return True if a Pod has the stamp of its claim; False otherwise."""
    return pod.owner == claim.account_id and owned_by(pod.stamp, claim.claim_id)


def check(tick: Tick, claim: sweeps.LivePod) -> None:
    """Request the stamp of one Pod that exists, is not over, and lacks the stamp of its claim."""
    rt = tick.rt
    pod = get_pod(rt.kube, namespace=claim.namespace, name=claim.pod_name, policy=calls(SWEEP_ROW))
    if pod is None or pod.uid != claim.pod_uid or pod.terminating or pod.is_over:
        return
    if carries(pod, claim):
        return
    case = Case(
        what="stamp",
        why="the Pod lacks the stamp of its claim",
        claim_id=claim.claim_id,
        pod_uid=claim.pod_uid,
        before=pod.stamp,
        expects=Expect.STAMPED,
        witnesses=(Witness(Source.KUBERNETES, f"the stamp is {pod.stamp}, the owner {pod.owner}"),),
    )
    if tick.repair(case, lambda db: sweeps.lacks_its_stamp(db, claim.claim_id), once=True):
        rt.waker.send(STAMP, claim_id=claim.claim_id)

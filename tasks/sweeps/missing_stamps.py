"""`ostler.missing_stamps`: stamps the Pods of delivered claims that lack their stamp."""

from __future__ import annotations

from datetime import timedelta

from k8s_adapters.pods import PodSeen, list_pods
from models import sweeps
from models.repairs import Case
from ostler.clock import utcnow
from ostler.wakes import STAMP
from rules.reaping import Expect, Source, Witness
from rules.stamps import owned_by
from tasks.base import SWEEP, calls
from tasks.sweeps.frame import sweep
from tasks.sweeps.tick import Tick

_STATES = {"delivered", "executing"}


@sweep("missing_stamps")
def missing_stamps(tick: Tick) -> None:
    """Stamp where the Pod carries no stamp, or another claim's, for `OSTLER_MISSING_STAMP_AFTER`."""
    rt = tick.rt
    listed = tick.listing("Pods", lambda: list_pods(rt.kube, namespace=rt.settings.namespace, policy=calls(SWEEP)))
    seen = {pod.uid: pod for pod in listed}
    before = utcnow() - timedelta(seconds=rt.settings.missing_stamp_after)
    old = [
        claim
        for claim in tick.read(sweeps.live_pods)
        if claim.state in _STATES and claim.delivered_at is not None and claim.delivered_at <= before
    ]
    tick.each(old, lambda claim: look(tick, claim, seen.get(claim.pod_uid)))


def look(tick: Tick, claim: sweeps.LivePod, pod: PodSeen | None) -> None:
    """Have one Pod stamped that is there and lacks the stamp of its claim."""
    if pod is None or pod.terminating or pod.is_terminal:
        return
    if pod.owner == claim.account_id and owned_by(pod.stamp, claim.claim_id):
        return
    case = Case(
        what="stamp", why="its Pod lacks the claim's stamp", claim_id=claim.claim_id, pod_uid=claim.pod_uid,
        before=pod.stamp, expects=Expect.STAMPED,
        witnesses=(Witness(Source.KUBERNETES, f"the stamp is {pod.stamp}, the owner {pod.owner}"),),
    )  # fmt: skip
    if tick.repair(case, lambda db: sweeps.lacks_its_stamp(db, claim.claim_id)):
        tick.rt.waker.send(STAMP, queue="dispatch", claim_id=claim.claim_id)

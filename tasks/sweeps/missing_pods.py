"""`ostler.missing_pods`: ends live claims whose Pod is gone. A GET by name and UID is the proof."""

from __future__ import annotations

import random
from collections import Counter

from k8s_adapters.runners.pods import get_pod
from models.sweeps import sweeps
from models.sweeps.repairs import Case
from ostler.task_names import MISSING_PODS
from rules.claims.stalls import FoundBy
from rules.sweeps.limits import Expect, Source, Witness
from tasks.pools.finished_pods import end_claim
from tasks.sweeps.frame.lists import runner_pages
from tasks.sweeps.frame.pace import LONGEST
from tasks.sweeps.frame.sweep import sweep
from tasks.sweeps.frame.tick import Tick
from tasks.worker.base import SWEEP_ROW, calls


@sweep(MISSING_PODS, longest=LONGEST)
def missing_pods(tick: Tick) -> None:
    """List the runner Pods of every namespace first, then read the claims.

    A list that failed or is incomplete changes nothing (law L8). The empty list of a namespace changes no claim of this
    namespace. A claim whose Pod is in a namespace that was not listed is not changed.
    """
    listed: dict[str, set[str]] = {namespace: set() for namespace in tick.rt.settings.namespaces}
    for page in tick.whole("Pods", runner_pages(tick.rt, "pods")):
        for pod in page:
            listed[pod.namespace].add(pod.uid)
    claims = tick.read(sweeps.live_pods)
    live = Counter(claim.namespace for claim in claims)
    doubted = {namespace for namespace, seen in listed.items() if live[namespace] and not seen}
    for namespace in doubted:
        tick.incomplete(
            f"the list of {namespace} has no Pods, although {live[namespace]} claims in {namespace} are live"
        )
    trusted = [claim for claim in claims if claim.namespace in listed.keys() - doubted]
    tick.doubt(bool(doubted) and not trusted, f"the list has no Pods, although {sum(live.values())} claims are live")
    missing = [claim for claim in trusted if claim.pod_uid not in listed[claim.namespace]]
    random.shuffle(missing)  # so that claims without an answer of GitHub are not always the first (L14)
    unavailable: set[int | None] = set()
    tick.each(missing, lambda claim: check(tick, claim, unavailable))


def check(tick: Tick, claim: sweeps.LivePod, unavailable: set[int | None]) -> None:
    """End a claim after a GET proved that its Pod is gone.

    This repair is not a kill, because the Pod is gone. Before the claim ends, GitHub is asked for the job, or the
    release of the claim deregisters the runner. `unavailable` collects the installations without an answer
    of GitHub in this tick.
    """
    rt = tick.rt
    pod = get_pod(rt.kube, namespace=claim.namespace, name=claim.pod_name, policy=calls(SWEEP_ROW))
    if pod is not None and pod.uid == claim.pod_uid:
        return
    case = Case(
        what="end claim",
        why="the Pod of the claim is gone",
        claim_id=claim.claim_id,
        pod_uid=claim.pod_uid,
        before=claim.state,
        expects=Expect.CLAIM_ENDED,
        witnesses=(Witness(Source.KUBERNETES, "no Pod in the list has its UID, and no Pod has its name and UID"),),
    )
    tick.repair_by(
        case,
        lambda write: end_claim(
            rt,
            claim.claim_id,
            found_by=FoundBy.LISTS,
            spent=False,
            unavailable=unavailable,
            also=write,
            lookups=tick.lookups,
        ),
    )

"""`ostler.gone_nodes`: allows the deletion of Pods without waiting for their kubelet.

The node of such a Pod is gone, or the Pod is overdue: the grace period of its deletion ended a minute ago. A Pod with a
volume that might still be attached needs a gone node.

Without this sweep, such a Pod might stay Terminating forever, because only its kubelet reports the end of the Pod. The
reconciler marks the rows of Pods on gone nodes. This sweep uses the marks only to select candidates. The task `retire`
deletes the Pod under its retire claim, after it has read the node again. A Pod that executed a job gets its retire
claim from `finished_jobs`, which asks GitHub first.
"""

from __future__ import annotations

from k8s_adapters.runners.pods import get_pod
from models.claims import busy
from models.sweeps import stuck_pods
from models.sweeps.repairs import Case
from ostler.clock import utcnow
from ostler.task_names import GONE_NODES
from rules.sweeps.limits import Expect
from rules.sweeps.nodes import OVERDUE_AFTER, judge_forced
from tasks.claims.evidence import evidence_of
from tasks.claims.retire import send_retire
from tasks.sweeps.frame.lists import runner_pages
from tasks.sweeps.frame.pace import LONGEST
from tasks.sweeps.frame.sweep import sweep
from tasks.sweeps.frame.tick import Tick
from tasks.worker.base import SWEEP_ROW, calls
from tasks.worker.nodes import NodeNow, gone_now
from tasks.worker.transactions import NOW


@sweep(GONE_NODES, longest=LONGEST)
def gone_nodes(tick: Tick) -> None:
    """Check each candidate that the rows name. The Pods are listed before the rows are read again (law L8)."""
    rt = tick.rt
    if not tick.read(stuck_pods.stuck_pods, now=NOW):
        tick.mark_checked()
        return
    pages = runner_pages(rt, "pods")
    listed = {pod.uid for page in tick.whole("Pods", pages) for pod in page}
    stuck = [pod for pod in tick.read(stuck_pods.stuck_pods, now=NOW) if pod.uid in listed]
    nodes: dict[str, NodeNow] = {}
    tick.each(stuck, lambda pod: check(tick, pod, nodes))


def check(tick: Tick, stuck: stuck_pods.Stuck, nodes: dict[str, NodeNow]) -> None:
    """Read one Pod and its node, judge the Pod, and allow its forced deletion if the evidence is sufficient.

    `nodes` caches the state of the nodes in this tick.
    """
    rt = tick.rt
    pod = get_pod(rt.kube, namespace=stuck.namespace, name=stuck.name, policy=calls(SWEEP_ROW))
    if pod is None or pod.uid != stuck.uid or pod.node is None or pod.is_terminal:
        return  # the API server deletes a terminal Pod without its kubelet
    if pod.node not in nodes:
        nodes[pod.node] = gone_now(rt, pod.node)
    node = nodes[pod.node]
    evidence = evidence_of(tick.read(busy.recorded, stuck.uid), pod)
    verdict = judge_forced(
        evidence,
        node.gone,
        attachable_volumes=pod.attachable_volumes,
        overdue=node.reports and pod.is_overdue(now=utcnow(), after=OVERDUE_AFTER),
    )
    if verdict.keep:
        return
    case = Case(
        what="force deletion",
        why=verdict.reason,
        claim_id=stuck.retire_id,
        pod_uid=pod.uid,
        before=pod.phase,
        after="deleted",
        kills=True,
        witnesses=verdict.witnesses,
        expects=Expect.POD_GONE,
    )
    retire_id = tick.repair(
        case,
        lambda db: stuck_pods.allow_force(
            db, stuck, why=verdict.reason, due_after=rt.timings.due_after, now=utcnow(), who=rt.who
        ),
    )
    if retire_id is not None:
        send_retire(rt, retire_id)

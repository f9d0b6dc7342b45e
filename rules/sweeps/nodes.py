"""Gone nodes: when to replace a node's Pods, and when to delete the Pods without waiting for a kubelet.

A node is *gone* in three cases: its object was deleted, it is out of service and not Ready, or it has been unreachable
for longer than `lost_after`. If the evidence is unclear, the node is not gone (law L8). A missing time, a time in the
future or a failed list proves nothing. If the kubelet reports, the node is not unreachable. While more than half of all
nodes are unreachable at once, no Pod is deleted by force. The cause is then probably that the control plane cannot
reach its nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from rules.claims.busy import PodEvidence, may_hold_jit
from rules.sweeps.limits import Source, Witness
from rules.sweeps.orphans import Verdict


class Ready(StrEnum):
    """The status of a node's condition Ready. `UNKNOWN` means that the kubelet does not report to the control plane."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """Fields of a node's object that show the node's health. A time is None if the object does not contain the time.

    - `ready`: status of the condition Ready. The value is None if the node does not have this condition. For example, a
      node that has just joined the cluster does not have the condition.
    - `ready_since`: `lastTransitionTime` of the condition Ready.
    - `out_of_service`: the node has the taint `node.kubernetes.io/out-of-service`.
    - `tainted`: the node has the taint `node.kubernetes.io/unreachable`.
    - `tainted_since`: `timeAdded` of the taint `node.kubernetes.io/unreachable`.
    """

    ready: Ready | None
    ready_since: datetime | None = None
    out_of_service: bool = False
    tainted: bool = False
    tainted_since: datetime | None = None

    @property
    def unreachable(self) -> bool:
        """Return whether the control plane has lost contact with the node's kubelet.

        If the kubelet reports, the taint does not count. After an interruption, a kubelet first reports that it is not
        ready. The node controller removes the taint later.
        """
        return self.ready is Ready.UNKNOWN or (self.tainted and self.ready is None)

    @property
    def unreachable_since(self) -> datetime | None:
        """Return the time since which the node is unreachable.

        The result is the time of the condition or the time of the taint, whichever is later. The result is None if the
        node is reachable or no time is known.
        """
        if not self.unreachable:
            return None
        of_condition = self.ready_since if self.ready is Ready.UNKNOWN else None
        known = [at for at in (of_condition, self.tainted_since) if at is not None]
        return max(known) if known else None


class Gone(StrEnum):
    """Reason why a node is gone. The value is the text that a repair records as its witness."""

    DELETED = "the node was deleted from the cluster"
    OUT_OF_SERVICE = "the node has the out-of-service taint and is not Ready"
    UNREACHABLE = "the node has been unreachable for longer than OSTLER_NODE_LOST_AFTER"

    @property
    def fenced(self) -> bool:
        """Return whether it is guaranteed that nothing runs on the node any more.

        If this is guaranteed, the node's volumes can be attached to another node.
        """
        return self is not Gone.UNREACHABLE


def judge_node(node: NodeHealth | None, *, lost_after: float, now: datetime) -> Gone | None:
    """Return the reason why a node is gone, or None while the node might be alive. `lost_after` is in seconds.

    `node` must be None only if a GET of the node by name was answered with 404. A node that reports Ready is never
    gone, even if the node's out-of-service taint was not removed yet.
    """
    if node is None:
        return Gone.DELETED
    if node.out_of_service and node.ready is not Ready.TRUE:
        return Gone.OUT_OF_SERVICE
    since = node.unreachable_since
    if since is not None and (now - since).total_seconds() > lost_after:
        return Gone.UNREACHABLE
    return None


def nothing_forced(nodes: Iterable[NodeHealth]) -> bool:
    """Return whether no Pod may be deleted by force, because the list of all nodes is doubtful (law L8).

    A list is doubtful if it is empty, or if more than half of its nodes are unreachable.
    """
    found = [node.unreachable for node in nodes]
    return not found or sum(found) * 2 > len(found)


OVERDUE_AFTER = 60.0
"""Seconds after the grace period of a deleted Pod until the Pod is overdue."""

OVERDUE = "its kubelet has not ended the Pod a minute after its grace period"
"""Reason of a forced deletion on a node that is not gone."""


def may_force(gone: Gone | None, *, attachable_volumes: bool, overdue: bool = False) -> bool:
    """Return whether a Pod on a node in this state may be deleted without waiting for the kubelet.

    If a volume of the Pod can be attached to another node, the Pod's node must be fenced. Otherwise two writers could
    corrupt the volume. `overdue` is True if the grace period of the deleted Pod ended `OVERDUE_AFTER` seconds ago,
    although the kubelet of its node reports. Such a Pod needs no gone node: when its object is gone, the kubelet ends
    what is left of it.
    """
    if gone is None:
        return overdue and not attachable_volumes
    return gone.fenced or not attachable_volumes


def judge_forced(
    evidence: PodEvidence, gone: Gone | None, *, attachable_volumes: bool, overdue: bool = False
) -> Verdict:
    """Return the verdict on the deletion of a Pod without its kubelet. The caller must have read the Pod and its node.

    Kubernetes is the witness that the node is gone, or that the Pod is overdue. The second witness is Postgres if
    nothing was ever delivered to the Pod. Otherwise the second witness is GitHub, which must have removed all runners
    of the Pod.
    """
    if gone is None and not overdue:
        return _leave_alone("the kubelet of the node might still end the Pod")
    if not may_force(gone, attachable_volumes=attachable_volumes, overdue=overdue):
        return _leave_alone("the Pod has a volume that might still be attached")
    # Kubernetes reports both that a Pod is over and that its node is gone. Two reports of one source are one witness
    # (law L9).
    busy = may_hold_jit(replace(evidence, terminal=False))
    if busy.busy:
        return _leave_alone("the Pod might hold a JIT: " + ", ".join(busy.reasons))
    if evidence.any_delivered:
        other = Witness(Source.GITHUB, "all runners of the Pod are removed")
    else:
        other = Witness(Source.POSTGRES, "nothing was delivered")
    reason = OVERDUE if gone is None else str(gone)
    return Verdict(keep=False, reason=reason, witnesses=(other, Witness(Source.KUBERNETES, reason)))


def _leave_alone(reason: str) -> Verdict:
    return Verdict(keep=True, reason=reason)

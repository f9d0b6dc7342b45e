"""Gone nodes: when a node's Pods are replaced, and when their objects may be deleted without waiting for a kubelet.

A node is *gone* if its object was deleted, if it is out of service and not Ready, or if it has been unreachable for
longer than `lost_after`. Doubt means no (law L8): a missing or future time, a kubelet that reports, or a failed list
proves nothing. While more than half of all nodes are unreachable at once nothing is forced, because then it is more
likely that the control plane cannot see its nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from rules.claims.busy import PodEvidence, may_hold_jit
from rules.sweeps.orphans import Verdict
from rules.sweeps.reaping import Source, Witness


class Ready(StrEnum):
    """The status of a node's condition Ready. `UNKNOWN`: the control plane has not heard of its kubelet."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """Part of a node's object that shows its health. A time is None if the object does not have it.

    `ready`: None without a condition Ready, as on a node that has just joined. `ready_since`: its `lastTransitionTime`.
    `out_of_service`: it has `node.kubernetes.io/out-of-service`. `tainted`: it has `node.kubernetes.io/unreachable`,
    `tainted_since` is that taint's `timeAdded`.
    """

    ready: Ready | None
    ready_since: datetime | None = None
    out_of_service: bool = False
    tainted: bool = False
    tainted_since: datetime | None = None

    @property
    def unreachable(self) -> bool:
        """Whether the control plane has lost the node's kubelet; a kubelet that reports overrides the taint.

        A kubelet that has just come back says that it is not ready, and the node controller removes the taint later.
        """
        return self.ready is Ready.UNKNOWN or (self.tainted and self.ready is None)

    @property
    def unreachable_since(self) -> datetime | None:
        """The latest time in its condition or taint; None if it is reachable or no time is known."""
        if not self.unreachable:
            return None
        of_condition = self.ready_since if self.ready is Ready.UNKNOWN else None
        known = [at for at in (of_condition, self.tainted_since) if at is not None]
        return max(known) if known else None


class Gone(StrEnum):
    """Reason why a node is gone, as the witness of a repair has it."""

    DELETED = "its node object is deleted"
    OUT_OF_SERVICE = "its node is out of service"
    UNREACHABLE = "its node has been unreachable for too long"

    @property
    def fenced(self) -> bool:
        """Whether somebody guarantees that nothing runs there any more, so its volumes can be attached elsewhere."""
        return self is not Gone.UNREACHABLE


def judge_node(node: NodeHealth | None, *, lost_after: float, now: datetime) -> Gone | None:
    """Return why a node is gone, or None while it might be alive; `lost_after` is in seconds.

    `node` is None only if a GET by its name was answered with 404. A node that reports Ready is never gone: its
    out-of-service taint was not removed after its return.
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
    """Return whether a list of all nodes is doubtful (L8): it is empty, or more than half are unreachable at once."""
    found = [node.unreachable for node in nodes]
    return not found or sum(found) * 2 > len(found)


def may_force(gone: Gone | None, *, attachable_volumes: bool) -> bool:
    """Return whether the state of a node permits the deletion of its Pod without waiting for its kubelet.

    A volume that can be attached elsewhere needs a fenced node: two writers would corrupt it.
    """
    return gone is not None and (gone.fenced or not attachable_volumes)


def judge_forced(evidence: PodEvidence, gone: Gone | None, *, attachable_volumes: bool) -> Verdict:
    """Return whether a Pod may be deleted without its kubelet, after a GET of it and of its node.

    Kubernetes is the witness that the node is gone. The second witness is Postgres if nothing was ever delivered to the
    Pod, else GitHub, which no longer has any of its runners.
    """
    if gone is None:
        return _keep("its kubelet may still end it")
    if not may_force(gone, attachable_volumes=attachable_volumes):
        return _keep("it has a volume that may still be attached")
    # Kubernetes says both that a Pod is over and that its node is gone. The same source twice is one witness (L9).
    busy = may_hold_jit(replace(evidence, terminal=False))
    if busy.busy:
        return _keep("it may hold a JIT: " + ", ".join(busy.reasons))
    if evidence.any_delivered:
        other = Witness(Source.GITHUB, "its runner is removed")
    else:
        other = Witness(Source.POSTGRES, "nothing was delivered")
    return Verdict(keep=False, reason=str(gone), witnesses=(other, Witness(Source.KUBERNETES, str(gone))))


def _keep(reason: str) -> Verdict:
    return Verdict(keep=True, reason=reason)

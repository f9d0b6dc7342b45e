"""Shares of pools that use the same nodes: real load first, then floors, then headroom.

Real load is the number of Pods that have jobs or are needed for queued jobs. A floor is the `minWarm` of a pool.
Headroom is the number of further Pods that a pool wants (`rules.pools.scaling`).

Real load is always granted in full, even beyond the capacity. If such a Pod stays pending, a node autoscaler or an
operator adds a node. The floors get the rest of the capacity, and the headroom gets the capacity that the floors do not
use. If the capacity is too small for a tier (all floors, or all headroom), it is split in proportion and rounded down.
The next tier then gets nothing.

If the capacity is unknown or appears to be zero, every pool gets all Pods that it wants. If it is unclear which nodes
exist, no Pod may be deleted for lack of capacity (law L8). A node that is not Ready might become Ready again, so
`capacity` can count the node for a while.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction

from rules.pools.pod_template import LOST_NODE_TAINTS
from rules.pools.scaling import Parts

USABLE = Fraction(9, 10)
"""Usable fraction of a node's allocatable resources. The rest is for workloads that run on every node."""


_OF_CONDITIONS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""Prefixes of taints that Kubernetes adds to a node that is not Ready. Kubernetes removes these taints later."""


@dataclass(frozen=True, slots=True)
class Size:
    """CPU in millicores and memory in MiB."""

    vcpu: int
    memory: int

    def __add__(self, other: Size) -> Size:
        return Size(self.vcpu + other.vcpu, self.memory + other.memory)

    def times(self, many: int) -> Size:
        """Return the size multiplied by `many`."""
        return Size(self.vcpu * many, self.memory * many)


NOTHING = Size(0, 0)


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a node that repels Pods without a toleration."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class Toleration:
    """A toleration of a Pod. `operator` is Exists or Equal.

    A `key` of None matches every key. An `effect` of None matches every effect.
    """

    key: str | None
    operator: str
    value: str
    effect: str | None

    def covers(self, taint: Taint) -> bool:
        """Return whether a Pod with this toleration may run on a node with this taint."""
        if self.effect and self.effect != taint.effect:
            return False
        if not self.key:
            return self.operator == "Exists"
        return self.key == taint.key and (self.operator == "Exists" or self.value == taint.value)


@dataclass(frozen=True, slots=True)
class Node:
    """A node. `taints` has only taints that repel Pods.

    `usable` is true if the node is Ready and not cordoned. `not_ready` is true if the node is not cordoned and its
    condition Ready is not True. `not_ready_since` is the time at which the node stopped being Ready, or None if this
    time is unknown.
    """

    labels: Mapping[str, str]
    usable: bool
    allocatable: Size
    taints: tuple[Taint, ...] = ()
    not_ready: bool = False
    not_ready_since: datetime | None = None

    def may_return(self, *, lost_before: datetime) -> bool:
        """Return whether the node is not Ready, but was Ready at `lost_before`.

        A node without a known `not_ready_since` counts as Ready at `lost_before`.
        """
        return self.not_ready and (self.not_ready_since is None or self.not_ready_since > lost_before)


@dataclass(frozen=True, slots=True)
class Fleet:
    """The nodes that pools share: all nodes with the labels in `selector`.

    If `selector` is empty, the fleet has all nodes of the cluster.
    """

    selector: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, selector: Mapping[str, str]) -> Fleet:
        """Return the fleet of a node selector. The order of the selector's labels does not matter."""
        return cls(tuple(sorted(selector.items())))

    def __str__(self) -> str:
        return ",".join(f"{key}={value}" for key, value in self.selector) or "all nodes"


@dataclass(frozen=True, slots=True)
class Needs:
    """Requirements of the Pods of a pool: their resource requests, their node selector, and their tolerations."""

    size: Size
    fleet: Fleet
    tolerations: tuple[Toleration, ...]


@dataclass(frozen=True, slots=True)
class Member:
    """A pool of a fleet: the Pods that it wants, and the size of one Pod."""

    pool_id: int
    wants: Parts
    size: Size


def capacity(
    fleet: Fleet, nodes: Iterable[Node], tolerations: Sequence[Toleration], *, lost_before: datetime | None = None
) -> Size:
    """Return the capacity of the fleet's usable nodes for Pods with these tolerations.

    If `lost_before` is given, a node that is not Ready also counts if it was Ready at `lost_before`. A node that is
    Ready again also counts, although Kubernetes has not yet removed the taints that it added to the node.
    """
    total = NOTHING
    for node in nodes:
        returns = lost_before is not None and node.may_return(lost_before=lost_before)
        fits = all(node.labels.get(key) == value for key, value in fleet.selector)
        old = _OF_CONDITIONS if returns else LOST_NODE_TAINTS if node.usable else ()
        taints = [taint for taint in node.taints if not taint.key.startswith(old)]
        let_in = all(any(each.covers(taint) for each in tolerations) for taint in taints)
        if (node.usable or returns) and fits and let_in:
            total += node.allocatable
    return Size(int(total.vcpu * USABLE), int(total.memory * USABLE))


def share(members: Sequence[Member], *, room: Size | None, taken: Size = NOTHING) -> dict[int, Parts]:
    """Return the grant of each pool of a fleet. `room` is the capacity of the fleet.

    `taken` is the part of the capacity that other Pods use. If `room` is None or has no CPU or no memory, every pool is
    granted all Pods that it wants.
    """
    if room is None or room.vcpu <= 0 or room.memory <= 0:
        return {member.pool_id: member.wants for member in members}
    left = _less(room, taken, *(member.size.times(member.wants.real) for member in members))
    floors, left = _tier(left, [(member.size, member.wants.floor) for member in members])
    headrooms, _ = _tier(left, [(member.size, member.wants.headroom) for member in members])
    return {
        member.pool_id: Parts(real=member.wants.real, floor=floor, headroom=headroom)
        for member, floor, headroom in zip(members, floors, headrooms, strict=True)
    }


def _tier(left: Size, wants: Sequence[tuple[Size, int]]) -> tuple[list[int], Size]:
    """Return how many Pods of one tier each pool gets from `left`, and the resources that remain for the next tier.

    If `left` is too small for the tier, nothing remains.
    """
    need = NOTHING
    for size, many in wants:
        need += size.times(many)
    part = min(_part(left.vcpu, need.vcpu), _part(left.memory, need.memory))
    if part >= 1:
        return [many for _, many in wants], _less(left, need)
    return [int(many * part) for _, many in wants], NOTHING


def _part(left: int, need: int) -> Fraction:
    return Fraction(1) if need <= 0 else max(Fraction(0), min(Fraction(1), Fraction(left, need)))


def _less(size: Size, *others: Size) -> Size:
    return Size(size.vcpu - sum(other.vcpu for other in others), size.memory - sum(other.memory for other in others))

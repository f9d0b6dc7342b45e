"""What pools that share nodes get of them: real load first, then floors, then headroom.

Real load is always granted in full, beyond the capacity too: a Pod that is pending for a job is what makes an operator,
or an autoscaler of nodes, buy one. The floors and then the headroom get what is left; what does not fit is split in
proportion and rounded down, and what comes after it gets nothing. Where the capacity is not known, or there seems to be
none, everybody gets what it wants: no doubt about nodes may ever end Pods (law L8). A node that is not Ready is such a
doubt: it may come back, so `capacity` can count it for a while.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction

from rules.pools.scaling import Parts

USABLE = Fraction(9, 10)
"""Of what nodes can allocate: the rest is for what else runs on every node."""


_OF_CONDITIONS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""Taints that Kubernetes itself puts on a node that is not Ready, and takes off again."""


@dataclass(frozen=True, slots=True)
class Size:
    """CPU in millicores and memory in MiB."""

    vcpu: int
    memory: int

    def __add__(self, other: Size) -> Size:
        return Size(self.vcpu + other.vcpu, self.memory + other.memory)

    def times(self, many: int) -> Size:
        """Return so many of it."""
        return Size(self.vcpu * many, self.memory * many)


NOTHING = Size(0, 0)


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a node that keeps Pods away which do not tolerate it."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class Toleration:
    """A toleration of a Pod; its operator is Exists or Equal, and without a key or an effect it is for any of them."""

    key: str | None
    operator: str
    value: str
    effect: str | None

    def covers(self, taint: Taint) -> bool:
        """Return whether a Pod with it may go where this taint is."""
        if self.effect and self.effect != taint.effect:
            return False
        if not self.key:
            return self.operator == "Exists"
        return self.key == taint.key and (self.operator == "Exists" or self.value == taint.value)


@dataclass(frozen=True, slots=True)
class Node:
    """A node; `usable`: it is Ready and not cordoned. `taints` are those that keep Pods away.

    `not_ready`: it is not cordoned, and its condition Ready is not True, since `not_ready_since` where that is known.
    """

    labels: Mapping[str, str]
    usable: bool
    allocatable: Size
    taints: tuple[Taint, ...] = ()
    not_ready: bool = False
    not_ready_since: datetime | None = None

    def may_return(self, *, lost_before: datetime) -> bool:
        """Return whether it is not Ready, and was Ready at that time; one whose time is not known may have been."""
        return self.not_ready and (self.not_ready_since is None or self.not_ready_since > lost_before)


@dataclass(frozen=True, slots=True)
class Fleet:
    """The nodes that pools share: those whose labels hold these (none: all nodes)."""

    selector: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, selector: Mapping[str, str]) -> Fleet:
        """Return the fleet that a node selector names, whatever the order of its labels."""
        return cls(tuple(sorted(selector.items())))

    def __str__(self) -> str:
        return ",".join(f"{key}={value}" for key, value in self.selector) or "all nodes"


@dataclass(frozen=True, slots=True)
class Member:
    """A pool of a fleet: what it wants and the size of one of its Pods."""

    pool_id: int
    wants: Parts
    size: Size


def capacity(
    fleet: Fleet, nodes: Iterable[Node], tolerations: Sequence[Toleration], *, lost_before: datetime | None = None
) -> Size:
    """Return what the fleet's usable nodes hold for Pods, of which some tolerate so much.

    With `lost_before` also what nodes hold that are not Ready and were Ready at that time.
    """
    total = NOTHING
    for node in nodes:
        returns = lost_before is not None and node.may_return(lost_before=lost_before)
        fits = all(node.labels.get(key) == value for key, value in fleet.selector)
        taints = [taint for taint in node.taints if not (returns and taint.key.startswith(_OF_CONDITIONS))]
        let_in = all(any(each.covers(taint) for each in tolerations) for taint in taints)
        if (node.usable or returns) and fits and let_in:
            total += node.allocatable
    return Size(int(total.vcpu * USABLE), int(total.memory * USABLE))


def share(members: Sequence[Member], *, room: Size | None, taken: Size = NOTHING) -> dict[int, Parts]:
    """Return what each pool of a fleet is granted of its `room`, of which others hold `taken`.

    A room that is not known, or without CPU or memory, grants everything.
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
    """Return what each gets of what is left, and what is left for the next tier: nothing, where not all of it fit."""
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

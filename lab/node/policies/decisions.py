"""Decisions of NetworkPolicies: the isolated Pods, and the traffic that each isolated Pod is permitted.

The input is the JSON of Pods, Namespaces and NetworkPolicies, as the API server returns it. The rules are those of the
Kubernetes documentation, page "Network Policies". Where that page leaves a choice to the plugin, this module chooses:

- An `ipBlock` also matches a Pod whose address is in the block.
- A rule for egress with a named port and an `ipBlock` permits nothing, because an address has no named ports.
- A rule without `ports` permits every protocol. A rule with `ports` permits only TCP, UDP or SCTP.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Json = Mapping[str, Any]
IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

_ENDED = frozenset({"Succeeded", "Failed"})


class Direction(StrEnum):
    """Direction of a connection, from the view of the Pod that a policy selects."""

    INGRESS = "Ingress"
    EGRESS = "Egress"


@dataclass(frozen=True, kw_only=True)
class PolicedPod:
    """A Pod with a network of its own that has not ended. `address` is None until the kubelet has reported it."""

    uid: str
    namespace: str
    name: str
    labels: Mapping[str, str]
    address: str | None
    named_ports: Sequence[tuple[str, str, int]]
    """Name, protocol and number of each named port. Two containers may use the same name."""


@dataclass(frozen=True, slots=True)
class Block:
    """An `ipBlock`: the addresses of `network` that are in none of the `excluded` networks."""

    network: IPNetwork
    excluded: tuple[IPNetwork, ...] = ()

    def __contains__(self, address: IPAddress) -> bool:
        return address in self.network and not any(address in each for each in self.excluded)


@dataclass(frozen=True, slots=True)
class Permit:
    """Traffic that is permitted to one Pod in one direction.

    `peer` is the UID of a Pod, a block of addresses, or None for every peer. If `protocol` is None, every protocol is
    permitted. If `ports` is None, every port of the protocol is permitted. Otherwise `ports` is the first and the last
    port.
    """

    pod: str
    direction: Direction
    peer: str | Block | None
    protocol: str | None = None
    ports: tuple[int, int] | None = None

    def covers_port(self, protocol: str, port: int) -> bool:
        """Return whether the permit covers a port."""
        if self.protocol is None:
            return True
        return self.protocol == protocol and (self.ports is None or self.ports[0] <= port <= self.ports[1])

    def covers_peer(self, uid: str | None, address: IPAddress | None) -> bool:
        """Return whether the permit covers a peer, which is given by the UID of a Pod, by an address, or by both."""
        match self.peer:
            case None:
                return True
            case Block() as block:
                return address is not None and address in block
            case permitted:
                return permitted == uid


@dataclass(frozen=True, slots=True)
class Decisions:
    """The decisions of all policies. A Pod that is not `isolated` in a direction is permitted everything there."""

    isolated: frozenset[tuple[str, Direction]]
    permits: frozenset[Permit]

    def allow(
        self,
        pod: str,
        direction: Direction,
        *,
        protocol: str,
        port: int,
        uid: str | None = None,
        address: IPAddress | None = None,
    ) -> bool:
        """Return whether `pod` may have a connection with the peer that has this UID, this address, or both."""
        if (pod, direction) not in self.isolated:
            return True
        return any(
            each.covers_port(protocol, port) and each.covers_peer(uid, address)
            for each in self.permits
            if (each.pod, each.direction) == (pod, direction)
        )


def read_pods(items: Iterable[Json]) -> list[PolicedPod]:
    """Return the Pods that policies concern. Ended Pods and Pods in the node's network are left out."""
    return [_read_pod(each) for each in items if _is_policed(each)]


def read_namespaces(items: Iterable[Json]) -> dict[str, Mapping[str, str]]:
    """Return the labels of each Namespace by its name."""
    return {each["metadata"]["name"]: each["metadata"].get("labels") or {} for each in items}


def decide(
    policies: Iterable[Json], pods: Sequence[PolicedPod], namespaces: Mapping[str, Mapping[str, str]]
) -> Decisions:
    """Return the decisions for all Pods. Policies add up: traffic is permitted if one of them permits it."""
    isolated: set[tuple[str, Direction]] = set()
    permits: set[Permit] = set()
    for policy in policies:
        namespace, spec = policy["metadata"]["namespace"], policy["spec"]
        for pod in pods:
            if pod.namespace != namespace or not matches(spec.get("podSelector"), pod.labels):
                continue
            for direction in _directions(spec):
                isolated.add((pod.uid, direction))
                for rule in spec.get(direction.lower()) or ():
                    permits.update(_permits(rule, direction, pod, pods, namespaces))
    return Decisions(frozenset(isolated), frozenset(permits))


def matches(selector: Json | None, labels: Mapping[str, str]) -> bool:
    """Return whether a label selector matches the labels. An empty selector matches every object."""
    selector = selector or {}
    wanted = selector.get("matchLabels") or {}
    expressions = selector.get("matchExpressions") or ()
    return wanted.items() <= labels.items() and all(_fulfils(each, labels) for each in expressions)


def _fulfils(expression: Json, labels: Mapping[str, str]) -> bool:
    present = expression["key"] in labels
    listed = labels.get(expression["key"]) in (expression.get("values") or ())
    match expression["operator"]:
        case "Exists":
            return present
        case "DoesNotExist":
            return not present
        case "In":
            return present and listed
        case "NotIn":
            return not (present and listed)
        case operator:
            raise ValueError(f"a label selector has the unknown operator {operator!r}")


def _directions(spec: Json) -> list[Direction]:
    """Return the directions of a policy, with the defaults of the API server (`SetDefaults_NetworkPolicy`)."""
    if types := spec.get("policyTypes"):
        return [Direction(each) for each in types]
    return [Direction.INGRESS, Direction.EGRESS] if spec.get("egress") else [Direction.INGRESS]


def _permits(
    rule: Json,
    direction: Direction,
    pod: PolicedPod,
    pods: Sequence[PolicedPod],
    namespaces: Mapping[str, Mapping[str, str]],
) -> Iterator[Permit]:
    """Yield what one rule of a policy permits to a Pod that the policy selects."""
    peers = rule.get("from" if direction is Direction.INGRESS else "to") or ()
    selected = [each for each in pods if any(_selects(peer, pod.namespace, each, namespaces) for peer in peers)]
    ends: list[str | Block | None] = [_block(each["ipBlock"]) for each in peers if each.get("ipBlock")]
    ends += [each.uid for each in selected] if peers else [None]
    if not rule.get("ports"):
        yield from (Permit(pod.uid, direction, end) for end in ends)
        return
    for port in rule["ports"]:
        protocol = port.get("protocol") or "TCP"
        name = port.get("port")
        if not isinstance(name, str):
            ports = None if name is None else (name, port.get("endPort") or name)
            yield from (Permit(pod.uid, direction, end, protocol, ports) for end in ends)
        elif direction is Direction.INGRESS:
            for number in _numbers(pod, name, protocol):
                yield from (Permit(pod.uid, direction, end, protocol, (number, number)) for end in ends)
        else:  # the receiver defines the name, so each receiver might have another number
            for receiver in selected if peers else pods:
                for number in _numbers(receiver, name, protocol):
                    yield Permit(pod.uid, direction, receiver.uid, protocol, (number, number))


def _selects(peer: Json, own_namespace: str, pod: PolicedPod, namespaces: Mapping[str, Mapping[str, str]]) -> bool:
    if peer.get("ipBlock"):
        return False
    if peer.get("namespaceSelector") is None:
        if pod.namespace != own_namespace:
            return False
    elif pod.namespace not in namespaces or not matches(peer["namespaceSelector"], namespaces[pod.namespace]):
        return False
    return matches(peer.get("podSelector"), pod.labels)


def _block(given: Json) -> Block:
    excluded = [ipaddress.ip_network(each, strict=False) for each in given.get("except") or ()]
    return Block(ipaddress.ip_network(given["cidr"], strict=False), tuple(excluded))


def _numbers(pod: PolicedPod, name: str, protocol: str) -> set[int]:
    return {
        number for its_name, its_protocol, number in pod.named_ports if (its_name, its_protocol) == (name, protocol)
    }


def _is_policed(pod: Json) -> bool:
    ended = (pod.get("status") or {}).get("phase") in _ENDED
    return not ended and not pod["spec"].get("hostNetwork")


def _read_pod(pod: Json) -> PolicedPod:
    metadata, spec = pod["metadata"], pod["spec"]
    sidecars = [each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always"]
    ports = [port for each in (*spec["containers"], *sidecars) for port in each.get("ports") or ()]
    return PolicedPod(
        uid=metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        labels=metadata.get("labels") or {},
        address=(pod.get("status") or {}).get("podIP"),
        named_ports=[
            (each["name"], each.get("protocol") or "TCP", each["containerPort"]) for each in ports if each.get("name")
        ],
    )

"""Reach of a Pod under NetworkPolicies: Pods and addresses, each with its ports.

A Pod that no policy rules in a direction may do everything there; otherwise it may do what any of the policies that
select it allows. A connection needs both ends: egress of the one and ingress of the other (`may_connect`).

What the specification leaves to the network plugin is evaluated both ways by the caller: whether an `ipBlock` covers a
Pod that has such an address. So addresses and Pods are two answers. A port's name means something only where the
receiving Pod is known, so that a named port and addresses allow nothing together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from deploys.addresses import EVERYWHERE, Addresses
from deploys.intervals import Intervals
from deploys.network_policies import LAST_PORT, PROTOCOLS, Direction, Peer, Policy, PortRule, Rule

_ALL = Intervals.of([(1, LAST_PORT)])


@dataclass(frozen=True, slots=True)
class Pod:
    """What policies see of a Pod. `key` tells it from others; `named_ports`: name → protocol and number."""

    key: str
    namespace: str
    labels: Mapping[str, str]
    named_ports: Mapping[str, tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Network:
    """Policies in force, the labels of namespaces, and the Pods that are checked as peers."""

    policies: tuple[Policy, ...]
    namespaces: Mapping[str, Mapping[str, str]]
    pods: tuple[Pod, ...]


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports of each protocol; protocols without any are left out, so that equal sets are equal records."""

    by_protocol: tuple[tuple[str, Intervals], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.by_protocol)

    def of(self, protocol: str) -> Intervals:
        """Return the port numbers of one protocol."""
        return dict(self.by_protocol).get(protocol, Intervals())

    def union(self, other: Ports) -> Ports:
        """Return what is in either."""
        return _ports({each: self.of(each).union(other.of(each)) for each in PROTOCOLS})

    def common(self, other: Ports) -> Ports:
        """Return what is in both."""
        return _ports({each: self.of(each).common(other.of(each)) for each in PROTOCOLS})

    def minus(self, other: Ports) -> Ports:
        """Return what is in this one and not in the other."""
        return _ports({each: self.of(each).minus(other.of(each)) for each in PROTOCOLS})


ALL_PORTS = Ports(tuple((each, _ALL) for each in sorted(PROTOCOLS)))


@dataclass(frozen=True, slots=True)
class Reach:
    """What one Pod may do in one direction. Equal permissions are equal records, however the policies were written.

    `pods`: key and ports of each Pod that it may talk to. `addresses`: protocol, first and last port, and where to.
    `policies` are the names of those that say so; none: nothing rules this direction, and everything is allowed.
    """

    policies: tuple[str, ...]
    pods: tuple[tuple[str, Ports], ...]
    addresses: tuple[tuple[str, int, int, Addresses], ...]

    def ports_of(self, key: str) -> Ports:
        """Return the ports at which it may talk to a Pod."""
        return dict(self.pods).get(key, Ports())

    def addresses_beside(self, ports: Ports) -> Addresses:
        """Return the addresses that it may talk to at any port but these."""
        found = Addresses()
        for protocol, low, high, addresses in self.addresses:
            if Intervals.of([(low, high)]).minus(ports.of(protocol)):
                found = found.union(addresses)
        return found


def reach(network: Network, pod: Pod, direction: Direction) -> Reach:
    """Return what a Pod may talk to, or be talked to by. It need not be one of the network's Pods."""
    ruling = ruled_by(network.policies, pod, direction)
    if not ruling:
        rules: list[tuple[Policy | None, Rule]] = [(None, Rule(peers=None, ports=None))]
    else:
        rules = [(policy, rule) for policy in ruling for rule in policy.rules(direction) or ()]
    pods: dict[str, Ports] = {}
    spans: list[tuple[str, int, int, Addresses]] = []
    for policy, rule in rules:
        for other in network.pods:
            if not rule_names_pod(network, policy, rule, other):
                continue
            receiver = other if direction is Direction.EGRESS else pod
            pods[other.key] = pods.get(other.key, Ports()).union(_ports_at(rule.ports, receiver))
        addresses = _addresses_of(rule)
        if addresses:
            receiver_known = pod if direction is Direction.INGRESS else None
            spans += [
                (protocol, low, high, addresses)
                for protocol, numbers in _ports_at(rule.ports, receiver_known).by_protocol
                for low, high in numbers.ranges
            ]
    return Reach(
        policies=tuple(sorted(each.name for each in ruling)),
        pods=tuple(sorted(((key, ports) for key, ports in pods.items() if ports), key=lambda each: each[0])),
        addresses=_canonical(spans),
    )


def may_connect(network: Network, source: Pod, target: Pod, *, ports: Ports = ALL_PORTS) -> Ports:
    """Return the ports of these at which one Pod may connect to another: both ends allow it, by Pod peers."""
    both = Network(network.policies, network.namespaces, (source, target))
    out = reach(both, source, Direction.EGRESS).ports_of(target.key)
    return out.common(reach(both, target, Direction.INGRESS).ports_of(source.key)).common(ports)


def ruled_by(policies: Sequence[Policy], pod: Pod, direction: Direction) -> list[Policy]:
    """Return the policies that rule what this Pod does in a direction."""
    return [each for each in policies if each.rules(direction) is not None and each.selects(pod.namespace, pod.labels)]


def rule_names_pod(network: Network, policy: Policy | None, rule: Rule, other: Pod) -> bool:
    """Return whether a rule covers a Pod by its labels, or by covering everything."""
    return rule.peers is None or any(
        peer_names_pod(network, policy, peer, other) for peer in rule.peers if policy is not None
    )


def peer_names_pod(network: Network, policy: Policy | None, peer: Peer, other: Pod) -> bool:
    """Return whether a peer selects a Pod by labels; addresses never do."""
    if peer.addresses is not None or policy is None:
        return False
    if peer.namespaces is None:
        if other.namespace != policy.namespace:
            return False
    elif not peer.namespaces.matches(labels_of_namespace(network, other.namespace)):
        return False
    return peer.pods is None or peer.pods.matches(other.labels)


def labels_of_namespace(network: Network, name: str) -> Mapping[str, str]:
    """Return the labels of a namespace, with the one that the API server puts on each."""
    return {**network.namespaces.get(name, {}), "kubernetes.io/metadata.name": name}


def _addresses_of(rule: Rule) -> Addresses:
    if rule.peers is None:
        return EVERYWHERE
    found = Addresses()
    for peer in rule.peers:
        if peer.addresses is not None:
            found = found.union(peer.addresses)
    return found


def _ports_at(rules: tuple[PortRule, ...] | None, receiver: Pod | None) -> Ports:
    """Return the ports that rules mean at a receiver; names mean nothing where it is not known."""
    if rules is None:
        return ALL_PORTS
    found: dict[str, Intervals] = {}
    for rule in rules:
        numbers = _numbers(rule, receiver)
        found[rule.protocol] = found.get(rule.protocol, Intervals()).union(numbers)
    return _ports(found)


def _numbers(rule: PortRule, receiver: Pod | None) -> Intervals:
    if rule.name is None:
        return _ALL if rule.numbers is None else Intervals.of([rule.numbers])
    protocol, number = (receiver.named_ports if receiver else {}).get(rule.name, ("", 0))
    return Intervals.of([(number, number)]) if protocol == rule.protocol else Intervals()


def _ports(by_protocol: Mapping[str, Intervals]) -> Ports:
    return Ports(tuple((each, by_protocol[each]) for each in sorted(by_protocol) if by_protocol[each]))


def _canonical(spans: Sequence[tuple[str, int, int, Addresses]]) -> tuple[tuple[str, int, int, Addresses], ...]:
    """Return the same permissions, each port once, and neighbours with the same addresses joined."""
    found: list[tuple[str, int, int, Addresses]] = []
    for protocol in sorted({each[0] for each in spans}):
        mine = [each for each in spans if each[0] == protocol]
        edges = sorted({low for _, low, _, _ in mine} | {high + 1 for _, _, high, _ in mine})
        for low, after in pairwise(edges):
            addresses = Addresses()
            for _, first, last, where in mine:
                if first <= low and after - 1 <= last:
                    addresses = addresses.union(where)
            if not addresses:
                continue
            if found and found[-1][0] == protocol and found[-1][2] == low - 1 and found[-1][3] == addresses:
                found[-1] = protocol, found[-1][1], after - 1, addresses
            else:
                found.append((protocol, low, after - 1, addresses))
    return tuple(found)

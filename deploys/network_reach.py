"""Reach of a Pod under NetworkPolicies: the permitted Pods and addresses of one direction, each with the ports.

If no policy applies to a direction of a Pod, all traffic in this direction is allowed. Otherwise, traffic is allowed if
at least one policy that selects the Pod allows the traffic. For a connection, the policies must allow both the egress
of the source and the ingress of the target (`may_connect`).

The specification does not define whether an `ipBlock` covers a Pod with an address in the block. The result therefore
lists Pods and addresses separately, and the caller considers both cases. The number of a named port is known only if
the receiving Pod is known. A rule for egress with a named port and an `ipBlock` therefore allows no address.
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
    """Description of a Pod for policies.

    `key` is unique among the Pods of a check. `named_ports` has the protocol and the number of each named port.
    Two containers can use the same name, so a name can have several ports.
    """

    key: str
    namespace: str
    labels: Mapping[str, str]
    named_ports: Mapping[str, frozenset[tuple[str, int]]]


@dataclass(frozen=True, slots=True)
class Network:
    """Policies in force, the labels of all namespaces, and the Pods that might be peers."""

    policies: tuple[Policy, ...]
    namespaces: Mapping[str, Mapping[str, str]]
    pods: tuple[Pod, ...]


@dataclass(frozen=True, slots=True)
class Ports:
    """A set of ports by protocol. A protocol without ports is left out, so that equal sets compare as equal."""

    by_protocol: tuple[tuple[str, Intervals], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.by_protocol)

    def of(self, protocol: str) -> Intervals:
        """Return the port numbers of one protocol."""
        return dict(self.by_protocol).get(protocol, Intervals())

    def union(self, other: Ports) -> Ports:
        """Return the ports that are in this set or in `other`."""
        return _ports({each: self.of(each).union(other.of(each)) for each in PROTOCOLS})

    def common(self, other: Ports) -> Ports:
        """Return the ports that are in both sets."""
        return _ports({each: self.of(each).common(other.of(each)) for each in PROTOCOLS})

    def minus(self, other: Ports) -> Ports:
        """Return the ports that are in this set and not in `other`."""
        return _ports({each: self.of(each).minus(other.of(each)) for each in PROTOCOLS})


ALL_PORTS = Ports(tuple((each, _ALL) for each in sorted(PROTOCOLS)))


@dataclass(frozen=True, slots=True)
class Reach:
    """Permissions of one Pod in one direction.

    Equal permissions compare as equal, even if the rules of the policies have different forms. `policies` are the names
    of the policies that apply to this direction. If `policies` is empty, everything is allowed. `pods` has the key and
    the ports of each permitted Pod. Each item of `addresses` has a protocol, the first and the last port, and the
    permitted addresses.
    """

    policies: tuple[str, ...]
    pods: tuple[tuple[str, Ports], ...]
    addresses: tuple[tuple[str, int, int, Addresses], ...]

    def ports_of(self, key: str) -> Ports:
        """Return the ports of the permitted connections with the Pod `key`."""
        return dict(self.pods).get(key, Ports())

    def addresses_beside(self, ports: Ports) -> Addresses:
        """Return the addresses that are permitted for at least one port that is not in `ports`."""
        found = Addresses()
        for protocol, low, high, addresses in self.addresses:
            if Intervals.of([(low, high)]).minus(ports.of(protocol)):
                found = found.union(addresses)
        return found


def reach(network: Network, pod: Pod, direction: Direction) -> Reach:
    """Return the permissions of a Pod in one direction. `network` need not contain the Pod."""
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
    """Return the part of `ports` at which `source` can connect to `target`.

    Both the egress of `source` and the ingress of `target` must allow the port. Peers with addresses are ignored.
    """
    both = Network(network.policies, network.namespaces, (source, target))
    out = reach(both, source, Direction.EGRESS).ports_of(target.key)
    return out.common(reach(both, target, Direction.INGRESS).ports_of(source.key)).common(ports)


def ruled_by(policies: Sequence[Policy], pod: Pod, direction: Direction) -> list[Policy]:
    """Return the policies that select a Pod and apply to a direction."""
    return [each for each in policies if each.rules(direction) is not None and each.selects(pod.namespace, pod.labels)]


def rule_names_pod(network: Network, policy: Policy | None, rule: Rule, other: Pod) -> bool:
    """Return whether a rule covers a Pod: one of the rule's peers selects the Pod, or the rule covers every peer."""
    return rule.peers is None or any(
        peer_names_pod(network, policy, peer, other) for peer in rule.peers if policy is not None
    )


def peer_names_pod(network: Network, policy: Policy | None, peer: Peer, other: Pod) -> bool:
    """Return whether a peer selects a Pod by labels. A peer with addresses selects no Pod."""
    if peer.addresses is not None or policy is None:
        return False
    if peer.namespaces is None:
        if other.namespace != policy.namespace:
            return False
    elif not peer.namespaces.matches(labels_of_namespace(network, other.namespace)):
        return False
    return peer.pods is None or peer.pods.matches(other.labels)


def labels_of_namespace(network: Network, name: str) -> Mapping[str, str]:
    """Return the labels of a namespace, including `kubernetes.io/metadata.name`, which the API server adds."""
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
    """Return the ports that rules allow at a receiver. If `receiver` is None, named ports are ignored."""
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
    named = receiver.named_ports.get(rule.name, frozenset()) if receiver else frozenset()
    return Intervals.of([(number, number) for protocol, number in named if protocol == rule.protocol])


def _ports(by_protocol: Mapping[str, Intervals]) -> Ports:
    return Ports(tuple((each, by_protocol[each]) for each in sorted(by_protocol) if by_protocol[each]))


def _canonical(spans: Sequence[tuple[str, int, int, Addresses]]) -> tuple[tuple[str, int, int, Addresses], ...]:
    """Return the same permissions in a unique form.

    Each port occurs once, and adjacent ports with the same addresses form one range.
    """
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

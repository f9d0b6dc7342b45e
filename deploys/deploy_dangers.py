"""Dangers of network policies for one runner Pod.

Network plugins differ in whether an `ipBlock` covers a Pod with an address in the block. The checks assume the worse
case. A stamped Pod must not reach web, so an `ipBlock` with an address of web is treated as access to web. An idle Pod
must reach web, so an `ipBlock` is not treated as access to web's Pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from deploys.addresses import PRIVATE, Addresses
from deploys.deploys import WAIT_FOR_JOBS, Danger, Refusal
from deploys.intervals import Intervals
from deploys.manifests import HOOK_OF_LABEL, OWNER_LABEL, POOL_LABEL, Manifests, Workload
from deploys.network_policies import Direction, Policy
from deploys.network_reach import ALL_PORTS, Network, Pod, Ports, Reach, may_connect, peer_names_pod, reach, ruled_by

_DNS = Ports(tuple((each, Intervals.of([(53, 53), (5353, 5353)])) for each in ("TCP", "UDP")))
_SHOWN = 4  # maximum number of names in one sentence


@dataclass(frozen=True, slots=True)
class Seen:
    """Permissions of a Pod after the deploy. The peers include Pods from before and from after the deploy."""

    network: Network
    pod: Pod
    egress: Reach
    ingress: Reach


def observe(network: Network, pod: Pod) -> Seen:
    """Return the permissions of a Pod in both directions."""
    return Seen(network, pod, reach(network, pod, Direction.EGRESS), reach(network, pod, Direction.INGRESS))


def changed(before: Manifests, after: Manifests, pod: Pod, runners: Sequence[Pod]) -> list[Refusal]:
    """Return refusals for the changes that the deploy makes for a stamped Pod.

    If the peers of a direction, their ports or their label selectors change, the result is one refusal, for the first
    such direction. Otherwise the result has one refusal for each new, rewritten or deleted policy that selects the Pod.
    `runners` are the runner Pods and hook Pods of the check. They are the same before and after the deploy.
    """
    for direction in Direction:
        was = reach(_network(before, after, runners), pod, direction)
        will = reach(_network(after, before, runners), pod, direction)
        same = (bool(was.policies), was.pods, was.addresses) == (bool(will.policies), will.pods, will.addresses)
        if same and _by_labels(before.policies, pod, direction) == _by_labels(after.policies, pod, direction):
            continue
        told = (
            "the label selectors or the ports of its rules are different, and the manifests might not contain all "
            "selected Pods"
            if same
            else _describe_reach(was, will)
        )
        reason = f"{direction} of stamped Pods changes: {told}."
        return [
            Refusal(
                Danger.PEERS_CHANGE, (), reason, f"Do not change policies that select stamped Pods. {WAIT_FOR_JOBS}"
            )
        ]
    old = {each.name: each.text for each in before.policies if each.selects(pod.namespace, pod.labels)}
    new = {each.name: each.text for each in after.policies if each.selects(pod.namespace, pod.labels)}
    cure = f"Do not change the policy, its labels or its annotations, and put no version into them. {WAIT_FOR_JOBS}"
    return [
        Refusal(
            Danger.POLICY_REWRITTEN,
            (),
            f"Policy {name}, which selects stamped Pods, {_describe_write(name, old, new)}. The peers stay the same, "
            "but the network plugin computes the rules of every such Pod again.",
            cure,
        )
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]


def not_ruled(seen: Seen) -> Iterable[Refusal]:
    """Yield a refusal for each direction without a policy that applies to the Pod.

    All traffic is allowed in such a direction.
    """
    for direction, found in ((Direction.EGRESS, seen.egress), (Direction.INGRESS, seen.ingress)):
        if not found.policies:
            yield Refusal(
                Danger.NOT_RULED,
                (),
                f"No policy controls {direction.lower()} of stamped Pods, so everything is allowed.",
                f"In the namespace of the pool, add a policy that selects every Pod with the label {POOL_LABEL} or, "
                f"for hook Pods, {HOOK_OF_LABEL}.",
            )


def open_ingress(seen: Seen) -> Iterable[Refusal]:
    """Yield a refusal if a policy lets clients connect to the Pod.

    Any ingress rule counts, because the rule might also allow Pods that the manifests do not contain.
    """
    if any(each.ingress for each in ruled_by(seen.network.policies, seen.pod, Direction.INGRESS)):
        reason = f"Stamped Pods accept connections under {_policies(seen.ingress)}."
        yield Refusal(
            Danger.OPEN_INGRESS, (), reason, "No client needs to connect to a stamped Pod: remove all ingress rules."
        )


def private_egress(seen: Seen, allowed: Addresses) -> Iterable[Refusal]:
    """Yield a refusal if the Pod can reach private addresses outside `allowed`.

    Access at the ports of DNS is ignored. If no policy applies to egress, nothing is yielded, because `not_ruled`
    yields a refusal.
    """
    if not seen.egress.policies:
        return
    private = seen.egress.addresses_beside(_DNS).common(PRIVATE).minus(allowed)
    if private:
        yield Refusal(
            Danger.PRIVATE_EGRESS,
            (),
            f"Under {_policies(seen.egress)}, stamped Pods can reach private addresses: {_some(private.cidrs())}.",
            (
                "Exclude these addresses from the ipBlock of the policy. If jobs need a private block, allow it with "
                "--allow-private BLOCK."
            ),
        )


def rolling_in(network: Network, rolling: Sequence[Pod]) -> dict[Policy, tuple[str, ...]]:
    """Return each policy that has peers in `rolling`, with the keys of these peers.

    `rolling` are Pods that deploys or jobs replace. Only peers that are selected by labels count.
    """
    found: dict[Policy, tuple[str, ...]] = {}
    for policy in network.policies:
        peers = [peer for rule in (*(policy.ingress or ()), *(policy.egress or ())) for peer in rule.peers or ()]
        named = {pod.key for pod in rolling if any(peer_names_pod(network, policy, each, pod) for each in peers)}
        if named:
            found[policy] = tuple(sorted(named))
    return found


def rolling_peers(seen: Seen, rolling: Mapping[Policy, tuple[str, ...]]) -> Iterable[Refusal]:
    """Yield a refusal for each policy that selects the Pod and has peers that deploys or jobs replace.

    `rolling` is the result of `rolling_in`.
    """
    for policy, named in rolling.items():
        if policy.selects(seen.pod.namespace, seen.pod.labels):
            yield Refusal(
                Danger.ROLLING_PEER,
                (),
                f"Policy {policy.name} selects stamped Pods, and deploys or jobs replace some of its peers: "
                f"{_some(named)}. When such a peer is created or deleted, the network plugin computes the rules of all "
                "selected Pods again, and connections of running jobs might break.",
                f"Move those peers into a policy that selects only Pods without the label {OWNER_LABEL}.",
            )


def reaching_web(seen: Seen, web: Iterable[Workload], addresses: Addresses) -> Iterable[Refusal]:
    """Yield a refusal if a stamped Pod can reach web's Pods or one of `addresses`.

    The ingress policies of web are not considered. If no policy applies to egress, nothing is yielded, because
    `not_ruled` yields a refusal.
    """
    if not seen.egress.policies:
        return
    ways = [f"as {each.pod.key}" for each in web if seen.egress.ports_of(each.pod.key).common(each.ports or ALL_PORTS)]
    ways += [f"at {each}" for each in seen.egress.addresses_beside(_DNS).common(addresses).cidrs()]
    if ways:
        yield Refusal(
            Danger.BUSY_REACHES_WEB,
            (),
            f"Under {_policies(seen.egress)}, stamped Pods can reach web {_some(ways)}.",
            "Allow only Pods without the owner label to reach web. Exclude web's addresses from public egress "
            "(networkPolicies.webAddresses of the chart).",
        )


def missing_web(seen: Seen, web: Iterable[Workload]) -> Iterable[Refusal]:
    """Yield a refusal if web has a Pod that an idle Pod cannot reach.

    During a rollout, both the old and the new Pods of web exist.
    """
    missing = [
        each.pod.key for each in web if not may_connect(seen.network, seen.pod, each.pod, ports=each.ports or ALL_PORTS)
    ]
    if missing:
        yield Refusal(
            Danger.IDLE_MISSES_WEB,
            (),
            f"Idle Pods cannot reach {_some(missing)}. The idle Pods would get no job, permanently or while web rolls.",
            (
                "Add a policy that selects Pods without the owner label and allows egress to web. Select web by labels "
                "that no deploy changes. Web's own policies must allow connections from these Pods."
            ),
        )


def _network(manifests: Manifests, other: Manifests, runners: Sequence[Pod]) -> Network:
    namespaces = {**other.namespaces, **manifests.namespaces}
    return Network(manifests.policies, namespaces, (*(each.pod for each in manifests.workloads), *runners))


def _by_labels(policies: Iterable[Policy], pod: Pod, direction: Direction) -> frozenset[object]:
    """Return the label selectors of all peers of a Pod in one direction, each with its ports.

    The selectors also cover peers outside the manifests, such as the Pods of DNS.
    """
    return frozenset(
        (
            None if peer.namespaces else policy.namespace,
            None if peer.pods is None else frozenset(peer.pods.requirements),
            None if peer.namespaces is None else frozenset(peer.namespaces.requirements),
            None if rule.ports is None else frozenset(rule.ports),
        )
        for policy in policies
        if policy.selects(pod.namespace, pod.labels)
        for rule in policy.rules(direction) or ()
        for peer in rule.peers or ()
        if peer.addresses is None
    )


def _describe_write(name: str, old: Mapping[str, str], new: Mapping[str, str]) -> str:
    if name not in old:
        return "is new"
    return "is rewritten" if name in new else "is deleted"


def _describe_reach(was: Reach, will: Reach) -> str:
    if not was.policies or not will.policies:
        return (
            "no policy controlled it before, and one does now"
            if will.policies
            else "a policy controlled it before, and none does now"
        )
    told: list[str] = []
    for word, one, two in (("gained", was, will), ("lost", will, was)):
        pods = [key for key, ports in two.pods if ports.minus(one.ports_of(key))]
        addresses = two.addresses_beside(Ports()).minus(one.addresses_beside(Ports())).cidrs()
        if pods or addresses:
            told.append(f"{word} {_some((*pods, *addresses))}")
    return "; ".join(told) or "other ports at the same addresses"


def _policies(found: Reach) -> str:
    word = "policy" if len(found.policies) == 1 else "policies"
    return f"{word} {' and '.join(found.policies)}"


def _some(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return f"{', '.join(names[:_SHOWN])} and {more} more" if more > 0 else ", ".join(names)

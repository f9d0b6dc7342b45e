"""NetworkPolicies (networking.k8s.io/v1) as records, with every default of the API filled in.

If `policyTypes` does not contain a direction, the policy does not apply to this direction, even if it has rules for the
direction.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from deploys.addresses import Addresses, block
from deploys.selectors import Malformed, Selector, parse_selector

PROTOCOLS = ("TCP", "UDP", "SCTP")
LAST_PORT = 65535

_WRITTEN_BY_TOOLS = (
    "meta.helm.sh/",  # Helm, when it installs
    "kubectl.kubernetes.io/last-applied-configuration",
    "app.kubernetes.io/managed-by",  # Helm, when it installs
)
"""Prefixes of labels and annotations that tools add to a live object. Comparisons of policies ignore them."""


class Direction(StrEnum):
    """Direction of traffic, from the view of the Pod that a policy selects."""

    INGRESS = "Ingress"
    EGRESS = "Egress"


@dataclass(frozen=True, slots=True)
class PortRule:
    """Ports of one protocol.

    `numbers` is a closed range. `name` is the name of a port of the receiving Pod. If `numbers` and `name` are None,
    the rule allows every port.
    """

    protocol: str
    numbers: tuple[int, int] | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Peer:
    """Peer of a rule: either `addresses`, or Pods that are selected by their labels and namespaces.

    If `namespaces` is None, the peer selects Pods in the namespace of the policy. If `pods` is None, the peer selects
    every Pod in the selected namespaces.
    """

    pods: Selector | None = None
    namespaces: Selector | None = None
    addresses: Addresses | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """Traffic that a policy allows.

    If `peers` is None, every peer is allowed. If `ports` is None, every port is allowed.
    """

    peers: tuple[Peer, ...] | None
    ports: tuple[PortRule, ...] | None


@dataclass(frozen=True, slots=True)
class Policy:
    """One NetworkPolicy.

    `ingress` is None if the policy does not apply to ingress, and empty if the policy allows no ingress. The same
    applies to `egress`. `text` contains all fields that a deploy can write. If the texts of two versions differ, a
    deploy writes the object again.
    """

    namespace: str
    name: str
    selector: Selector
    ingress: tuple[Rule, ...] | None
    egress: tuple[Rule, ...] | None
    text: str

    def rules(self, direction: Direction) -> tuple[Rule, ...] | None:
        """Return the rules for a direction, or None if the policy does not apply to this direction."""
        return self.ingress if direction is Direction.INGRESS else self.egress

    def selects(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Return whether the policy selects a Pod with these labels in this namespace."""
        return namespace == self.namespace and self.selector.matches(labels)


def parse_policy(given: Mapping[str, Any], *, namespace: str) -> Policy:
    """Return a policy from its JSON. If the policy names no namespace, `namespace` is used.

    Raises `Malformed` if the policy is malformed. The message names the object and the field.
    """
    metadata = given.get("metadata") or {}
    where = f"NetworkPolicy {metadata.get('namespace') or namespace}/{metadata.get('name')}: spec"
    spec = given.get("spec")
    if not isinstance(spec, Mapping):
        raise Malformed(f"{where} is missing")
    types = spec.get("policyTypes")
    if types is None or types == []:  # the API server fills in an empty list too
        types = ["Ingress", *(["Egress"] if spec.get("egress") else [])]
    if not isinstance(types, list) or not set(types) <= set(Direction):
        raise Malformed(f"{where}.policyTypes is {types!r}, not a list of Ingress or Egress")

    def rules(direction: Direction, field: str, peers: str) -> tuple[Rule, ...] | None:
        if direction not in types:
            return None
        return tuple(
            _rule(each, peers, f"{where}.{field}[{index}]")
            for index, each in enumerate(_list(spec.get(field), f"{where}.{field}"))
        )

    return Policy(
        namespace=str(metadata.get("namespace") or namespace),
        name=str(metadata.get("name")),
        selector=parse_selector(spec.get("podSelector") or {}, where=f"{where}.podSelector"),
        ingress=rules(Direction.INGRESS, "ingress", "from"),
        egress=rules(Direction.EGRESS, "egress", "to"),
        text=_text_of(metadata, spec),
    )


def _text_of(metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> str:
    """Return all fields that a deploy can write, as text.

    Only labels and annotations are read from the metadata, without those of tools. Defaults are filled in. A rendered
    policy and the live object of this policy therefore have the same text.
    """

    def listed(field: str) -> dict[str, Any]:
        return {k: v for k, v in (metadata.get(field) or {}).items() if not k.startswith(_WRITTEN_BY_TOOLS)}

    def spelt(rule: Mapping[str, Any]) -> dict[str, Any]:
        return {**rule, "ports": [{"protocol": "TCP", **port} for port in rule.get("ports") or []]}

    said = {
        "podSelector": spec.get("podSelector") or {},
        "policyTypes": spec.get("policyTypes") or ["Ingress", *(["Egress"] if spec.get("egress") else [])],
        **{field: [spelt(rule) for rule in spec.get(field) or []] for field in ("ingress", "egress")},
    }
    return json.dumps([listed("labels"), listed("annotations"), said], sort_keys=True, default=str)


def _rule(given: Any, peers_field: str, where: str) -> Rule:
    if not isinstance(given, Mapping):
        raise Malformed(f"{where} is not an object")
    unknown = set(given) - {peers_field, "ports"}
    if unknown:
        raise Malformed(f"{where} has the unknown field {min(unknown)!r}")
    peers = _list(given.get(peers_field), f"{where}.{peers_field}")
    ports = _list(given.get("ports"), f"{where}.ports")
    return Rule(
        peers=tuple(_peer(each, f"{where}.{peers_field}[{index}]") for index, each in enumerate(peers)) or None,
        ports=tuple(_port(each, f"{where}.ports[{index}]") for index, each in enumerate(ports)) or None,
    )


def _peer(given: Any, where: str) -> Peer:
    if not isinstance(given, Mapping) or not given or set(given) - {"podSelector", "namespaceSelector", "ipBlock"}:
        raise Malformed(f"{where} must have podSelector, namespaceSelector or ipBlock, and nothing else")
    pods, namespaces, ip_block = (given.get(each) for each in ("podSelector", "namespaceSelector", "ipBlock"))
    if ip_block is not None:
        if pods is not None or namespaces is not None:
            raise Malformed(f"{where}: ipBlock must not be combined with another field")
        return Peer(addresses=_addresses(ip_block, f"{where}.ipBlock"))
    return Peer(
        pods=None if pods is None else parse_selector(pods, where=f"{where}.podSelector"),
        namespaces=None if namespaces is None else parse_selector(namespaces, where=f"{where}.namespaceSelector"),
    )


def _addresses(given: Any, where: str) -> Addresses:
    if not isinstance(given, Mapping) or not isinstance(given.get("cidr"), str):
        raise Malformed(f"{where}.cidr is missing")
    whole = found = _block(given["cidr"], where)
    for each in _list(given.get("except"), f"{where}.except"):
        cut = _block(str(each), where)
        if cut.minus(whole):
            raise Malformed(f"{where}: {each} is not within {given['cidr']}; correct or remove this exception")
        found = found.minus(cut)
    return found


def _block(cidr: str, where: str) -> Addresses:
    try:
        return block(cidr)
    except ValueError as error:
        raise Malformed(f"{where}: {error}") from None


def _port(given: Any, where: str) -> PortRule:
    if not isinstance(given, Mapping):
        raise Malformed(f"{where} is not an object")
    protocol, port, last = given.get("protocol") or "TCP", given.get("port"), given.get("endPort")
    if protocol not in PROTOCOLS:
        raise Malformed(f"{where}.protocol is {protocol!r}, not one of {', '.join(PROTOCOLS)}")
    if last is not None and not isinstance(port, int):
        raise Malformed(f"{where}: endPort needs a numeric port; set port to a number, or remove endPort")
    if port is None:
        return PortRule(protocol)
    if isinstance(port, str):
        if port.isdecimal():
            raise Malformed(f"{where}.port is the string {port!r}; write a number without quotes")
        return PortRule(protocol, name=port)
    high = port if last is None else last
    if not (isinstance(port, int) and isinstance(high, int) and 1 <= port <= high <= LAST_PORT):
        raise Malformed(
            f"{where}: there is no port range from {port!r} to {high!r}; write ascending numbers from 1 to {LAST_PORT}"
        )
    return PortRule(protocol, numbers=(port, high))


def _list(given: Any, where: str) -> list[Any]:
    if given is None:
        return []
    if not isinstance(given, list):
        raise Malformed(f"{where} is not a list")
    return given

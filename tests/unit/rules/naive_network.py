"""A second evaluator of NetworkPolicies, slow and simple: one connection at a time, from the original JSON.

It shares no code with `rules/`. A connection is from or to a Pod (its JSON) or an address (a text).
"""

from __future__ import annotations

import ipaddress
from typing import Any

Json = dict[str, Any]
End = Json | str


def allowed(
    policies: list[Json],
    namespaces: dict[str, dict[str, str]],
    pod: Json,
    other: End,
    *,
    egress: bool,
    at: tuple[str, int],
) -> bool:
    """Return whether the policies of `pod` allow the connection.

    It goes from `pod` to `other` (egress), or from `other` to `pod`, with this protocol and port.
    """
    direction = "Egress" if egress else "Ingress"
    mine = [p for p in policies if rules_direction(p, direction) and selects(p, pod)]
    if not mine:
        return True
    receiver = other if egress else pod
    for policy in mine:
        for rule in policy["spec"].get(direction.lower()) or []:
            peers = rule.get("to" if egress else "from") or []
            if peers and not any(is_peer(each, policy, namespaces, other) for each in peers):
                continue
            ports = rule.get("ports") or []
            if not ports or any(is_port(each, receiver, at) for each in ports):
                return True
    return False


def rules_direction(policy: Json, direction: str) -> bool:
    types = policy["spec"].get("policyTypes")
    if types:  # the API server fills in an empty list too
        return direction in types
    return direction == "Ingress" or bool(policy["spec"].get("egress"))


def selects(policy: Json, pod: Json) -> bool:
    return policy["metadata"]["namespace"] == pod["namespace"] and fits(policy["spec"]["podSelector"], pod["labels"])


def fits(selector: Json, labels: dict[str, str]) -> bool:
    for key, value in (selector.get("matchLabels") or {}).items():
        if labels.get(key) != value:
            return False
    for each in selector.get("matchExpressions") or []:
        key, operator, values = each["key"], each["operator"], each.get("values")
        if operator == "Exists" and key not in labels:
            return False
        if operator == "DoesNotExist" and key in labels:
            return False
        if operator == "In" and (key not in labels or labels[key] not in values):
            return False
        if operator == "NotIn" and key in labels and labels[key] in values:
            return False
    return True


def is_peer(peer: Json, policy: Json, namespaces: dict[str, dict[str, str]], other: End) -> bool:
    if isinstance(other, str) != ("ipBlock" in peer):
        return False
    if isinstance(other, str):
        address = ipaddress.ip_address(other)
        if address not in ipaddress.ip_network(peer["ipBlock"]["cidr"]):
            return False
        return all(address not in ipaddress.ip_network(each) for each in peer["ipBlock"].get("except") or [])
    if "namespaceSelector" in peer:
        if not fits(peer["namespaceSelector"], namespaces[other["namespace"]]):
            return False
    elif other["namespace"] != policy["metadata"]["namespace"]:
        return False
    return "podSelector" not in peer or fits(peer["podSelector"], other["labels"])


def is_port(rule: Json, receiver: End, at: tuple[str, int]) -> bool:
    protocol, number = at
    if rule.get("protocol", "TCP") != protocol:
        return False
    port = rule.get("port")
    if port is None:
        return True
    if isinstance(port, str):
        if isinstance(receiver, str):
            return False
        return bool(receiver["ports"].get(port) == (protocol, number))
    first: int = port
    last: int = rule.get("endPort", first)
    return first <= number <= last

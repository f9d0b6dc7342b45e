"""Parsed NetworkPolicies: the effects of a change, and the place of an error."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from deploys.network_policies import Direction, Policy, parse_policy
from deploys.network_reach import Network, Pod, reach
from deploys.selectors import Malformed

Json = dict[str, Any]


def parsed(spec: Any, **metadata: Any) -> Policy:
    return parse_policy({"metadata": {"name": "p", **metadata}, "spec": spec}, namespace="home")


def text(spec: Json, **metadata: Any) -> str:
    return parsed(spec, **metadata).text


PORT = {"egress": [{"ports": [{"port": 80}]}]}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [], "egress": None}),
        (PORT, {"policyTypes": ["Ingress", "Egress"], "egress": [{"ports": [{"port": 80, "protocol": "TCP"}]}]}),
        ({"ingress": [{}]}, {"ingress": [{"ports": []}]}),
        (PORT, {"policyTypes": [], **PORT}),
    ],
)
def test_a_policy_with_its_defaults_spelt_out_is_the_same_text(one: Json, other: Json) -> None:
    assert text(one) == text(other)


def test_empty_policy_types_mean_the_same_as_none() -> None:
    for spec in ({}, PORT):
        one, other = parsed(spec), parsed({**spec, "policyTypes": []})
        assert (one.ingress, one.egress) == (other.ingress, other.egress)
    assert parsed({"policyTypes": []}).ingress == ()


@pytest.mark.parametrize(
    "other",
    [
        {"podSelector": {"matchLabels": {"a": "b"}}},
        {"policyTypes": ["Egress"]},
        {"policyTypes": ["Ingress", "Egress"]},
        {"ingress": [{}]},
        PORT,
        {"egress": [{"ports": [{"port": 81}]}]},
        {"egress": [{"ports": [{"port": 80, "protocol": "UDP"}]}]},
        {"egress": [{"to": [{"podSelector": {}}]}]},
    ],
)
def test_whatever_a_policy_says_is_in_its_text(other: Json) -> None:
    texts = {text(each) for each in ({}, other)}
    assert len(texts) == 2
    everything = [{}, PORT, {"egress": [{"ports": [{"port": 81}]}]}, {"ingress": PORT["egress"]}]
    assert len({text(each) for each in everything}) == len(everything)


@pytest.mark.parametrize("kind", ["labels", "annotations"])
def test_policy_text_includes_annotations_by_people_and_excludes_those_by_tools(kind: str) -> None:
    plain = text({})
    assert text({}, **{kind: {"version": "2"}}) != plain
    for of_tools in (
        "meta.helm.sh/release-name",
        "app.kubernetes.io/managed-by",
        "kubectl.kubernetes.io/last-applied-configuration",
    ):
        assert text({}, **{kind: {of_tools: "x"}}) == plain
    assert text({}, labels={"a": "1"}) != text({}, annotations={"a": "1"})


def test_a_text_does_not_depend_on_the_order_of_fields() -> None:
    one = {"ingress": [{"from": [{"podSelector": {}}], "ports": [{"port": 1, "endPort": 2}]}]}
    other = {"ingress": [{"ports": [{"endPort": 2, "port": 1}], "from": [{"podSelector": {}}]}]}
    assert text(one, labels={"a": "1", "b": "2"}) == text(other, labels={"b": "2", "a": "1"})


def test_a_date_in_a_label_is_text() -> None:
    assert text({}, labels={"since": date(2026, 1, 1)}) == text({}, labels={"since": "2026-01-01"})


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (None, "^NetworkPolicy home/p: spec is missing"),
        ({"policyTypes": "Ingress"}, "spec.policyTypes is 'Ingress', not a list"),
        ({"policyTypes": ["ingress"]}, "spec.policyTypes is"),
        ({"ingress": {}}, "spec.ingress is not a list"),
        ({"ingress": [7]}, r"spec.ingress\[0\] is not an object"),
        ({"ingress": [{}, {"to": []}]}, r"spec.ingress\[1\] has the unknown field 'to'"),
        ({"egress": [{"to": {"podSelector": {}}}]}, r"spec.egress\[0\].to is not a list"),
        ({"egress": [{"ports": {"port": 80}}]}, r"spec.egress\[0\].ports is not a list"),
        ({"egress": [{"to": [{}]}]}, r"spec.egress\[0\].to\[0\] must have podSelector"),
        ({"egress": [{"to": [7]}]}, r"spec.egress\[0\].to\[0\] must have podSelector"),
        ({"egress": [{"to": [{"pods": {}}]}]}, r"to\[0\] must have podSelector, namespaceSelector or ipBlock"),
        (
            {"egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}]}]},
            r"to\[0\]: ipBlock must not be combined",
        ),
        (
            {"egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}, "namespaceSelector": {}}]}]},
            r"to\[0\]: ipBlock must not be comb",
        ),
        ({"egress": [{"to": [{"ipBlock": 7}]}]}, r"to\[0\].ipBlock.cidr is missing"),
        ({"egress": [{"to": [{"ipBlock": {}}]}]}, r"to\[0\].ipBlock.cidr is missing"),
        ({"egress": [{"to": [{"ipBlock": {"cidr": "here"}}]}]}, r"to\[0\].ipBlock: 'here'"),
        ({"egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": "x"}}]}]}, "ipBlock.except is not a list"),
        ({"egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/9"]}}]}]}, "11.0.0.0/9 is not w"),
        ({"egress": [{"to": [{"podSelector": 7}]}]}, r"to\[0\].podSelector is not an object"),
        ({"egress": [{"to": [{"namespaceSelector": 7}]}]}, r"to\[0\].namespaceSelector is not an object"),
        ({"podSelector": ["a"]}, "spec.podSelector is not an object"),
        ({"egress": [{"ports": [7]}]}, r"ports\[0\] is not an object"),
        ({"egress": [{"ports": [{"protocol": "tcp"}]}]}, r"ports\[0\].protocol is 'tcp', not one of TCP, UDP, SCTP"),
        ({"egress": [{"ports": [{"endPort": 9}]}]}, r"ports\[0\]: endPort needs a numeric port"),
        ({"egress": [{"ports": [{"port": "http", "endPort": 9}]}]}, r"ports\[0\]: endPort needs a numeric port"),
        ({"egress": [{"ports": [{"port": "80"}]}]}, r"ports\[0\].port is the string '80'"),
        ({"egress": [{"ports": [{"port": 0}]}]}, r"ports\[0\]: there is no port range from 0 to 0"),
        ({"egress": [{"ports": [{"port": 65536}]}]}, "there is no port range from 65536"),
        ({"egress": [{"ports": [{"port": 9, "endPort": 8}]}]}, "there is no port range from 9 to 8"),
        ({"egress": [{"ports": [{"port": 9, "endPort": "x"}]}]}, "there is no port range from 9 to 'x'"),
        ({"egress": [{"ports": [{"port": 1.5}]}]}, "there is no port range from 1.5"),
    ],
)
def test_what_the_api_server_refuses_is_named_with_its_place(spec: Any, message: str) -> None:
    with pytest.raises(Malformed, match=message):
        parsed(spec)


def test_a_policy_is_named_with_its_own_namespace() -> None:
    with pytest.raises(Malformed, match=r"^NetworkPolicy other/p: spec is missing"):
        parsed(None, namespace="other")
    assert (parsed({}, namespace="other").namespace, parsed({}).namespace, parsed({}).name) == ("other", "home", "p")


def test_the_last_port_is_a_port() -> None:
    assert parsed({"egress": [{"ports": [{"port": 1, "endPort": 65535}]}]}).egress


def test_what_is_reached_is_the_same_in_whatever_order_pods_are_known() -> None:
    subject = Pod("a", "home", {}, {})
    others = [Pod(key, "home", {}, {"http": frozenset({("TCP", 80)})}) for key in ("b", "c", "d")]
    named = {"egress": [{"to": [{"podSelector": {}}], "ports": [{"port": "http"}]}]}
    policies = (parsed({"policyTypes": ["Egress"], **named}),)
    found = [reach(Network(policies, {}, tuple(pods)), subject, Direction.EGRESS) for pods in (others, others[::-1])]
    assert found[0] == found[1]
    assert [key for key, _ in found[0].pods] == ["b", "c", "d"]


def test_neighbouring_ports_with_the_same_addresses_are_one_span() -> None:
    def to(cidr: str, *ports: tuple[int, int]) -> Json:
        given = [{"port": low, "endPort": high} for low, high in ports]
        return {"to": [{"ipBlock": {"cidr": cidr}}], "ports": given}

    def reached(*rules: Json) -> Any:
        policies = (parsed({"policyTypes": ["Egress"], "egress": list(rules)}),)
        return reach(Network(policies, {}, ()), Pod("a", "home", {}, {}), Direction.EGRESS)

    one, two = "192.0.2.0/24", "198.51.100.0/24"
    assert reached(to(one, (1, 9))) == reached(to(one, (1, 4), (5, 9))) == reached(to(one, (1, 6)), to(one, (4, 9)))
    assert reached(to(one, (1, 4), (6, 9))) != reached(to(one, (1, 9)))
    assert reached(to(one, (1, 4)), to(two, (5, 9))) != reached(to(one, (1, 9)))
    assert reached(to(one, (1, 9)), to(two, (4, 4))) != reached(to(one, (1, 9)), to(two, (4, 5)))
    assert reached(to(one, (1, 4), (6, 9))) != reached(to(one, (1, 4)))

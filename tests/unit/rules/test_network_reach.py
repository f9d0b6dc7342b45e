"""Network reach of a Pod, compared with a second evaluator that tries single connections."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploys.addresses import EVERYWHERE, Addresses, block, blocks
from deploys.intervals import Intervals
from deploys.network_policies import Direction, parse_policy
from deploys.network_reach import ALL_PORTS, Network, Pod, Ports, Reach, may_connect, reach
from deploys.selectors import Malformed
from tests.unit.rules import naive_network
from tests.unit.rules.network_strategies import ADDRESSES, NAMESPACES, PORTS, pod, policy, protocol

Json = dict[str, Any]


def as_pod(key: str, given_pod: Json) -> Pod:
    return Pod(
        key, given_pod["namespace"], given_pod["labels"], {k: frozenset({v}) for k, v in given_pod["ports"].items()}
    )


def has(found: Reach, end: str, at: tuple[str, int], *, is_pod: bool) -> bool:
    if is_pod:
        return at[1] in found.ports_of(end).of(at[0])
    wanted = block(end)
    return any(
        p == at[0] and low <= at[1] <= high and not wanted.minus(where) for p, low, high, where in found.addresses
    )


@settings(max_examples=200)
@given(st.lists(policy, min_size=1, max_size=3), st.lists(pod, min_size=1, max_size=3))
def test_it_agrees_with_the_evaluator_that_tries_each_connection(policies: list[Json], pods: list[Json]) -> None:
    network = Network(
        tuple(parse_policy(each, namespace="default") for each in policies),
        {name: {k: v for k, v in each.items() if k == "team"} for name, each in NAMESPACES.items()},
        tuple(as_pod(str(index), each) for index, each in enumerate(pods)),
    )
    subject = pods[0]
    ends: list[tuple[str, naive_network.End]] = [
        *((str(i), each) for i, each in enumerate(pods)),
        *zip(ADDRESSES, ADDRESSES, strict=True),
    ]
    for egress in (True, False):
        found = reach(network, as_pod("0", subject), Direction.EGRESS if egress else Direction.INGRESS)
        for name, other in ends:
            for at in product(("TCP", "UDP"), (*PORTS, 85)):
                expected = naive_network.allowed(policies, NAMESPACES, subject, other, egress=egress, at=at)
                assert has(found, name, at, is_pod=not isinstance(other, str)) == expected, (name, at, egress)


@given(st.lists(policy, max_size=3), pod, pod, protocol, st.sampled_from(PORTS))
def test_a_connection_needs_both_ends(policies: list[Json], one: Json, two: Json, by: str, number: int) -> None:
    parsed = tuple(parse_policy(each, namespace="default") for each in policies)
    network = Network(parsed, {name: {**each} for name, each in NAMESPACES.items()}, ())
    expected = all(
        naive_network.allowed(policies, NAMESPACES, mine, other, egress=egress, at=(by, number))
        for mine, other, egress in ((one, two, True), (two, one, False))
    )
    assert (number in may_connect(network, as_pod("one", one), as_pod("two", two)).of(by)) == expected


@given(st.lists(policy, max_size=3), pod)
def test_what_is_split_or_reordered_is_the_same(policies: list[Json], subject: Json) -> None:
    def found(given_policies: list[Json], direction: Direction) -> tuple[Any, Any]:
        parsed = tuple(parse_policy(each, namespace="default") for each in given_policies)
        seen = reach(Network(parsed, NAMESPACES, (as_pod("0", subject),)), as_pod("0", subject), direction)
        return seen.pods, seen.addresses

    halves = [
        {**each, "spec": {**_without(each), "policyTypes": _types(each), field: rules[start::2]}}
        for each in policies
        for start in (0, 1)
        for field, rules in (("ingress", each["spec"].get("ingress", [])), ("egress", each["spec"].get("egress", [])))
    ]
    for direction in Direction:
        assert found(policies, direction) == found(list(reversed(halves)), direction)


def _types(given_policy: Json) -> list[str]:
    spec = given_policy["spec"]
    default = ["Ingress", *(["Egress"] if spec.get("egress") else [])]
    return list(spec.get("policyTypes") or default)


def _without(given_policy: Json) -> Json:
    return {k: v for k, v in given_policy["spec"].items() if k not in {"ingress", "egress"}}


small = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=4).map(Intervals.of)


@given(small, small)
def test_ranges_are_sets(one: Intervals, two: Intervals) -> None:
    first, second = ({n for n in range(22) if n in each} for each in (one, two))
    for found, expected in (
        (one.union(two), first | second),
        (one.minus(two), first - second),
        (one.common(two), first & second),
    ):
        assert {n for n in range(22) if n in found} == expected
        assert Intervals.of(found.ranges) == found


def test_blocks_are_told_in_the_fewest_words() -> None:
    assert blocks(("10.0.0.0/9", "10.128.0.0/9", "::/1", "8000::/1")).cidrs() == ("10.0.0.0/8", "::/0")
    assert EVERYWHERE.minus(block("128.0.0.0/1")).cidrs() == ("0.0.0.0/1", "::/0")
    assert not Addresses()


def test_a_named_port_is_the_receivers_own_of_that_protocol() -> None:
    spec = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": [{"ports": [{"port": "http"}]}]}
    spec["egress"] = [{"ports": [{"port": "http"}, {"protocol": "UDP", "port": "http"}]}]
    one = Pod("one", "a", {}, {"http": frozenset({("TCP", 80)})})
    two = Pod("two", "a", {}, {"http": frozenset({("TCP", 8080)})})
    parsed = parse_policy({"metadata": {"name": "p", "namespace": "a"}, "spec": spec}, namespace="a")
    network = Network((parsed,), {}, (two,))
    assert reach(network, one, Direction.EGRESS).ports_of("two") == Ports((("TCP", Intervals.of([(8080, 8080)])),))
    assert reach(network, one, Direction.INGRESS).ports_of("two") == Ports((("TCP", Intervals.of([(80, 80)])),))
    assert reach(network, one, Direction.EGRESS).addresses == ()
    assert reach(network, one, Direction.INGRESS).addresses == (("TCP", 80, 80, EVERYWHERE),)


def test_a_pod_that_no_policy_selects_may_do_everything() -> None:
    lonely = Pod("p", "a", {}, {})
    found = reach(Network((), {}, (Pod("o", "b", {}, {}),)), lonely, Direction.EGRESS)
    assert found.policies == ()
    assert found.ports_of("o") == ALL_PORTS
    assert found.addresses_beside(Ports()) == EVERYWHERE


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"podSelector": {"matchLabels": {"a": 1}}}, "the value 1 is not a string"),
        ({"podSelector": {"matchLables": {}}}, "unknown field 'matchLables'"),
        ({"podSelector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}, "operator is 'Is'"),
        ({"podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}, "In needs values"),
        ({"podSelector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}}, "no values"),
        ({"podSelector": {}, "policyTypes": ["Exgress"]}, "policyTypes"),
        ({"podSelector": {}, "egress": [{"from": []}]}, "unknown field 'from'"),
        ({"podSelector": {}, "egress": [{"to": [{}]}]}, "podSelector, namespaceSelector or ipBlock"),
        ({"podSelector": {}, "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/33"}}]}]}, "10.0.0.0/33"),
        (
            {"podSelector": {}, "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/8"]}}]}]},
            "11.0.0.0/8 is not within",
        ),
        ({"podSelector": {}, "egress": [{"ports": [{"port": "80"}]}]}, "without quotes"),
        ({"podSelector": {}, "egress": [{"ports": [{"port": 80, "endPort": 79}]}]}, "from 80 to 79"),
        ({"podSelector": {}, "egress": [{"ports": [{"port": "http", "endPort": 79}]}]}, "endPort"),
        ({"podSelector": {}, "egress": [{"ports": [{"protocol": "ICMP"}]}]}, "'ICMP'"),
        ({"podSelector": {}, "egress": {}}, None),
        (None, "spec is missing"),
    ],
)
def test_what_the_api_would_refuse_is_named(spec: Any, said: str | None) -> None:
    given_policy = {"metadata": {"name": "p"}, "spec": spec}
    if said is None:
        parse_policy({"metadata": {"name": "p"}, "spec": {**spec, "egress": None}}, namespace="n")
        return
    with pytest.raises(Malformed) as raised:
        parse_policy(given_policy, namespace="n")
    assert said in str(raised.value)
    assert "NetworkPolicy n/p" in str(raised.value)

"""The lab's enforcer and the evaluator of the deploy checks agree about every connection. They share no code."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploys import manifests, network_policies, network_reach
from lab.node.policies.decisions import Direction, decide, read_namespaces, read_pods
from tests.unit.rules.network_strategies import ADDRESSES, NAMESPACES, PORTS, few, labels, policy

Json = dict[str, Any]

NAMESPACE_OBJECTS = [
    {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name, "labels": each}}
    for name, each in NAMESPACES.items()
]


def named_ports(*ports: tuple[str, str, int]) -> list[Json]:
    return [{"name": name, "protocol": protocol, "containerPort": number} for name, protocol, number in ports]


containers = st.lists(
    st.sampled_from(
        (
            {},
            {"ports": named_ports(("http", "TCP", 80))},
            {"ports": [{"name": "http", "containerPort": 100}]},
            {"ports": named_ports(("http", "TCP", 443), ("dns", "UDP", 53))},
            {"ports": named_ports(("dns", "TCP", 53))},
        )
    ),
    min_size=1,
    max_size=2,
)
init_containers = st.sampled_from(
    (
        [],
        [{"ports": named_ports(("http", "TCP", 81))}],
        [{"ports": named_ports(("http", "TCP", 81)), "restartPolicy": "Always"}],
    )
)
pod = st.builds(
    lambda namespace, its_labels, its_containers, before: {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"namespace": namespace, "labels": its_labels},
        "spec": {"containers": its_containers, "initContainers": before},
    },
    st.one_of(few, few, st.just("c")),
    labels,
    containers,
    init_containers,
)


def at_address(reach: network_reach.Reach, address: str, protocol: str, port: int) -> bool:
    number, is_v4 = int(ipaddress.ip_address(address)), "." in address
    return any(
        its_protocol == protocol and first <= port <= last and number in (addresses.v4 if is_v4 else addresses.v6)
        for its_protocol, first, last, addresses in reach.addresses
    )


def disagreements(policies: list[Json], pods: list[Json]) -> list[str]:
    """Return each connection that one evaluator allows and the other does not."""
    policies = [
        {
            **each,
            "kind": "NetworkPolicy",
            "apiVersion": "networking.k8s.io/v1",
            "metadata": {**each["metadata"], "name": f"p{index}"},
        }
        for index, each in enumerate(policies)
    ]
    pods = [
        {**each, "metadata": {**each["metadata"], "name": str(index), "uid": str(index)}}
        for index, each in enumerate(pods)
    ]
    decisions = decide(policies, read_pods(pods), read_namespaces(NAMESPACE_OBJECTS))

    read = manifests.read_manifests([*policies, *pods, *NAMESPACE_OBJECTS], namespace="default")
    theirs = {each.pod.key.rpartition("/")[2]: each.pod for each in read.workloads}
    network = network_reach.Network(read.policies, read.namespaces, tuple(theirs.values()))

    found = []
    for (subject, itself), direction in product(theirs.items(), Direction):
        reach = network_reach.reach(network, itself, network_policies.Direction(direction.value))
        for protocol, port in product(("TCP", "UDP", "SCTP"), (*PORTS, 85)):
            allowed = {name: port in reach.ports_of(peer.key).of(protocol) for name, peer in theirs.items()}
            allowed |= {address: at_address(reach, address, protocol, port) for address in ADDRESSES}
            for peer, expected in allowed.items():
                is_pod = peer in theirs
                ours = decisions.allow(
                    subject,
                    direction,
                    protocol=protocol,
                    port=port,
                    uid=peer if is_pod else None,
                    address=None if is_pod else ipaddress.ip_address(peer),
                )
                if ours != expected:
                    found.append(f"{direction} of Pod {subject}, {peer}, {protocol} {port}: deploys says {expected}")
    return found


@settings(max_examples=150, deadline=None)
@given(st.lists(policy, min_size=1, max_size=3), st.lists(pod, min_size=1, max_size=3))
def test_lab_and_deploy_checks_agree_about_every_connection(policies: list[Json], pods: list[Json]) -> None:
    assert disagreements(policies, pods) == []


def a_pod(*its_containers: Json, before: Sequence[Json] = ()) -> Json:
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"namespace": "a", "labels": {}},
        "spec": {"containers": [*its_containers], "initContainers": [*before]},
    }


def a_policy(**spec: Any) -> Json:
    return {"metadata": {"namespace": "a", "name": "p"}, "spec": {"podSelector": {}, **spec}}


@pytest.mark.parametrize(
    ("spec", "subject"),
    [
        ({"policyTypes": []}, a_pod({})),
        (
            {"ingress": [{"ports": [{"port": "dns", "protocol": "UDP"}]}]},
            a_pod({"ports": named_ports(("dns", "UDP", 53))}, {"ports": named_ports(("dns", "TCP", 53))}),
        ),
        (
            {"ingress": [{"ports": [{"port": "http"}]}]},
            a_pod({}, before=[{"ports": named_ports(("http", "TCP", 81))}]),
        ),
    ],
    ids=["empty policyTypes", "port name of two containers", "port of an init container"],
)
def test_lab_and_deploy_checks_agree_where_they_once_did_not(spec: Json, subject: Json) -> None:
    assert disagreements([a_policy(**spec)], [subject]) == []

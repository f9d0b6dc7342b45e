"""Packets under random policies agree with the evaluator of the deploy checks.

The Pods are bare network namespaces on a bridge, because a hundred rule sets for real Pods would take an hour.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import permutations, product
from typing import Any
from urllib.request import urlopen

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from deploys.manifests import read_manifests
from deploys.network_reach import Network, may_connect
from lab.node.namespace import is_isolated
from lab.node.policies.decisions import decide, read_namespaces, read_pods
from lab.node.policies.enforcer import apply_rules
from lab.node.policies.ruleset import NO_TABLE, Mode, PodNetwork, write_rules
from tests.node import pod_agent
from tests.unit.rules.network_strategies import NAMESPACES, few, labels, policy
from tests.waiting import eventually

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]

Json = dict[str, Any]

NETWORK = PodNetwork(bridge="random0", addresses="10.201.0.0/24")
ADDRESSES = {"one": "10.201.0.2", "two": "10.201.0.3", "three": "10.201.0.4"}
SERVED = (("tcp", 8080), ("tcp", 8081), ("udp", 53))
NUMBERS = {1: 8080, 80: 8080, 81: 8081, 443: 8081, 100: 8081, 65535: 8080}
"""Ports of the random policies, and the served ports that replace them."""

PORTS: tuple[list[Json], ...] = (
    [],
    [{"name": "http", "containerPort": 8080}],
    [{"name": "dns", "protocol": "UDP", "containerPort": 53}, {"name": "http", "containerPort": 8081}],
)
random_pod = st.tuples(few, labels, st.sampled_from(PORTS))


@pytest.fixture(scope="module")
def bridge() -> Iterator[None]:
    """Yield while three network namespaces with agents are connected to a bridge."""
    if not is_isolated():
        pytest.fail("these tests need namespaces of their own: run `make test-node`", pytrace=False)
    ip("link", "add", NETWORK.bridge, "type", "bridge")
    ip("address", "add", "10.201.0.1/24", "dev", NETWORK.bridge)
    ip("link", "set", NETWORK.bridge, "up")
    agents = []
    try:
        for name, address in ADDRESSES.items():
            ip("netns", "add", name)
            ip("link", "add", f"v-{name}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", f"v-{name}", "master", NETWORK.bridge, "up")
            ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            for interface in ("eth0", "lo"):
                ip("-n", name, "link", "set", interface, "up")
            ports = (str(port) for protocol, port in SERVED if protocol == "tcp")
            command = ["ip", "netns", "exec", name, sys.executable, str(pod_agent.__file__), *ports]
            agents.append(subprocess.Popen(command, env={**os.environ, "TIMEOUT": "0.6"}))
        for name in ADDRESSES:
            eventually(partial(answers, name), f"the agent of {name} does not answer", within=30)
        yield
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()
        for name in ADDRESSES:
            ip("netns", "delete", name)
        ip("link", "delete", NETWORK.bridge)
        apply_rules(NO_TABLE)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def answers(name: str) -> bool:
    try:
        return ask(name, name, *SERVED[0]) == "open"
    except OSError:
        return False


def ask(source: str, target: str, protocol: str, port: int) -> str:
    """Let the agent of `source` try a connection to `target`, and return its answer."""
    url = f"http://{ADDRESSES[source]}:{pod_agent.CONTROL_PORT}/{protocol}?host={ADDRESSES[target]}&port={port}"
    with urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def served(given_part: Any) -> Any:
    """Return a part of a policy with port numbers that the agents serve and without blocks of addresses.

    Plugins differ in whether an `ipBlock` matches Pods, so a peer that selects Pods replaces each block.
    """
    if isinstance(given_part, list):
        return [served(each) for each in given_part]
    if not isinstance(given_part, dict):
        return given_part
    if "ipBlock" in given_part:
        return {"podSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}}
    found = {key: served(value) for key, value in given_part.items()}
    if isinstance(found.get("port"), int):
        found["port"] = NUMBERS.get(found["port"], found["port"])
    if "endPort" in found:
        found["endPort"] = found["port"] + 1
    return found


@pytest.mark.usefixtures("bridge")
@settings(
    max_examples=40, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck), database=None
)
@given(st.lists(policy, min_size=1, max_size=3), st.tuples(random_pod, random_pod, random_pod))
def test_packets_agree_with_the_deploy_checks(policies: list[Json], pods: tuple[Any, ...]) -> None:
    numbered = enumerate(map(served, policies))
    policies = [{**each, "metadata": {**each["metadata"], "name": f"p{index}"}} for index, each in numbered]
    objects = [
        {
            "metadata": {"namespace": namespace, "name": name, "uid": name, "labels": its_labels},
            "spec": {"containers": [{"ports": ports}]},
            "status": {"podIP": ADDRESSES[name]},
        }
        for name, (namespace, its_labels, ports) in zip(ADDRESSES, pods, strict=True)
    ]
    namespaces: list[Json] = [{"metadata": {"name": name, "labels": each}} for name, each in NAMESPACES.items()]
    wanted = expected(policies, objects, namespaces)
    assume(len(set(wanted.values())) > 1)  # some attempts succeed, and some do not
    read = read_pods(objects)
    decisions = decide(policies, read, read_namespaces(namespaces))
    apply_rules(write_rules(decisions, read, networks=[NETWORK], mode=Mode.CUT))

    attempts = [(*ends, *at) for ends, at in product(permutations(ADDRESSES, 2), SERVED)]
    with ThreadPoolExecutor(len(attempts)) as threads:
        found = dict(zip(attempts, threads.map(lambda each: ask(*each), attempts), strict=True))
    assert found == wanted


def expected(policies: list[Json], objects: list[Json], namespaces: list[Json]) -> Mapping[tuple[Any, ...], str]:
    """Return the answer to each attempt, according to the evaluator of the deploy checks."""
    manifests = read_manifests(
        [
            *({"kind": "NetworkPolicy", "apiVersion": "networking.k8s.io/v1", **each} for each in policies),
            *({"kind": "Pod", "apiVersion": "v1", **each} for each in objects),
            *({"kind": "Namespace", "apiVersion": "v1", **each} for each in namespaces),
        ],
        namespace="default",
    )
    pods = {each.pod.key.rpartition("/")[2]: each.pod for each in manifests.workloads}
    network = Network(manifests.policies, manifests.namespaces, tuple(pods.values()))
    return {
        (source, target, protocol, port): "open"
        if port in may_connect(network, pods[source], pods[target]).of(protocol.upper())
        else "silent"
        for (source, target), (protocol, port) in product(permutations(ADDRESSES, 2), SERVED)
    }

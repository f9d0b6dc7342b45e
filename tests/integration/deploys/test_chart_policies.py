"""The network policies of the project's chart: their content, and that the API server accepts them."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest

from deploys.addresses import PRIVATE, PRIVATE_V4, PRIVATE_V6, behind_nat64, block
from deploys.manifests import POLICY_KIND
from deploys.network_policies import Direction
from deploys.network_reach import Network, Pod, Ports, reach
from k8s_adapters.calls.client import KubeClient
from lab.helm import CHART, HelmRefused, render
from lab.node.policies import decisions
from tests.integration.deploys.charts import rendered

BUSY = {"ostler.dev/pool": "linux", "ostler.dev/runner-pool-owner": "7"}
FULL: dict[str, Any] = {
    "networkPolicies": {
        "dns": {"addresses": ["169.254.20.10/32"], "ports": [53, 5353]},
        "runners": {
            "publicPorts": [{"protocol": "TCP", "port": 443}, {"port": 8000, "endPort": 9000}],
            "clusterAddresses": ["35.9.8.7/32", "2600:7::/64"],
            "except": ["34.118.0.0/16", "2600:1900::/28"],
            "allow": [{"cidr": "10.1.2.3/32", "ports": [{"port": 443}]}, {"cidr": "fd00::7/128"}],
        },
        "webAddresses": ["203.0.113.5/32", "10.9.9.9/32", "2600::1/128"],
        "controlPlane": {
            "webFrom": [{"ipBlock": {"cidr": "192.30.252.0/22"}}],
            "flowerFrom": [{"podSelector": {"matchLabels": {"app": "proxy"}}, "namespaceSelector": {}}],
            "egress": [{"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}], "ports": [{"port": 443}]}],
        },
    }
}


def policies(values: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    return [each for each in render(values=values) if each["kind"] == "NetworkPolicy"]


def egress_of_busy(values: dict[str, Any] | None = None) -> Any:
    found = rendered(CHART, values)
    pod = Pod("busy", "ostler-runners", BUSY, {})
    return reach(Network(found.policies, found.namespaces, ()), pod, Direction.EGRESS)


def test_private_addresses_are_the_same_for_chart_and_evaluator() -> None:
    base = next(each for each in policies() if each["metadata"]["name"] == "runners-base")
    blocks = [each["ipBlock"] for rule in base["spec"]["egress"] for each in rule["to"] if "ipBlock" in each]
    assert {each["cidr"]: tuple(each["except"]) for each in blocks} == {"0.0.0.0/0": PRIVATE_V4, "::/0": PRIVATE_V6}


def test_busy_pods_reach_the_internet_and_nothing_else() -> None:
    found = egress_of_busy()
    assert found.policies == ("runners-base",)
    assert not found.addresses_beside(Ports()).common(PRIVATE)
    for public in ("140.82.112.3", "2606:50c0:8000::153", "1.1.1.1"):
        assert not block(public).minus(found.addresses_beside(Ports()))
    for private in ("10.0.0.1", "169.254.169.254", "100.64.0.1", "192.168.1.1", "fd00:ec2::254", "64:ff9b::a9fe:a9fe"):
        assert not found.addresses_beside(Ports()).common(block(private))


API = "10.96.0.1"
CONTAINERS: dict[str, Any] = {
    "runners": {"containers": {"enabled": True}},
    "networkPolicies": {"apiServer": {"addresses": [f"{API}/32"]}},
}


def reached_with_containers(labels: dict[str, str], direction: Direction = Direction.EGRESS) -> Any:
    found = rendered(CHART, CONTAINERS)
    pod = Pod("pod", "ostler-runners", labels, {})
    return reach(Network(found.policies, found.namespaces, ()), pod, direction)


def test_hook_pods_reach_what_busy_runner_pods_reach_and_accept_no_connection() -> None:
    hook = {"ostler.dev/hook-of": "linux-0000000a", "ostler.dev/hook-pool": "linux"}
    egress, ingress = (reached_with_containers(hook, each) for each in (Direction.EGRESS, Direction.INGRESS))
    assert egress.policies == ("runners-hooks",)
    assert egress.addresses == egress_of_busy().addresses
    assert (ingress.policies, ingress.pods, ingress.addresses) == (("runners-hooks",), (), ())


def test_only_runner_pods_with_container_jobs_reach_the_api_server() -> None:
    labelled = reached_with_containers({**BUSY, "ostler.dev/containers": "kubernetes"})
    assert labelled.policies == ("runners-api-server", "runners-base")
    ports = {(protocol, low, high) for protocol, low, high, where in labelled.addresses if where.common(block(API))}
    assert ports == {("TCP", 443, 443), ("TCP", 6443, 6443)}
    for labels in (BUSY, {**BUSY, "ostler.dev/containers": "none"}, {"ostler.dev/containers": "kubernetes"}):
        found = reached_with_containers(labels)
        assert not found.policies or not found.addresses_beside(Ports()).common(block(API))
        assert "runners-api-server" not in found.policies


def test_enforcer_of_the_lab_agrees_about_hook_pods_and_the_api_server() -> None:
    def pod(uid: str, labels: dict[str, str]) -> decisions.PolicedPod:
        return decisions.PolicedPod(
            uid=uid, namespace="ostler-runners", name=uid, labels=labels, address=None, named_ports=[]
        )

    pods = [
        pod("runner", BUSY),
        pod("with containers", {**BUSY, "ostler.dev/containers": "kubernetes"}),
        pod("hook", {"ostler.dev/hook-of": "linux-0000000a"}),
    ]
    decided = decisions.decide(policies(CONTAINERS), pods, {})
    out, into = decisions.Direction.EGRESS, decisions.Direction.INGRESS

    def reaches(address: str) -> set[str]:
        found = ipaddress.ip_address(address)
        return {each.uid for each in pods if decided.allow(each.uid, out, protocol="TCP", port=6443, address=found)}

    assert reaches(API) == {"with containers"}
    assert reaches("140.82.112.3") == {"runner", "with containers", "hook"}
    assert reaches("10.0.0.1") == set()
    assert not any(decided.allow(each.uid, into, protocol="TCP", port=80, uid="runner") for each in pods)


def test_container_jobs_need_the_address_of_the_api_server_and_the_policies() -> None:
    with pytest.raises(HelmRefused, match=r"networkPolicies\.apiServer\.addresses"):
        render(values={"runners": {"containers": {"enabled": True}}})
    with pytest.raises(HelmRefused, match=r"admissionPolicy\.enabled"):
        render(values={**CONTAINERS, "admissionPolicy": {"enabled": False}})
    without = {"runners": {"containers": {"enabled": True}}, "networkPolicies": {"enabled": False}}
    assert policies(without) == []


def test_policies_of_container_jobs_stay_when_the_release_goes() -> None:
    found = rendered(CHART, CONTAINERS)
    for name in ("runners-hooks", "runners-api-server"):
        policy = found.objects[POLICY_KIND, "ostler-runners", name]
        assert policy.kept
        assert "0.1.0" not in str(policy.body["metadata"])


METADATA = ("169.254.169.254", "168.63.129.16", "100.100.100.200", "192.0.0.192", "169.254.170.2", "169.254.0.23")


@pytest.mark.parametrize("address", METADATA)
def test_busy_pods_reach_no_metadata_service_however_its_address_is_written(address: str) -> None:
    number = int(ipaddress.IPv4Address(address))
    written = [address, behind_nat64(address)]
    written += [str(ipaddress.IPv6Address(prefix + number)) for prefix in (0, 0xFFFF << 32, 0xFFFF << 48)]
    written += [str(ipaddress.IPv6Address((0x2002 << 112) + (number << 80)))]  # 6to4
    open_to = egress_of_busy().addresses_beside(Ports())
    assert [each for each in written if open_to.common(block(each))] == []


@pytest.mark.parametrize("address", ["fd00:ec2::254", "fd20:ce::254", "fe80::a9fe:a9fe"])
def test_busy_pods_reach_no_metadata_service_of_ipv6(address: str) -> None:
    assert not egress_of_busy().addresses_beside(Ports()).common(block(address))


def test_values_shape_what_busy_pods_reach() -> None:
    found = egress_of_busy(FULL)
    at_443 = [where for protocol, low, high, where in found.addresses if protocol == "TCP" and low <= 443 <= high]
    assert len(at_443) == 1
    assert not block("10.1.2.3").minus(at_443[0])
    v4 = ("203.0.113.5", "10.9.9.9", "34.118.3.4", "35.9.8.7")
    for closed in (*v4, *map(behind_nat64, v4), "2600::1", "2600:1900::5", "2600:7::9"):
        assert not at_443[0].common(block(closed)), closed


@pytest.mark.parametrize("values", [{}, FULL, CONTAINERS, {"networkPolicies": {"controlPlane": {"enabled": False}}}])
def test_the_api_server_takes_every_policy(values: dict[str, Any], admin: KubeClient, namespace: str) -> None:
    found = policies(values)
    assert {each["metadata"]["name"] for each in found} >= {"runners-base", "runners-dispatch"}
    for each in found:
        each["metadata"]["namespace"] = namespace
        path = f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies"
        made = admin.request("POST", path, body=each, query={"fieldValidation": "Strict"})
        for field in ("podSelector", "policyTypes"):
            assert made["spec"][field] == each["spec"][field]


def test_none_where_they_are_switched_off() -> None:
    assert policies({"networkPolicies": {"enabled": False}}) == []


@pytest.mark.parametrize(
    "values",
    [
        {"runners": {"except": ["10.0.0.0"]}},
        {"runners": {"allow": [{"podSelector": {}}]}},
        {"dns": {"ports": []}},
        {"webAddresses": "10.0.0.0/8"},
        {"controlPlane": {"webFrom": [{}]}},
        {"unknown": 1},
    ],
)
def test_values_that_make_no_sense_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(HelmRefused, match=r"networkPolicies|schema"):
        render(values={"networkPolicies": values})


def test_a_policy_of_busy_pods_stays_when_the_release_goes_and_names_no_version() -> None:
    found = rendered(CHART)
    base = found.objects[POLICY_KIND, "ostler-runners", "runners-base"]
    assert base.kept
    assert "0.1.0" not in str(base.body["metadata"])

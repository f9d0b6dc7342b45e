"""Rule sets of the policy enforcer, as text: dropped packets, return packets, and permitted connections."""

from __future__ import annotations

from typing import Any

import pytest

from lab.node.policies.decisions import PolicedPod, decide
from lab.node.policies.ruleset import Mode, PodNetwork, write_rules

Json = dict[str, Any]

NETWORKS = [PodNetwork(bridge="cni1", addresses="10.200.1.0/24")]
WEB = PolicedPod(
    uid="w", namespace="a", name="web", labels={"app": "web"}, address="10.200.1.2", named_ports=[("http", "TCP", 8080)]
)
RUNNER = PolicedPod(uid="r", namespace="a", name="runner", labels={}, address="10.200.1.3", named_ports=[])
STARTING = PolicedPod(uid="s", namespace="a", name="starting", labels={}, address=None, named_ports=[])


def rules(*specs: Json, mode: Mode = Mode.CUT) -> dict[str, list[str]]:
    """Return the lines of each chain, without the line that declares the hook."""
    policies = [{"metadata": {"namespace": "a", "name": f"p{n}"}, "spec": spec} for n, spec in enumerate(specs)]
    pods = [WEB, RUNNER, STARTING]
    text = write_rules(decide(policies, pods, {"a": {}}), pods, networks=NETWORKS, mode=mode)
    chains: dict[str, list[str]] = {}
    for line in map(str.strip, text.splitlines()):
        if line.startswith("chain "):
            lines = chains.setdefault(line.split()[1], [])
        elif chains and line != "}":
            lines.append(line)
    return chains


def test_rule_set_replaces_the_whole_table() -> None:
    first, second, third, *_ = write_rules(decide([], [], {}), [], networks=NETWORKS, mode=Mode.CUT).splitlines()
    assert (first, second) == ("table inet ostler_lab_policies { }", "delete table inet ostler_lab_policies")
    assert third == "table inet ostler_lab_policies {"


def test_pods_without_policies_have_no_chains() -> None:
    assert set(rules()) == {"forwarded", "to-node", "from-node", "judge"}
    assert not any("jump" in line for line in rules()["judge"])


def test_default_deny_drops_everything_of_the_selected_pods() -> None:
    found = rules({"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress", "Egress"]})

    assert found["ingress-w"] == ['comment "Ingress of a/web"', "drop"]
    assert found["egress-w"] == ['comment "Egress of a/web"', "drop"]
    assert found["judge"][-2:] == [
        "ct original ip saddr vmap { 10.200.1.2 : jump egress-w }",
        "ct reply ip saddr vmap { 10.200.1.2 : jump ingress-w }",
    ]


@pytest.mark.parametrize("mode", Mode)
def test_only_mode_keep_accepts_established_connections(mode: Mode) -> None:
    accepts = "ct state established,related accept" in rules(mode=mode)["judge"]
    assert accepts == (mode is Mode.KEEP)


def test_unknown_addresses_of_the_pods_network_are_dropped() -> None:
    known = "{ 10.200.1.1, 10.200.1.2, 10.200.1.3 }"
    assert rules()["judge"][-2:] == [
        f"ct original ip saddr 10.200.1.0/24 ct original ip saddr != {known} drop",
        f"ct reply ip saddr 10.200.1.0/24 ct reply ip saddr != {known} drop",
    ]


def test_named_port_and_selected_peer_become_numbers_and_addresses() -> None:
    found = rules({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}], "ports": [{"port": "http"}]}]})

    assert found["ingress-w"][1:] == [
        "ct original ip saddr { 10.200.1.2, 10.200.1.3 } meta l4proto tcp ct reply proto-src 8080 return",
        "drop",
    ]
    assert found["ingress-r"][1:] == ["drop"]  # the runner has no port of that name


def test_address_block_has_its_exceptions_and_port_range() -> None:
    block = {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8", "10.1.0.0/16", "169.254.0.0/16"]}}
    v6 = {"ipBlock": {"cidr": "::/0"}}
    rule = {"to": [block, v6], "ports": [{"port": 80, "endPort": 90}, {"protocol": "UDP"}]}
    found = rules({"podSelector": {}, "policyTypes": ["Egress"], "egress": [rule]})

    there = "ct reply ip saddr != { 10.0.0.0/8, 169.254.0.0/16 }"
    assert found["egress-r"][1:] == [
        f"{there} meta l4proto tcp ct reply proto-src 80-90 return",
        f"{there} meta l4proto udp return",
        "drop",
    ]


def test_policies_add_up() -> None:
    found = rules({"podSelector": {}}, {"podSelector": {}, "ingress": [{}]})
    assert found["ingress-w"][1:] == ["return", "drop"]


def test_comment_of_a_long_name_is_cut_to_what_nft_accepts() -> None:
    pod = PolicedPod(uid="l", namespace="a", name="x" * 253, labels={}, address="10.200.1.4", named_ports=[])
    decisions = decide([{"metadata": {"namespace": "a", "name": "p"}, "spec": {}}], [pod], {"a": {}})
    text = write_rules(decisions, [pod], networks=NETWORKS, mode=Mode.CUT)
    assert f'comment "Ingress of a/{"x" * 115}"' in text

"""Networks of a Docker engine: free ranges, and the command lines that use them."""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path

import pytest

from lab.engine import docker
from lab.engine.uplink import choose, command_line, taken_networks
from lab.node.namespace import NODE_ADDRESS, STARTER_NETWORK
from lab.processes import StartError


def test_networks_of_the_engine_do_not_overlap_each_other_or_those_of_the_machine() -> None:
    taken = [IPv4Network("10.198.7.0/24"), IPv4Network("10.196.0.0/15")]

    uplink = choose(taken)

    ours = [uplink.outside, uplink.inside, uplink.pool]
    assert not any(one.overlaps(other) for one in ours for other in taken)
    assert not any(one.overlaps(other) for one in ours for other in ours if one is not other)


def test_machine_without_a_free_network_is_refused() -> None:
    with pytest.raises(StartError, match=r"three free networks .* and 0 are free"):
        choose([IPv4Network("10.0.0.0/8")])


def test_networks_of_routes_gateways_name_servers_and_the_node_count_as_taken() -> None:
    routes = [
        {"dst": "default", "gateway": "192.0.2.1", "dev": "eth0"},
        {"dst": "192.0.2.0/24", "dev": "eth0"},
        {"dst": "198.51.100.7", "gateway": "192.0.2.9", "dev": "eth0"},
    ]
    resolver = "# local\nsearch example\nnameserver 203.0.113.53\nnameserver fe80::1%eth0\nnameserver\n"

    taken = taken_networks(routes, resolver)

    expected = ["192.0.2.0/24", "198.51.100.7", "192.0.2.1", "192.0.2.9", "203.0.113.53"]
    assert {IPv4Network(each) for each in expected} < set(taken)
    assert any(IPv4Network(f"{NODE_ADDRESS}/32").subnet_of(each) for each in taken)


def test_slirp4netns_runs_in_the_starters_network_and_cannot_reach_its_loopback() -> None:
    command = command_line(choose([]))

    assert command[:3] == ["nsenter", f"--net={STARTER_NETWORK}", "slirp4netns"]
    assert "--disable-host-loopback" in command
    assert command[-2:] == ["/proc/1/ns/net", "tap0"]


def test_engine_gets_the_free_networks_and_its_own_control_group(tmp_path: Path) -> None:
    uplink = choose([])

    command = docker.command_line(tmp_path, uplink=uplink, group="ostler-lab-1-2/docker")

    assert f"--bip={uplink.inside[1]}/16" in command
    assert f"--default-address-pool=base={uplink.pool},size=24" in command
    assert f"--dns={uplink.outside[3]}" in command
    assert "--cgroup-parent=/ostler-lab-1-2/docker" in command
    assert "--userland-proxy=false" in command
    assert not any(word.startswith("--containerd") for word in command)


def test_missing_packages_are_named_in_one_line_with_the_command_that_installs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")

    with pytest.raises(StartError) as raised:
        docker.check_packages()

    assert "apt-get install docker.io iproute2 iptables mount slirp4netns util-linux" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_engine_outside_of_the_namespaces_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OSTLER_LAB_ISOLATED", raising=False)

    with pytest.raises(StartError, match="namespaces of its own"):
        docker.Engine(tmp_path, choose([]))

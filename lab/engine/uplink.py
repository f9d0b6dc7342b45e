"""Uplink of a Docker engine: the connection from its namespaces to the network of the machine, for image builds.

slirp4netns forwards connections from inside the namespaces, as the machine's own user. It makes no interface, address
or firewall rule on the machine. Nothing on the loopback interface of the machine can be reached.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, ip_network
from pathlib import Path
from typing import Any

from lab.node.namespace import NODE_ADDRESS, STARTER_NETWORK
from lab.processes import Child, StartError

_INTERFACE = "tap0"
_LARGEST_PACKET = 65520
_STARTS_WITHIN = 30.0
_RESOLVER = Path("/etc/resolv.conf")
_CANDIDATES = [IPv4Network(f"10.{number}.0.0/16") for number in range(198, 127, -1)]


@dataclass(frozen=True, slots=True)
class Uplink:
    """Addresses of the engine's networks: one for slirp4netns, one for the default bridge, one for Compose."""

    outside: IPv4Network
    inside: IPv4Network
    pool: IPv4Network

    @property
    def bridge(self) -> str:
        """Address of the default bridge with its prefix length, the value of `dockerd --bip`."""
        return f"{self.inside[1]}/{self.inside.prefixlen}"

    @property
    def cidr(self) -> str:
        """Network of slirp4netns, which takes at most 254 addresses."""
        return f"{self.outside[0]}/24"

    @property
    def resolver(self) -> str:
        """Address at which slirp4netns answers DNS queries with the machine's own resolver."""
        return str(self.outside[3])


def choose(taken: Iterable[IPv4Network]) -> Uplink:
    """Return networks that overlap no network in `taken`. Raises `StartError` if too few are free."""
    used = list(taken)
    free = [each for each in _CANDIDATES if not any(each.overlaps(other) for other in used)]
    if len(free) < len(Uplink.__slots__):
        raise StartError(
            "the Docker engine needs three free networks of size /16 from 10.128.0.0 to 10.198.255.255, and "
            f"{len(free)} are free: remove routes to this range, for example of a VPN, or use another machine"
        )
    return Uplink(*free[: len(Uplink.__slots__)])


def taken_networks(routes: Sequence[Mapping[str, Any]], resolver: str) -> list[IPv4Network]:
    """Return the networks and gateways of `ip -json route`, the name servers in `resolver`, and the node's network."""
    found = [str(route["dst"]) for route in routes if route.get("dst", "default") != "default"]
    found += [str(route["gateway"]) for route in routes if "gateway" in route]
    words = (line.split() for line in resolver.splitlines())
    found += [line[1] for line in words if len(line) > 1 and line[0] == "nameserver"]
    networks = [ip_network(each.partition("%")[0], strict=False) for each in [*found, f"{NODE_ADDRESS}/24"]]
    return [each for each in networks if isinstance(each, IPv4Network)]


def start_uplink(log: Path) -> Uplink:
    """Connect the namespaces to the machine's network and return the addresses. Raises `StartError`."""
    routes = json.loads(_run(["nsenter", f"--net={STARTER_NETWORK}", "ip", "-json", "-4", "route"]) or "[]")
    uplink = choose(taken_networks(routes, _RESOLVER.read_text() if _RESOLVER.exists() else ""))
    _run(["ip", "route", "del", "default"])
    child = Child("slirp4netns", command_line(uplink), log=log)
    child.start()
    child.wait_until(lambda: _INTERFACE in _run(["ip", "route", "show", "default"]), timeout=_STARTS_WITHIN)
    return uplink


def command_line(uplink: Uplink) -> list[str]:
    """Return the command that runs slirp4netns in the starter's network namespace, for the namespace of process 1."""
    return [
        "nsenter",
        f"--net={STARTER_NETWORK}",
        "slirp4netns",
        "--configure",
        f"--mtu={_LARGEST_PACKET}",
        f"--cidr={uplink.cidr}",
        "--disable-host-loopback",
        "--netns-type=path",
        "/proc/1/ns/net",
        _INTERFACE,
    ]


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(list(command), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise StartError(f"{' '.join(command)} failed with status {done.returncode}: {done.stderr.strip()}")
    return done.stdout

"""Sets of IPv4 and IPv6 addresses. A NetworkPolicy writes such a set as a block with exceptions."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from deploys.intervals import Intervals

_V4 = 4


@dataclass(frozen=True, slots=True)
class Addresses:
    """A set of addresses. Two equal sets compare as equal, even if they were written as different blocks."""

    v4: Intervals = field(default_factory=Intervals)
    v6: Intervals = field(default_factory=Intervals)

    def __bool__(self) -> bool:
        return bool(self.v4) or bool(self.v6)

    def union(self, other: Self) -> Addresses:
        """Return the addresses that are in this set or in `other`."""
        return Addresses(self.v4.union(other.v4), self.v6.union(other.v6))

    def minus(self, other: Self) -> Addresses:
        """Return the addresses that are in this set and not in `other`."""
        return Addresses(self.v4.minus(other.v4), self.v6.minus(other.v6))

    def common(self, other: Self) -> Addresses:
        """Return the addresses that are in both sets."""
        return Addresses(self.v4.common(other.v4), self.v6.common(other.v6))

    def cidrs(self) -> tuple[str, ...]:
        """Return the fewest blocks that make up the set, IPv4 first."""
        found: list[str] = []
        for low, high in self.v4.ranges:
            four = ipaddress.summarize_address_range(ipaddress.IPv4Address(low), ipaddress.IPv4Address(high))
            found += map(str, four)
        for low, high in self.v6.ranges:
            six = ipaddress.summarize_address_range(ipaddress.IPv6Address(low), ipaddress.IPv6Address(high))
            found += map(str, six)
        return tuple(found)


def block(cidr: str) -> Addresses:
    """Return the set for one block or one address. Raises ValueError if `cidr` is neither."""
    network = ipaddress.ip_network(cidr, strict=False)
    numbers = Intervals.of([(int(network.network_address), int(network.broadcast_address))])
    return Addresses(v4=numbers) if network.version == _V4 else Addresses(v6=numbers)


def blocks(cidrs: Iterable[str]) -> Addresses:
    """Return the set for several blocks or addresses. Raises ValueError if a block or an address is malformed."""
    found = Addresses()
    for cidr in cidrs:
        found = found.union(block(cidr))
    return found


EVERYWHERE = blocks(("0.0.0.0/0", "::/0"))

PRIVATE_V4 = (
    "0.0.0.0/8",  # this host
    "10.0.0.0/8",
    "100.64.0.0/10",  # carrier-grade NAT, also Pods and nodes of some clouds, and the metadata of Alibaba
    "127.0.0.0/8",
    "168.63.129.16/32",  # Azure's WireServer, which serves metadata and credentials of nodes
    "169.254.0.0/16",  # link-local: the metadata of most clouds
    "172.16.0.0/12",
    "192.0.0.0/24",  # protocol assignments, and the metadata of some clouds
    "192.168.0.0/16",
    "198.18.0.0/15",  # benchmarks; used inside of clusters
    "224.0.0.0/4",  # multicast
    "240.0.0.0/4",  # reserved; Pods of some clusters
)
PRIVATE_V6 = (
    "::/64",  # unspecified, loopback, and IPv4 written as IPv6: compatible, mapped (::ffff:0:0/96) and translated
    "64:ff9b::/104",  # this block and the next eleven are the private ranges of IPv4 behind NAT64
    "64:ff9b::a00:0/104",
    "64:ff9b::6440:0/106",
    "64:ff9b::7f00:0/104",
    "64:ff9b::a83f:8110/128",
    "64:ff9b::a9fe:0/112",
    "64:ff9b::ac10:0/108",
    "64:ff9b::c000:0/120",
    "64:ff9b::c0a8:0/112",
    "64:ff9b::c612:0/111",
    "64:ff9b::e000:0/100",
    "64:ff9b::f000:0/100",
    "64:ff9b:1::/48",  # NAT64 with a local prefix
    "100::/64",  # discard-only
    "2001::/32",  # Teredo, which carries IPv4 inside
    "2002::/16",  # 6to4, which carries IPv4 inside
    "fc00::/7",  # unique local addresses, which some clouds use for metadata
    "fe80::/10",  # link-local
    "fec0::/10",  # site-local, deprecated
    "ff00::/8",  # multicast
)
PRIVATE = blocks((*PRIVATE_V4, *PRIVATE_V6))
"""Addresses that stamped Pods must not reach unless an operator allows them: private networks, and services of clouds.

Sources: RFC 1918, 3927, 6598 and 6890 for IPv4; RFC 4193, 4291, 6052 and 6890 for IPv6; the documentation of Azure for
168.63.129.16. The policy `runners-base` of the chart excludes the same addresses, and a test compares both lists.
"""


_NAT64 = "64:ff9b::"


def behind_nat64(cidr: str) -> str:
    """Return the IPv6 block that NAT64 maps to an IPv4 block, with the well-known prefix of RFC 6052."""
    network = ipaddress.IPv4Network(cidr, strict=False)
    start = int(ipaddress.IPv6Address(_NAT64)) + int(network.network_address)
    return str(ipaddress.IPv6Network((start, 96 + network.prefixlen)))

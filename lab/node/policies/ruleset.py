"""Rule set of the decisions: the text that the program `nft` applies in one transaction.

Each packet is judged by its connection, as the kernel's connection tracking knows it: the client is `ct original ip
saddr`, the server is `ct reply ip saddr` (after any translation of the address), and the server's port is `ct reply
proto-src`. A reply is therefore allowed as long as its connection is allowed.

Packets between two Pods of one node are bridged. The kernel passes them to the hook `forward` as well, because
`net.bridge.bridge-nf-call-iptables` is on. Tables of the family `bridge` would see them too, but many kernels have no
connection tracking there (CONFIG_NF_CONNTRACK_BRIDGE).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from lab.node.policies.decisions import Block, Decisions, Direction, Permit, PolicedPod

TABLE = "inet ostler_lab_policies"
"""Family and name of the table."""

NO_TABLE = f"table {TABLE} {{ }}\ndelete table {TABLE}\n"
"""Rule set that removes the table, whether or not it exists."""

_V4 = 4
_COMMENT = 128  # characters that nft accepts


class Mode(StrEnum):
    """Effect on established connections when a policy no longer allows them. Network plugins differ."""

    CUT = "cut"
    """From then on, packets of these connections are dropped."""
    KEEP = "keep"
    """The connections stay allowed until one end closes them."""


@dataclass(frozen=True, kw_only=True)
class PodNetwork:
    """The network of one node's Pods: its bridge, and its addresses like `10.200.1.0/24`."""

    bridge: str
    addresses: str


def write_rules(decisions: Decisions, pods: Sequence[PolicedPod], *, networks: Sequence[PodNetwork], mode: Mode) -> str:
    """Return the rule set for `nft -f -`. It replaces the whole table.

    A Pod's packets are dropped while its address is not yet known, because the documentation requires that a new Pod
    is isolated before it starts. Packets with IPv6 addresses are dropped, because the Pods have IPv4 addresses only.
    Connections that the node itself opens are always allowed.
    """
    known = {each.address: each for each in pods if each.address is not None}
    addresses = {each.uid: address for address, each in known.items()}
    permits: dict[tuple[str, Direction], list[Permit]] = {}
    for permit in decisions.permits:
        permits.setdefault((permit.pod, permit.direction), []).append(permit)
    isolated = {
        direction: {
            address: pod for address, pod in sorted(known.items()) if (pod.uid, direction) in decisions.isolated
        }
        for direction in Direction
    }
    lines = [
        f"table {TABLE} {{ }}",
        f"delete table {TABLE}",
        f"table {TABLE} {{",
        *_base_chains([each.bridge for each in networks]),
        *_chain("judge", _judge(isolated, known, networks, mode)),
    ]
    for direction, selected in isolated.items():
        for pod in selected.values():
            content = [
                f'comment "{f"{direction} of {pod.namespace}/{pod.name}"[:_COMMENT]}"',
                *_permit_lines(permits.get((pod.uid, direction), ()), direction, addresses),
                "drop",
            ]
            lines += _chain(_name(direction, pod), content)
    return "\n".join([*lines, "}", ""])


def _base_chains(bridges: Sequence[str]) -> Iterator[str]:
    ours = f"{{ {', '.join(map(_quoted, bridges))} }}"
    yield from _chain(
        "forwarded",
        [
            "type filter hook forward priority 10; policy accept;",
            f"meta nfproto ipv6 iifname {ours} drop",
            "jump judge",
        ],
    )
    yield from _chain(
        "to-node",
        [
            "type filter hook input priority 10; policy accept;",
            f"iifname != {ours} accept",
            "meta nfproto ipv6 drop",
            "ct direction reply accept",  # the node opened the connection
            "jump judge",
        ],
    )
    yield from _chain(
        "from-node",
        [
            "type filter hook output priority 10; policy accept;",
            f"oifname != {ours} accept",
            "ct direction original accept",
            "jump judge",
        ],
    )


def _judge(
    isolated: dict[Direction, dict[str, PolicedPod]],
    known: Collection[str],
    networks: Sequence[PodNetwork],
    mode: Mode,
) -> Iterator[str]:
    if mode is Mode.KEEP:
        yield "ct state established,related accept"
    yield "ct state related meta l4proto icmp accept"
    yield "ct state invalid drop"
    for network in networks:
        gateway = next(ipaddress.ip_network(network.addresses).hosts())
        there = sorted(each for each in known if ipaddress.ip_address(each) in ipaddress.ip_network(network.addresses))
        allowed = ", ".join([str(gateway), *there])
        for side in ("ct original ip saddr", "ct reply ip saddr"):
            yield f"{side} {network.addresses} {side} != {{ {allowed} }} drop"
    for direction, side in ((Direction.EGRESS, "ct original ip saddr"), (Direction.INGRESS, "ct reply ip saddr")):
        if selected := isolated[direction]:
            jumps = (f"{address} : jump {_name(direction, pod)}" for address, pod in selected.items())
            yield f"{side} vmap {{ {', '.join(jumps)} }}"


def _permit_lines(permits: Collection[Permit], direction: Direction, addresses: dict[str, str]) -> list[str]:
    """Return the lines that let permitted packets return to `judge`. Peers with the same ports share one line."""
    peer = "ct reply ip saddr" if direction is Direction.EGRESS else "ct original ip saddr"
    lines: set[str] = set()
    pods: dict[str, list[str]] = {}
    for permit in permits:
        ports = _ports(permit)
        match permit.peer:
            case None:
                lines.add(f"{ports}return")
            case Block() as block if block.network.version == _V4:
                lines.add(f"{_in_block(peer, block)}{ports}return")
            case str() as uid if uid in addresses:
                pods.setdefault(ports, []).append(addresses[uid])
    lines |= {f"{peer} {{ {', '.join(sorted(each))} }} {ports}return" for ports, each in pods.items()}
    return sorted(lines)


def _in_block(peer: str, block: Block) -> str:
    text = f"{peer} {block.network} " if block.network.prefixlen else ""
    excluded = [each for each in block.excluded if isinstance(each, ipaddress.IPv4Network)]
    if excluded:  # nft refuses a set with overlapping networks
        joined = ", ".join(map(str, ipaddress.collapse_addresses(excluded)))
        text += f"{peer} != {{ {joined} }} "
    return text


def _ports(permit: Permit) -> str:
    if permit.protocol is None:
        return ""
    protocol = f"meta l4proto {permit.protocol.lower()} "
    match permit.ports:
        case None:
            return protocol
        case (first, last) if first == last:
            return f"{protocol}ct reply proto-src {first} "
        case (first, last):
            return f"{protocol}ct reply proto-src {first}-{last} "


def _name(direction: Direction, pod: PolicedPod) -> str:
    return f"{direction.lower()}-{pod.uid}"


def _chain(name: str, content: Sequence[str] | Iterator[str]) -> Iterator[str]:
    yield f"\tchain {name} {{"
    yield from (f"\t\t{each}" for each in content)
    yield "\t}"


def _quoted(text: str) -> str:
    return f'"{text}"'

"""Ports of a container, from `ports:` of a workflow and from options."""

from __future__ import annotations

from collections.abc import Iterable

from container_hooks.failures import HookFailed
from k8s_adapters.calls.client import Json

_PROTOCOLS = frozenset({"TCP", "UDP", "SCTP"})
_HIGHEST = 65535


def container_ports(mappings: Iterable[str], *, of: str) -> list[Json]:
    """Return the ports of a container. `of` names the container in messages.

    A mapping is `PORT`, `HOST:PORT` or `ADDRESS:HOST:PORT`, with an optional `/PROTOCOL`. A hook Pod has no ports
    on its node, so the part for the host has no effect. All containers of the Pod reach the port at `localhost`.
    """
    found: dict[tuple[int, str], Json] = {}
    for mapping in mappings:
        address, slash, protocol = mapping.partition("/")
        protocol = protocol.upper() if slash else "TCP"
        number = address.rpartition(":")[2]
        if not (number.isascii() and number.isdigit() and 1 <= int(number) <= _HIGHEST) or protocol not in _PROTOCOLS:
            raise HookFailed(f"port {mapping[:40]!r} of {of}: use HOST:PORT or PORT/PROTOCOL, from 1 to {_HIGHEST}")
        found[int(number), protocol] = {"containerPort": int(number), "protocol": protocol}
    return list(found.values())

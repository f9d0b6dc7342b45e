"""Addresses of the cluster itself, which jobs must not reach, and the network policies of a namespace.

The identity of the caller might lack the right to read some of the addresses. The result names each kind of address
that could not be read.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from k8s_adapters.calls.client import KubeClient
from ostler.errors import Forbidden, Gone

_SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
_PAGE = 500
_NODE_KINDS = frozenset({"ExternalIP", "InternalIP"})


@dataclass(frozen=True, slots=True)
class OwnAddresses:
    """Addresses of the cluster. `by_address` maps an address to a description of its owner, such as `node a`.

    `unread` names the kinds of addresses that could not be read.
    """

    by_address: dict[str, str]
    unread: tuple[str, ...]


def own_addresses(client: KubeClient) -> OwnAddresses:
    """Return the addresses of the API server and of all nodes.

    Raises the errors of `KubeClient.request`, except `Forbidden` and `Gone`. After these two errors, the kind of
    address is in `unread`.
    """
    found: dict[str, str] = {}
    unread: list[str] = []
    try:
        found.update(_resolved(client.host))
    except OSError:
        unread.append("the name of the API server")
    for what, read in (("endpoint slices", _of_slices), ("nodes", _of_nodes)):
        try:
            for address, owner in read(client):
                found.setdefault(address, owner)
        except (Forbidden, Gone):
            unread.append(what)
    return OwnAddresses(found, tuple(unread))


def list_policies(client: KubeClient, *, namespace: str) -> list[dict[str, Any]]:
    """Return the network policies of a namespace. Raises the errors of `KubeClient.request`."""
    path = f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies"
    return list(client.request("GET", path).get("items") or ())


def _resolved(url: str) -> dict[str, str]:
    host = urlsplit(url).hostname or ""
    answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return {str(answer[4][0]): "the API server" for answer in answers}


def _of_slices(client: KubeClient) -> Iterator[tuple[str, str]]:
    found = client.request("GET", _SLICES, query={"labelSelector": "kubernetes.io/service-name=kubernetes"})
    for each in found.get("items") or ():
        for endpoint in each.get("endpoints") or ():
            for address in endpoint.get("addresses") or ():
                if _is_address(address):
                    yield address, "the API server"


def _of_nodes(client: KubeClient) -> Iterator[tuple[str, str]]:
    query: dict[str, str | int] = {"limit": _PAGE}
    while True:
        page = client.request("GET", "/api/v1/nodes", query=query)
        for node in page.get("items") or ():
            for each in (node.get("status") or {}).get("addresses") or ():
                if each.get("type") in _NODE_KINDS and _is_address(each.get("address", "")):
                    yield each["address"], f"node {node['metadata']['name']}"
        following = (page.get("metadata") or {}).get("continue")
        if not following:
            return
        query["continue"] = following


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True

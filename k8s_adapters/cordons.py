"""Nodes that take no more Pods: only their names are read, and only of those that are cordoned."""

from __future__ import annotations

from k8s_adapters.client import KubeClient
from k8s_adapters.metadata import METADATA_LIST, PAGE
from k8s_adapters.retry import RetryPolicy
from ostler.errors import Retryable


def list_cordoned(client: KubeClient, *, policy: RetryPolicy | None = None) -> frozenset[str]:
    """Return the names of the cordoned nodes, all of them or none.

    Raises what the client raises, `Retryable` also when the answer is no list.
    """
    query: dict[str, str | int] = {"limit": PAGE, "fieldSelector": "spec.unschedulable=true"}
    names: set[str] = set()
    while True:
        page = client.request("GET", "/api/v1/nodes", query=query, accept=METADATA_LIST, policy=policy)
        if "items" not in page:
            raise Retryable("the list of nodes came without its items")
        names.update(item["metadata"]["name"] for item in page["items"] or ())
        following = (page.get("metadata") or {}).get("continue")
        if not following:
            return frozenset(names)
        query = {**query, "continue": following}

"""Hook Pods whose runner Pod is gone. The cluster's garbage collector should have deleted them.

Lists of runner Pods never contain hook Pods, because hook Pods do not have the label of a pool.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import msgspec

from k8s_adapters.calls.client import KubeClient, object_path
from k8s_adapters.calls.metadata import METADATA_LIST, OF_POOLS, PAGE, metadata_pages
from k8s_adapters.names import HOOK_OF_LABEL
from ostler.clock import utcnow
from ostler.errors import Retryable
from rules.upstream.retry import RetryPolicy

LEFT_AFTER = timedelta(minutes=10)
"""Minimum age of a reported hook Pod. The runner Pod of a younger one might not be in the list yet."""

_COLLECTED_WITHIN = 5.0
"""Seconds that the garbage collector gets for hook Pods whose runner Pod was deleted just now."""


def find_left_over(client: KubeClient, *, namespace: str, policy: RetryPolicy | None = None) -> list[str]:
    """Return the names of hook Pods that are older than `LEFT_AFTER` and whose runner Pod is gone.

    If there are such Pods, this function waits 5 seconds and lists again, so that Pods that are just being collected do
    not count. Raises the errors of `KubeClient.request`.
    """
    found = _left_over(client, namespace, policy)
    if not found:
        return []
    client.timing.sleep(_COLLECTED_WITHIN)
    return sorted(found & _left_over(client, namespace, policy))


def _left_over(client: KubeClient, namespace: str, policy: RetryPolicy | None) -> set[str]:
    # The runner Pods are listed first. A hook Pod is younger than its runner Pod, so this list contains the runner Pod
    # of every hook Pod that is old enough, unless the runner Pod is gone.
    pages = metadata_pages(client, "pods", namespace=namespace, selector=OF_POOLS, policy=policy)
    runners = {each.uid for page in pages for each in page}
    before = utcnow() - LEFT_AFTER
    return {
        each.name
        for each in _hook_pods(client, namespace, policy)
        if each.deletion_timestamp is None
        and each.creation_timestamp < before
        and not any(owner.uid in runners for owner in each.owner_references)
    }


def _hook_pods(client: KubeClient, namespace: str, policy: RetryPolicy | None) -> Iterator[_Metadata]:
    query: dict[str, str | int] = {"limit": PAGE, "labelSelector": HOOK_OF_LABEL}
    path = object_path("pods", namespace=namespace)
    while True:
        page = client.get(path, query=query, accept=METADATA_LIST, policy=policy, decode=_DECODER.decode)
        if isinstance(page.items, msgspec.UnsetType):
            raise Retryable(f"the answer to a list of hook Pods in {namespace} has no field `items`")
        yield from (item.metadata for item in page.items or ())
        if not (following := (page.metadata or {}).get("continue")):
            return
        query = {**query, "continue": following}


class _Owner(msgspec.Struct):
    uid: str


class _Metadata(msgspec.Struct, rename="camel"):
    name: str
    creation_timestamp: datetime
    deletion_timestamp: str | None = None
    owner_references: tuple[_Owner, ...] = ()


class _Item(msgspec.Struct):
    metadata: _Metadata


class _Page(msgspec.Struct):
    items: list[_Item] | msgspec.UnsetType | None = msgspec.UNSET
    metadata: dict[str, Any] | None = None


_DECODER = msgspec.json.Decoder(_Page)

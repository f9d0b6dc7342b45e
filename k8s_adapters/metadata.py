"""Objects of which only the metadata is read: what a sweep over a large cluster lists, a page at a time.

The server is asked for `PartialObjectMetadataList`, so that a page costs the same whatever its objects hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from k8s_adapters.client import Json, KubeClient, object_path
from k8s_adapters.names import OWNER_LABEL, POOL_LABEL
from k8s_adapters.retry import RetryPolicy
from ostler.errors import Retryable

PAGE = 500
_ACCEPT = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

STAMPED = f"{POOL_LABEL},{OWNER_LABEL}"
"""Selects the runner Pods that have an owner."""

OF_POOLS = POOL_LABEL
"""Selects what belongs to any pool."""


@dataclass(frozen=True, slots=True)
class ObjectSeen:
    """The metadata of one object."""

    name: str
    uid: str
    created_at: datetime
    terminating: bool


def metadata_pages(
    client: KubeClient, kind: str, *, namespace: str, selector: str, policy: RetryPolicy | None = None
) -> Iterator[list[ObjectSeen]]:
    """Yield what a selector finds of a core kind (its plural), page by page.

    Raises `Retryable` when a page could not be had or the list expired between two: what was yielded stands, but that
    something was not among it means nothing.
    """
    query: dict[str, str | int] = {"limit": PAGE, "labelSelector": selector}
    while True:
        page = client.request("GET", object_path(kind, namespace=namespace), query=query, accept=_ACCEPT, policy=policy)
        items = page.get("items")
        if items is None:
            if "items" not in page:
                raise Retryable(f"a list of {kind} came without its items")
            items = []
        yield [_read(item["metadata"]) for item in items]
        following = (page.get("metadata") or {}).get("continue")
        if not following:
            return
        query = {**query, "continue": following}


def _read(metadata: Json) -> ObjectSeen:
    return ObjectSeen(
        name=metadata["name"],
        uid=metadata["uid"],
        created_at=datetime.fromisoformat(metadata["creationTimestamp"]),
        terminating="deletionTimestamp" in metadata,
    )

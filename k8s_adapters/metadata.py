"""Metadata-only lists of objects, for sweeps over a large cluster, one page at a time.

The server answers with a `PartialObjectMetadataList`, so the cost of a page does not depend on the size of its objects.
Most of the answer is still `managedFields`. The typed decoder skips them, at a fifteenth of the CPU of a full parse.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import msgspec

from k8s_adapters.client import KubeClient, object_path
from k8s_adapters.names import CLAIM_ANNOTATION, OWNER_LABEL, POOL_LABEL
from ostler.errors import Retryable
from rules.upstream.retry import RetryPolicy

PAGE = 500
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

OF_POOLS = POOL_LABEL
"""Label selector for all objects of any pool."""


@dataclass(frozen=True, slots=True)
class ObjectSeen:
    """The metadata of one object. `owner` and `stamp` are the stamp on a Pod, or None if the Pod has none.

    `stamped` says that the Pod has an owner label, even a label whose value is no number.
    """

    name: str
    uid: str
    created_at: datetime
    terminating: bool
    owner: int | None
    stamp: str | None
    stamped: bool = False


def metadata_pages(
    client: KubeClient, kind: str, *, namespace: str, selector: str, policy: RetryPolicy | None = None
) -> Iterator[list[ObjectSeen]]:
    """Yield the objects of a core kind that a label selector matches, page by page. `kind` is the plural of the kind.

    Raises `Retryable` if a page cannot be read or the list expires between two pages. The objects that were yielded
    before exist, but an object that was not yielded is not proven missing.
    """
    query: dict[str, str | int] = {"limit": PAGE, "labelSelector": selector}
    path = object_path(kind, namespace=namespace)
    while True:
        page = client.get(path, query=query, accept=METADATA_LIST, policy=policy, decode=_DECODER.decode)
        if isinstance(page.items, msgspec.UnsetType):
            raise Retryable(f"the answer to a list of {kind} has no field `items`")
        yield [_read(item.metadata) for item in page.items or ()]
        if page.metadata is None or not page.metadata.following:
            return
        query = {**query, "continue": page.metadata.following}


class _Labels(msgspec.Struct, gc=False):
    owner: str | None = msgspec.field(name=OWNER_LABEL, default=None)


class _Annotations(msgspec.Struct, gc=False):
    stamp: str | None = msgspec.field(name=CLAIM_ANNOTATION, default=None)


class _Metadata(msgspec.Struct, gc=False, rename="camel"):
    name: str
    uid: str
    creation_timestamp: datetime
    deletion_timestamp: str | None = None
    labels: _Labels | None = None
    annotations: _Annotations | None = None


class _Item(msgspec.Struct, gc=False):
    metadata: _Metadata


class _ListMetadata(msgspec.Struct, gc=False):
    following: str | None = msgspec.field(name="continue", default=None)


class _Page(msgspec.Struct):
    """A list. The value null means an empty list; a missing `items` means that the answer is no list."""

    items: list[_Item] | msgspec.UnsetType | None = msgspec.UNSET
    metadata: _ListMetadata | None = None


_DECODER = msgspec.json.Decoder(_Page)


def _read(metadata: _Metadata) -> ObjectSeen:
    owner = None if metadata.labels is None else metadata.labels.owner
    return ObjectSeen(
        name=metadata.name,
        uid=metadata.uid,
        created_at=metadata.creation_timestamp,
        terminating=metadata.deletion_timestamp is not None,
        owner=int(owner) if owner is not None and owner.isdecimal() else None,
        stamp=None if metadata.annotations is None else metadata.annotations.stamp,
        stamped=owner is not None,
    )

"""Lists of the objects of runner Pods, in every namespace of pools."""

from __future__ import annotations

from collections.abc import Iterator

from k8s_adapters.calls.metadata import OF_POOLS, ObjectSeen, metadata_pages
from tasks.worker.base import SWEEP_LIST, calls
from tasks.worker.runtime import Runtime


def runner_pages(rt: Runtime, kind: str, *, group: str = "") -> Iterator[list[ObjectSeen]]:
    """Yield the objects of this kind that belong to runner Pods, page by page, one namespace after the other.

    `kind` is a plural, such as `pods`, and `group` is its API group. Each object names its namespace. Raises what the
    Kubernetes adapter raises if a page cannot be read. The caller must then treat every namespace as unread (law L8).
    """
    for namespace in rt.settings.namespaces:
        yield from metadata_pages(
            rt.kube, kind, namespace=namespace, selector=OF_POOLS, group=group, policy=calls(SWEEP_LIST)
        )

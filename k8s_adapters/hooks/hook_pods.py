"""Hook Pods of the cluster: their state for people, and those that the garbage collector should have deleted.

Lists of runner Pods never contain hook Pods, because hook Pods do not have the label of a pool.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

from k8s_adapters.calls.client import Json, KubeClient, object_path, part
from k8s_adapters.calls.metadata import METADATA_LIST, OF_POOLS, PAGE, metadata_pages
from k8s_adapters.names import HOOK_OF_LABEL
from k8s_adapters.runners.pods import disruption_of, ended_state, raw_pages, unschedulable_because
from ostler.clock import utcnow
from ostler.errors import Retryable
from rules.claims.hook_pods import HookPod
from rules.upstream.retry import RetryPolicy

LEFT_AFTER = timedelta(minutes=10)
"""Minimum age of a reported hook Pod. The runner Pod of a younger one might not be in the list yet."""

_COLLECTED_WITHIN = 5.0
"""Seconds that the garbage collector gets for hook Pods whose runner Pod was deleted just now."""


_STARTING = frozenset({"ContainerCreating", "PodInitializing"})
"""Reasons of a container that waits because its Pod is starting."""


@dataclass(frozen=True, slots=True)
class HookPodView:
    """A hook Pod when it was read. `runner` is the UID of its runner Pod, or None if no owner reference names one."""

    uid: str
    runner: str | None
    terminating: bool
    pod: HookPod


def list_hook_pods_at(
    client: KubeClient, *, namespace: str, policy: RetryPolicy | None = None
) -> tuple[list[HookPodView], str]:
    """Return all hook Pods of a namespace, and the resource version of the list. A watch can continue from it.

    Raises `Retryable` if a page cannot be read, or if the list expires between two pages.
    """
    pods: list[HookPodView] = []
    version = ""
    for page in raw_pages(client, namespace=namespace, selector=HOOK_OF_LABEL, policy=policy):
        pods.extend(read_hook_pod(item) for item in page["items"] or ())
        version = str(part(page, "metadata").get("resourceVersion") or "")
    return pods, version


def read_hook_pod(item: Json) -> HookPodView:
    """Return a hook Pod from its JSON."""
    metadata: Json = item["metadata"]
    spec, status = part(item, "spec"), part(item, "status")
    terminating = "deletionTimestamp" in metadata
    owners = metadata.get("ownerReferences") or ()
    return HookPodView(
        uid=metadata["uid"],
        runner=next((each["uid"] for each in owners if each.get("kind") == "Pod"), None),
        terminating=terminating,
        pod=HookPod(
            name=metadata["name"],
            phase="Terminating" if terminating else status.get("phase") or "Pending",
            node=spec.get("nodeName"),
            problem=_problem(status, terminating=terminating),
            created_at=datetime.fromisoformat(metadata["creationTimestamp"]),
            seen_at=utcnow(),
        ),
    )


def _problem(status: Json, *, terminating: bool) -> str | None:
    """Return why a container does not start or how it failed, or None.

    The exit codes of a Pod that is being deleted say nothing, because the kubelet kills its containers. At the end of a
    job, the sidecar deletes the Pod.
    """
    if (reason := status.get("reason") or disruption_of(status)) is not None:
        return str(reason)
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    for container in containers:
        ended = ended_state(container)
        if ended.get("reason") == "OOMKilled":
            return f"container {container['name']} used more memory than its limit (OOMKilled)"
        if ended.get("exitCode") and not terminating:
            return f"container {container['name']} ended with exit code {ended['exitCode']}"
    if terminating:
        return None
    for container in containers:
        waits = part(part(container, "state"), "waiting").get("reason")
        if waits and waits not in _STARTING:
            return f"container {container['name']} does not start ({waits})"
    message = unschedulable_because(status)
    return None if message is None else f"no node accepts it: {message}"


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

"""Hook Pods of the cluster, parsed from JSON. Their states are only shown to people."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from k8s_adapters.calls.client import Json, KubeClient, part
from k8s_adapters.names import HOOK_OF_LABEL
from k8s_adapters.runners.pods import disruption_of, ended_state, raw_pages, unschedulable_because
from ostler.clock import utcnow
from rules.claims.hook_pods import HookPod
from rules.upstream.retry import RetryPolicy

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

"""Rollout of a Deployment: find the Deployment by labels, restart it, and count the old Pods until none is left."""

from __future__ import annotations

from dataclasses import dataclass

from k8s_adapters.calls.client import MERGE_PATCH, Json, KubeClient, object_path
from k8s_adapters.calls.metadata import metadata_pages
from ostler.clock import utcnow
from ostler.errors import Gone

_RESTARTED = "kubectl.kubernetes.io/restartedAt"  # annotation that `kubectl rollout restart` writes


@dataclass(frozen=True, slots=True)
class Rolling:
    """A Deployment as it was read.

    `image` is the image of its first container. `selector` selects its Pods, and `pods` contains their UIDs.
    """

    namespace: str
    name: str
    image: str
    selector: str
    pods: frozenset[str]


def find_deployments(client: KubeClient, *, namespace: str, selector: str) -> list[Rolling]:
    """Return the Deployments of a namespace that match a label selector."""
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    found = client.request("GET", path, query={"labelSelector": selector}).get("items") or []
    return [_read(client, each) for each in found]


def restart(client: KubeClient, deployment: Rolling) -> None:
    """Make a Deployment replace its Pods, as `kubectl rollout restart` does."""
    path = f"/apis/apps/v1/namespaces/{deployment.namespace}/deployments/{deployment.name}"
    template = {"metadata": {"annotations": {_RESTARTED: utcnow().isoformat()}}}
    client.request("PATCH", path, body={"spec": {"template": template}}, content_type=MERGE_PATCH)


def left_of(client: KubeClient, deployment: Rolling) -> int:
    """Return the number of Pods in `deployment.pods` that still exist."""
    return len(deployment.pods & _pods(client, deployment.namespace, deployment.selector))


def address_of(client: KubeClient, deployment: Rolling) -> str | None:
    """Return the host and port of the Service that has the name of the Deployment.

    Return None if there is no such Service, or if the Service has no port.
    """
    try:
        path = object_path("services", namespace=deployment.namespace, name=deployment.name)
        ports = client.request("GET", path)["spec"].get("ports") or []
    except Gone:
        return None
    return f"{deployment.name}.{deployment.namespace}.svc:{ports[0]['port']}" if ports else None


def ended_with(client: KubeClient, pod: Json) -> tuple[bool, bool, str]:
    """Return three values for a Pod with one container.

    The first is True if the container is ready. The second is True if the container or the Pod has terminated. The
    third is the termination message.
    """
    metadata = pod["metadata"]
    seen = client.request("GET", object_path("pods", namespace=metadata["namespace"], name=metadata["name"]))
    status: Json = seen.get("status") or {}
    container: Json = next(iter(status.get("containerStatuses") or ()), {})
    ended: Json = (container.get("state") or {}).get("terminated") or {}
    over = bool(ended) or status.get("phase") in {"Succeeded", "Failed"}
    return bool(container.get("ready")), over, str(ended.get("message") or "")


def _read(client: KubeClient, item: Json) -> Rolling:
    labels: dict[str, str] = item["spec"]["selector"].get("matchLabels") or {}
    selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    metadata = item["metadata"]
    return Rolling(
        namespace=metadata["namespace"],
        name=metadata["name"],
        image=item["spec"]["template"]["spec"]["containers"][0]["image"],
        selector=selector,
        pods=_pods(client, metadata["namespace"], selector),
    )


def _pods(client: KubeClient, namespace: str, selector: str) -> frozenset[str]:
    pages = metadata_pages(client, "pods", namespace=namespace, selector=selector)
    return frozenset(each.uid for page in pages for each in page)

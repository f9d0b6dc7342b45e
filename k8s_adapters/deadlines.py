"""Set the deadline of a Pod that is running: the kubelet ends its containers when it is reached."""

from __future__ import annotations

from k8s_adapters.client import JSON_PATCH, METADATA_ONLY, Json, KubeClient, object_path
from ostler.errors import Conflict, Gone, Invalid
from rules.upstream.retry import RetryPolicy


def set_deadline(
    client: KubeClient, *, namespace: str, name: str, uid: str, seconds: int, policy: RetryPolicy | None = None
) -> bool:
    """Set `activeDeadlineSeconds` of the Pod with this UID; return whether it was set.

    False when the Pod is gone, another one has its name, or it has an earlier deadline: the API server takes a deadline
    that is added or lowered, and refuses one that is raised. Raises `Retryable`, `RateLimited` and `Forbidden`.
    """
    operations: list[Json] = [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "add", "path": "/spec/activeDeadlineSeconds", "value": seconds},
    ]
    path = object_path("pods", namespace=namespace, name=name)
    try:
        client.request("PATCH", path, body=operations, content_type=JSON_PATCH, accept=METADATA_ONLY, policy=policy)
    except (Gone, Conflict, Invalid):
        return False
    return True

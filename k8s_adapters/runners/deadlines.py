"""Set the deadline of a running Pod. The kubelet stops the containers of the Pod when the deadline is reached."""

from __future__ import annotations

from k8s_adapters.calls.client import JSON_PATCH, METADATA_ONLY, Json, KubeClient, object_path
from k8s_adapters.runners.pods import tests_of
from ostler.errors import Conflict, Gone, Invalid
from rules.upstream.retry import RetryPolicy


def set_deadline(
    client: KubeClient, *, namespace: str, name: str, uid: str, seconds: int, policy: RetryPolicy | None = None
) -> bool:
    """Set `activeDeadlineSeconds` of the Pod with this UID to `seconds`. Return True if the deadline was set.

    Return False if the Pod is gone or terminating, if another Pod has its name, if the Pod has an earlier deadline, or
    if the API server refuses the patch for another reason (400, 409, 422). The API server refuses to move an existing
    deadline to a later time. Raises `Retryable`, `RateLimited` or `Forbidden` if the call fails.
    """
    operations: list[Json] = [
        *tests_of(uid),
        {"op": "add", "path": "/spec/activeDeadlineSeconds", "value": seconds},
    ]
    path = object_path("pods", namespace=namespace, name=name)
    try:
        client.request("PATCH", path, body=operations, content_type=JSON_PATCH, accept=METADATA_ONLY, policy=policy)
    except (Gone, Conflict, Invalid):
        return False
    return True

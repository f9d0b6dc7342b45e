"""PersistentVolumeClaims of the runners of a pool. The controller of StatefulSets creates them."""

from __future__ import annotations

from datetime import datetime

from k8s_adapters.calls.client import Json, KubeClient, object_path
from k8s_adapters.names import DIGEST_ANNOTATION, POOL_LABEL, POOL_UID_ANNOTATION, RUNNER_LABEL
from ostler.clock import utcnow
from ostler.errors import Conflict, Gone, Retryable
from rules.pools.volumes import VolumeSeen
from rules.upstream.retry import RetryPolicy

_KIND = "persistentvolumeclaims"
_PAGE = 500


def list_volumes(
    client: KubeClient, *, namespace: str, pool: str, policy: RetryPolicy | None = None
) -> list[VolumeSeen]:
    """Return the volumes of a pool's runners. The list is complete.

    Raises `Retryable` if a page cannot be read, or if the list expires between two pages.
    """
    query: dict[str, str | int] = {"limit": _PAGE, "labelSelector": f"{POOL_LABEL}={pool},{RUNNER_LABEL}"}
    found: list[VolumeSeen] = []
    while True:
        page = client.request("GET", object_path(_KIND, namespace=namespace), query=query, policy=policy)
        if "items" not in page:  # null means an empty list; a missing key means no list
            raise Retryable(f"the answer to a list of volumes in {namespace} has no field `items`")
        found.extend(_read(item) for item in page["items"] or ())
        following = (page.get("metadata") or {}).get("continue")
        if not following:
            return found
        query = {**query, "continue": following}


def delete_volume(
    client: KubeClient, *, namespace: str, name: str, uid: str, policy: RetryPolicy | None = None
) -> None:
    """Delete the PersistentVolumeClaim with this UID. It is no error if it is missing or has another UID.

    Kubernetes waits with the deletion while a Pod uses the volume. The storage class decides what becomes of the data.
    """
    body: Json = {"preconditions": {"uid": uid}}
    try:
        client.request("DELETE", object_path(_KIND, namespace=namespace, name=name), body=body, policy=policy)
    except (Gone, Conflict):
        return


def _read(item: Json) -> VolumeSeen:
    metadata = item["metadata"]
    annotations = metadata.get("annotations") or {}
    phase = (item.get("status") or {}).get("phase")
    return VolumeSeen(
        name=metadata["name"],
        uid=metadata["uid"],
        runner=metadata["labels"][RUNNER_LABEL],
        shape=annotations.get(DIGEST_ANNOTATION, ""),
        pool_uid=annotations.get(POOL_UID_ANNOTATION, ""),
        age_seconds=(utcnow() - datetime.fromisoformat(metadata["creationTimestamp"])).total_seconds(),
        lost=phase == "Lost",
        pending=phase == "Pending",
        terminating="deletionTimestamp" in metadata,
    )

"""`RunnerPool` objects: read, list and patch them.

If the spec of a pool cannot be used, the pool is listed with a `problem`. One such pool does not make the list fail
(law L14). Ostler writes with merge patches. A full update would make Ostler the owner of fields that other clients set.
"""

from __future__ import annotations

import secrets
from urllib.parse import quote

from k8s_adapters.calls.client import MERGE_PATCH, Json, KubeClient
from k8s_adapters.names import API_VERSION, ATTEMPT_ANNOTATION, KIND, PAUSE_ANNOTATION, PLURAL
from k8s_adapters.pools.pool_reader import read_pool
from ostler.errors import Conflict, Gone, Retryable
from rules.pools.pool_spec import PoolSpec
from rules.upstream.retry import RetryPolicy

_PAGE = 500


def list_pools(client: KubeClient, *, namespace: str, policy: RetryPolicy | None = None) -> list[PoolSpec]:
    """Return all pools of a namespace. The list is complete.

    Raises `Retryable` if a page cannot be read, or if the list expires between two pages.
    """
    return list_pools_at(client, namespace=namespace, policy=policy)[0]


def list_pools_at(
    client: KubeClient, *, namespace: str, policy: RetryPolicy | None = None
) -> tuple[list[PoolSpec], str]:
    """Return the result of `list_pools`, and the resource version of the list.

    A watch can continue from this version.
    """
    query: dict[str, str | int] = {"limit": _PAGE}
    pools: list[PoolSpec] = []
    while True:
        page = client.request("GET", pool_path(namespace), query=query, policy=policy)
        if "items" not in page:  # a missing key does not mean an empty list
            raise Retryable(f"the answer to a list of pools in {namespace} has no field `items`")
        pools.extend(read_pool(item) for item in page["items"] or ())
        following = page.get("metadata", {}).get("continue")
        if not following:
            return pools, str(page.get("metadata", {}).get("resourceVersion") or "")
        query = {"limit": _PAGE, "continue": following}


def get_pool(client: KubeClient, *, namespace: str, name: str, policy: RetryPolicy | None = None) -> PoolSpec | None:
    """Return one pool, or None if no pool has this name."""
    try:
        return read_pool(client.request("GET", pool_path(namespace, name), policy=policy))
    except Gone:
        return None


def create_pool(client: KubeClient, *, namespace: str, name: str, spec: Json, manager: str | None = None) -> PoolSpec:
    """Create a pool from its `spec`, and return the pool. `manager` is as in `scale_pool`.

    If the API server created the pool but its answer was lost, a retry finds this pool and returns it. Raises
    `Conflict` if another pool has the name, and `Invalid` if the API server refuses the spec.
    """
    attempt = secrets.token_hex(8)
    metadata = {"name": name, "annotations": {ATTEMPT_ANNOTATION: attempt}}
    body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}
    try:
        return read_pool(client.request("POST", pool_path(namespace), body=body, query=_by(manager)))
    except Conflict:
        found = client.request("GET", pool_path(namespace, name))
        if (found["metadata"].get("annotations") or {}).get(ATTEMPT_ANNOTATION) != attempt:
            raise
        return read_pool(found)


def patch_pool_replicas(client: KubeClient, *, namespace: str, name: str, replicas: int) -> PoolSpec:
    """Set `spec.replicas` of a pool. Raises `Gone` if there is no such pool."""
    body = {"spec": {"replicas": replicas}}
    return read_pool(client.request("PATCH", pool_path(namespace, name), body=body, content_type=MERGE_PATCH))


def scale_pool(
    client: KubeClient,
    pool: PoolSpec,
    *,
    replicas: int,
    manager: str | None = None,
    policy: RetryPolicy | None = None,
) -> PoolSpec:
    """Set `spec.replicas` of a pool, unless the pool has changed since it was read.

    `manager` is the field manager of the write. If it is None, the API server takes `FIELD_MANAGER`.

    Raises `Gone` if there is no such pool, and `Conflict` if the pool has changed. `Conflict` is also raised if an
    earlier attempt of this call made the change, but the answer to this attempt was lost.
    """
    metadata = {"uid": pool.uid, "resourceVersion": pool.resource_version}
    return _patch(client, pool, {"metadata": metadata, "spec": {"replicas": replicas}}, manager, policy)


def patch_pool_status(
    client: KubeClient, *, namespace: str, name: str, uid: str, status: Json, policy: RetryPolicy | None = None
) -> None:
    """Write fields of a pool's status. Each given field replaces the old value of the field.

    Raises `Gone` if there is no such pool, and `Invalid` if another pool has the name.
    """
    body = {"metadata": {"uid": uid}, "status": status}
    client.request("PATCH", f"{pool_path(namespace, name)}/status", body=body, content_type=MERGE_PATCH, policy=policy)


def pause_pool(
    client: KubeClient,
    pool: PoolSpec,
    *,
    paused: bool,
    manager: str | None = None,
    policy: RetryPolicy | None = None,
) -> PoolSpec:
    """Pause the given pool if `paused` is True, otherwise end its pause. `manager` is as in `scale_pool`.

    Raises `Gone` if there is no such pool, and `Conflict` if another pool has its name.
    """
    return _patch(client, pool, {"metadata": {"uid": pool.uid}, "spec": {"paused": paused}}, manager, policy)


def answer_pause_request(
    client: KubeClient, pool: PoolSpec, *, request: str, paused: bool, manager: str, policy: RetryPolicy | None = None
) -> PoolSpec:
    """Pause or resume a pool as `pause_pool` does, and write the id of the request to the pool in the same call.

    Raises `Conflict` if the pool has changed since it was read. `manager` is as in `scale_pool`.
    """
    metadata = {
        "uid": pool.uid,
        "resourceVersion": pool.resource_version,
        "annotations": {PAUSE_ANNOTATION: request},
    }
    return _patch(client, pool, {"metadata": metadata, "spec": {"paused": paused}}, manager, policy)


def _patch(client: KubeClient, pool: PoolSpec, body: Json, manager: str | None, policy: RetryPolicy | None) -> PoolSpec:
    path = pool_path(pool.namespace, pool.name)
    found = client.request("PATCH", path, body=body, query=_by(manager), content_type=MERGE_PATCH, policy=policy)
    return read_pool(found)


def _by(manager: str | None) -> dict[str, str]:
    return {} if manager is None else {"fieldManager": manager}


def drain_pool(client: KubeClient, pool: PoolSpec) -> None:
    """Request the deletion of the pool, unless the pool has changed since it was read.

    Because of Ostler's finalizer, the pool drains before the API server removes it. If the pool is already gone, no
    error is raised. Raises `Conflict` if the pool has changed, because another client might have removed the finalizer.
    """
    preconditions = {"uid": pool.uid, "resourceVersion": pool.resource_version}
    body = {"preconditions": preconditions, "propagationPolicy": "Background"}
    try:
        client.request("DELETE", pool_path(pool.namespace, pool.name), body=body)
    except Gone:
        return


def delete_pool(client: KubeClient, *, namespace: str, name: str) -> None:
    """Delete a pool with the propagation policy `Background`.

    If the pool is already gone, no error is raised.
    """
    try:
        client.request("DELETE", pool_path(namespace, name), query={"propagationPolicy": "Background"})
    except Gone:
        return


def pool_path(namespace: str, name: str | None = None) -> str:
    """Return the path of a pool. If `name` is None, return the path of all pools of the namespace."""
    collection = f"/apis/{API_VERSION}/namespaces/{quote(namespace, safe='')}/{PLURAL}"
    return collection if name is None else f"{collection}/{quote(name, safe='')}"

"""The Secret that the chart reads. Existing values are changed only on request."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from k8s_adapters.calls.client import MERGE_PATCH, KubeClient, object_path
from ostler.errors import Conflict, Gone
from ostler.secrets import Secret

MANAGED_BY = {"app.kubernetes.io/managed-by": "ostler"}


def keys_of(client: KubeClient, *, namespace: str, name: str) -> frozenset[str] | None:
    """Return the keys of a Secret that have a value, or None if there is no such Secret."""
    try:
        found = client.request("GET", object_path("secrets", namespace=namespace, name=name))
    except Gone:
        return None
    return frozenset(key for key, value in (found.get("data") or {}).items() if value)


def put_secret(
    client: KubeClient,
    *,
    namespace: str,
    name: str,
    values: Mapping[str, Secret],
    replace: bool = False,
    dry_run: bool = False,
) -> None:
    """Write values into a Secret. Keys of the Secret that are not in `values` stay unchanged.

    If `replace` is False and the Secret already has a value for a key of `values`, nothing is written. Raises
    `Conflict` in this case, and `Gone` if there is no such namespace.

    With `dry_run`, the API server checks everything (the namespace, the rights, admission policies) and writes nothing.
    """
    query = {"dryRun": "All"} if dry_run else None
    data = {key: base64.b64encode(value.reveal().encode()).decode() for key, value in values.items()}
    present = keys_of(client, namespace=namespace, name=name)
    if present is None:
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "Opaque",
            "metadata": {"name": name, "labels": MANAGED_BY},
            "data": data,
        }
        client.request("POST", object_path("secrets", namespace=namespace), query=query, body=body)
        return
    taken = sorted(present & values.keys())
    if taken and not replace:
        raise Conflict(f"Secret {namespace}/{name} already has {', '.join(taken)}")
    path = object_path("secrets", namespace=namespace, name=name)
    client.request("PATCH", path, query=query, body={"data": data}, content_type=MERGE_PATCH)

"""Pods that Ostler makes to find something out, and removes again. They run nothing of a pool and are no pool's.

They have the pool's label, so that policies take them for runner Pods. Its value names no pool, as no object can have
that name: the reconciler lists Pods by the names of pools, so that no row is made for these, and sweeps leave alone
what has none.
"""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta

from k8s_adapters.client import Json, KubeClient, object_path
from k8s_adapters.names import POOL_LABEL
from ostler.clock import utcnow
from ostler.errors import Conflict, Gone

PROBE_LABEL = "ostler.dev/probe"
PROBE_POOL = "ostler_probe"
"""Fits a label; a name of an object has no underscore."""

_LEFT_AFTER = timedelta(hours=2)


def create_probe(client: KubeClient, *, namespace: str, purpose: str, labels: dict[str, str], spec: Json) -> Json:
    """Create a Pod that may live under the restricted Pod Security level, and return it.

    `spec` is what it has besides. What a killed command left two hours ago goes first. Raises as `KubeClient.request`.
    """
    _forget_left(client, namespace=namespace, purpose=purpose)
    body = probe_pod(purpose=purpose, labels=labels, spec=spec)
    return client.request("POST", object_path("pods", namespace=namespace), body=body)


def probe_pod(*, purpose: str, labels: dict[str, str], spec: Json) -> Json:
    """Return the JSON of a probe that may live under the restricted Pod Security level."""
    return {
        "metadata": {
            "name": f"ostler-{purpose}-{secrets.token_hex(4)}",
            "labels": {POOL_LABEL: PROBE_POOL, PROBE_LABEL: purpose, **labels},
        },
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "restartPolicy": "Never",
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            **spec,
        },
    }


def delete_probe(client: KubeClient, pod: Json) -> None:
    """Delete a probe by name and UID; one that is gone, or has a successor, is a success.

    ValueError for any other Pod, whatever it is.
    """
    metadata = pod["metadata"]
    if (metadata.get("labels") or {}).get(POOL_LABEL) != PROBE_POOL:
        raise ValueError(f"{metadata['name']} is not a probe")
    path = object_path("pods", namespace=metadata["namespace"], name=metadata["name"])
    try:
        client.request("DELETE", path, body={"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}})
    except (Gone, Conflict):
        return


def restricted(container: Json) -> Json:
    """Return a container as the restricted level wants it, with a little of everything that quotas ask for."""
    size = {"cpu": "10m", "memory": "128Mi"}
    return {
        "resources": {"requests": size, "limits": size},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        **container,
    }


def _forget_left(client: KubeClient, *, namespace: str, purpose: str) -> None:
    query = {"labelSelector": f"{POOL_LABEL}={PROBE_POOL},{PROBE_LABEL}={purpose}"}
    for each in client.request("GET", object_path("pods", namespace=namespace), query=query).get("items") or []:
        if utcnow() - datetime.fromisoformat(each["metadata"]["creationTimestamp"]) > _LEFT_AFTER:
            delete_probe(client, each)

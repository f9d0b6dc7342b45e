"""Probe Pods: Ostler creates them to test the cluster, and deletes them. They belong to no pool and run no job.

Probe Pods have the pool label, so that policies treat them like runner Pods. The value of the label is no valid name of
an object, so no pool can have this name. The reconciler lists Pods by the name of a pool, and therefore inserts no rows
for probe Pods. Sweeps ignore Pods without a row.
"""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta

from k8s_adapters.calls.client import Json, KubeClient, object_path
from k8s_adapters.names import POOL_LABEL
from ostler.clock import utcnow
from ostler.errors import Conflict, Gone

PROBE_LABEL = "ostler.dev/probe"
PROBE_POOL = "ostler_probe"
"""Value of the pool label. No object can have this name, because the name of an object cannot contain an underscore."""

_LEFT_AFTER = timedelta(hours=2)


def create_probe(client: KubeClient, *, namespace: str, purpose: str, labels: dict[str, str], spec: Json) -> Json:
    """Create a probe Pod that the Pod Security level `restricted` allows, and return its JSON.

    The containers in `spec` must be results of `restricted`. The fields of `spec` replace those of the Pod's spec.
    Before it creates the Pod, this function deletes probe Pods of the same purpose that are older than two hours. A
    command that was killed might have left them. Raises the errors of `KubeClient.request`.
    """
    _delete_left_over(client, namespace=namespace, purpose=purpose)
    body = probe_pod(purpose=purpose, labels=labels, spec=spec)
    return client.request("POST", object_path("pods", namespace=namespace), body=body)


def probe_pod(*, purpose: str, labels: dict[str, str], spec: Json) -> Json:
    """Return the JSON of a probe Pod that the Pod Security level `restricted` allows."""
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
    """Delete a probe Pod by name and UID. If the Pod is gone or replaced, nothing is deleted and no error is raised.

    Raises ValueError if the Pod is no probe Pod.
    """
    metadata = pod["metadata"]
    if (metadata.get("labels") or {}).get(POOL_LABEL) != PROBE_POOL:
        raise ValueError(f"Pod {metadata['name']} is not a probe Pod")
    path = object_path("pods", namespace=metadata["namespace"], name=metadata["name"])
    try:
        client.request("DELETE", path, body={"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}})
    except (Gone, Conflict):
        return


def restricted(container: Json) -> Json:
    """Return a container that the Pod Security level `restricted` allows.

    It has small requests and limits, because a quota might require them.
    """
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


def _delete_left_over(client: KubeClient, *, namespace: str, purpose: str) -> None:
    query = {"labelSelector": f"{POOL_LABEL}={PROBE_POOL},{PROBE_LABEL}={purpose}"}
    for each in client.request("GET", object_path("pods", namespace=namespace), query=query).get("items") or []:
        if utcnow() - datetime.fromisoformat(each["metadata"]["creationTimestamp"]) > _LEFT_AFTER:
            delete_probe(client, each)

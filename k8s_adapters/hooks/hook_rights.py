"""Rights of container jobs: the Role and RoleBinding of a runner Pod, and the metadata of its hook Pods and Secrets.

Apart from creations, the Role grants rights on named objects only. One runner Pod therefore cannot reach the objects of
another. An admission policy of the chart (`admission-policy-hooks.yaml`) lets a worker create no other Roles than
these, and lets a runner Pod create only objects with this metadata. The policy and this module must agree, and tests
compare them on a real API server.

The Role also contains the size of a hook Pod. A later change of the pool therefore does not affect a busy Pod.

The ServiceAccount of the runner Pod owns the Role and the RoleBinding. Ostler deletes the ServiceAccount after the Pod,
and the cluster's garbage collector then deletes the Role and the RoleBinding. If the pool owned these two objects, the
foreground deletion of the pool would delete the rights of a busy Pod.
"""

from __future__ import annotations

from typing import Any

from k8s_adapters.calls.client import Json
from k8s_adapters.names import (
    ATTEMPT_ANNOTATION,
    DIGEST_ANNOTATION,
    GROUP,
    HOOK_OF_LABEL,
    HOOK_POOL_LABEL,
    HOOK_SIZES,
    KEEP_NODE,
    LIMITED,
    MANAGED_BY_LABEL,
    POOL_LABEL,
    SERVICE_ACCOUNT_ANNOTATION,
)
from rules.pools.hook_names import pod_names, secret_names

RBAC = "rbac.authorization.k8s.io"


def role_rules(pod: str, size: str | None) -> list[Json]:
    """Return the rules of the Role of a runner Pod. The admission policy demands exactly these rules in this order.

    `size` is the `hook_size` of the pool. The last rule allows no call of the API server. The admission policy for hook
    Pods asks the authorizer for this rule, and compares the limits of the Pod with the size.

    `size` is None if the containers of a job run in the runner Pod itself. The Role then gives rights on this Pod and
    on its Secrets only. An admission policy limits the containers that can be added, and those that execute commands.

    A resource name cannot limit `create`, because the API server does not know the name of a new object when it checks
    the permission. The admission policy limits `create`. The verb `create` of `pods/exec` concerns an existing Pod, so
    the names apply. A WebSocket needs `get` or `create`, depending on the version of Kubernetes.
    """
    pods, secrets = list(pod_names(pod)), list(secret_names(pod))
    if size is None:
        return [
            {"apiGroups": [""], "resources": ["pods"], "resourceNames": [pod], "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["pods/ephemeralcontainers"], "resourceNames": [pod], "verbs": ["patch"]},
            {"apiGroups": [""], "resources": ["pods/exec"], "resourceNames": [pod], "verbs": ["create", "get"]},
            {"apiGroups": [""], "resources": ["secrets"], "resourceNames": secrets, "verbs": ["get", "delete"]},
            {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
        ]
    return [
        {"apiGroups": [""], "resources": ["pods"], "resourceNames": pods, "verbs": ["get", "delete"]},
        {"apiGroups": [""], "resources": ["pods/exec"], "resourceNames": pods, "verbs": ["create", "get"]},
        {"apiGroups": [""], "resources": ["pods/log"], "resourceNames": pods, "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": secrets, "verbs": ["get", "delete"]},
        {"apiGroups": [""], "resources": ["pods", "secrets"], "verbs": ["create"]},
        {"apiGroups": [GROUP], "resources": [HOOK_SIZES], "resourceNames": [LIMITED, size], "verbs": ["use"]},
    ]


def build_role(
    *, namespace: str, name: str, pool: str, attempt: str, digest: str, account_uid: str, size: str | None
) -> Json:
    """Return the JSON of the Role of a runner Pod.

    `account_uid` is the UID of the Pod's ServiceAccount. `size` is as for `role_rules`.
    """
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "Role",
        "metadata": _metadata(namespace, name, pool, attempt, digest, account_uid),
        "rules": role_rules(name, size),
    }


def build_role_binding(*, namespace: str, name: str, pool: str, attempt: str, digest: str, account_uid: str) -> Json:
    """Return the JSON of the RoleBinding that gives a runner Pod's Role to its ServiceAccount."""
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": _metadata(namespace, name, pool, attempt, digest, account_uid),
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    }


def hook_metadata(
    *, namespace: str, name: str, pod: str, pod_uid: str, pool: str, digest: str, size: str | None = None
) -> Json:
    """Return the metadata of a hook Pod or of a Secret.

    `pod` and `pod_uid` identify the runner Pod that owns the object, so the garbage collector deletes the object after
    the runner Pod. `digest` is the digest of the object's body. `size` is the `hook_size` of a Pod, and None for a
    Secret. A Pod also has annotations so that autoscalers do not remove its node. The object has no `POOL_LABEL`, so
    that no list of runner Pods contains it.

    The size is a part of the annotation with the digest. The policies of the previous release refuse other annotations,
    so with a separate annotation for the size, running jobs would fail after a rollback.
    """
    annotations: dict[str, Any] = (
        {DIGEST_ANNOTATION: digest} if size is None else {DIGEST_ANNOTATION: f"{size}.{digest}", **KEEP_NODE}
    )
    return {
        "name": name,
        "namespace": namespace,
        "labels": {HOOK_OF_LABEL: pod, HOOK_POOL_LABEL: pool, MANAGED_BY_LABEL: "ostler"},
        "annotations": annotations,
        "ownerReferences": [
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": pod,
                "uid": pod_uid,
                "controller": False,
                "blockOwnerDeletion": False,
            }
        ],
    }


def _metadata(namespace: str, name: str, pool: str, attempt: str, digest: str, account_uid: str) -> Json:
    return {
        "name": name,
        "namespace": namespace,
        "labels": {POOL_LABEL: pool, MANAGED_BY_LABEL: "ostler"},
        "annotations": {
            ATTEMPT_ANNOTATION: attempt,
            DIGEST_ANNOTATION: digest,
            SERVICE_ACCOUNT_ANNOTATION: account_uid,
        },
        "ownerReferences": [{"apiVersion": "v1", "kind": "ServiceAccount", "name": name, "uid": account_uid}],
    }

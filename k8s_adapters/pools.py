"""The `RunnerPool` custom resource: its definition, and pools as the rest of Ostler sees them.

A pool whose spec cannot be used is listed with a `problem` instead of failing the list (law L14).
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from urllib.parse import quote

from kubernetes.utils.quantity import parse_quantity

from k8s_adapters.client import MERGE_PATCH, Json, KubeClient
from k8s_adapters.names import ATTEMPT_ANNOTATION
from k8s_adapters.retry import RetryPolicy
from ostler.errors import Conflict, Gone, Retryable

GROUP = "ostler.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "RunnerPool"
_PLURAL = "runnerpools"
_CRD_NAME = f"{_PLURAL}.{GROUP}"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_PAGE = 500
_TEMPLATE_VERSION = 1  # raise it when the Pod that is built from the same spec changes
_DEFAULT_CPU = "2"
_DEFAULT_MEMORY = "4Gi"
_MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class PoolSeen:
    """One pool as the cluster has it; `problem` says why it cannot be used, and is None when it can.

    `template_hash` changes with whatever shapes the Pod, and with nothing else.
    """

    uid: str
    name: str
    namespace: str
    image: str
    runner_labels: tuple[str, ...]
    runner_group: int
    vcpu_millicores: int
    memory_mib: int
    replicas: int
    allowed_accounts: tuple[int, ...]
    allowed_repositories: tuple[str, ...]
    routing_priority: int
    terminating: bool
    template_hash: str
    problem: str | None


def apply_crd(client: KubeClient, *, within: float = 30.0) -> None:
    """Create or update the definition of `RunnerPool` and wait until the API server serves it.

    Safe to run from several processes at once. Raises `Retryable` when it is not served `within` seconds.
    """
    try:
        client.request("POST", _CRDS, body=crd_manifest())
    except Conflict:
        client.request("PATCH", f"{_CRDS}/{_CRD_NAME}", body=crd_manifest(), content_type=MERGE_PATCH)
    deadline = client.timing.clock() + within
    while not _established(client.request("GET", f"{_CRDS}/{_CRD_NAME}")) or not _served(client):
        if client.timing.clock() > deadline:
            raise Retryable(f"{_CRD_NAME} is not served after {within:.0f} s")
        client.timing.sleep(0.05)


def list_pools(client: KubeClient, *, namespace: str, policy: RetryPolicy | None = None) -> list[PoolSeen]:
    """Return all pools of a namespace, whole or not at all.

    Raises `Retryable` when the list changed its mind between pages.
    """
    query: dict[str, str | int] = {"limit": _PAGE}
    pools: list[PoolSeen] = []
    while True:
        page = client.request("GET", _path(namespace), query=query, policy=policy)
        pools.extend(read_pool(item) for item in page["items"])
        following = page.get("metadata", {}).get("continue")
        if not following:
            return pools
        query = {"limit": _PAGE, "continue": following}


def get_pool(client: KubeClient, *, namespace: str, name: str, policy: RetryPolicy | None = None) -> PoolSeen | None:
    """Return one pool, or None when there is none of this name."""
    try:
        return read_pool(client.request("GET", _path(namespace, name), policy=policy))
    except Gone:
        return None


def create_pool(client: KubeClient, *, namespace: str, name: str, spec: Json) -> PoolSeen:
    """Create a pool from its `spec`, also when a reply is lost on the way.

    Raises `Conflict` when the name is taken, `Invalid` for a bad spec.
    """
    attempt = secrets.token_hex(8)
    metadata = {"name": name, "annotations": {ATTEMPT_ANNOTATION: attempt}}
    body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}
    try:
        return read_pool(client.request("POST", _path(namespace), body=body))
    except Conflict:
        found = client.request("GET", _path(namespace, name))
        if (found["metadata"].get("annotations") or {}).get(ATTEMPT_ANNOTATION) != attempt:
            raise
        return read_pool(found)


def patch_pool_replicas(client: KubeClient, *, namespace: str, name: str, replicas: int) -> PoolSeen:
    """Set how many Pods a pool keeps. Raises `Gone` when there is no such pool."""
    body = {"spec": {"replicas": replicas}}
    return read_pool(client.request("PATCH", _path(namespace, name), body=body, content_type=MERGE_PATCH))


def delete_pool(client: KubeClient, *, namespace: str, name: str) -> None:
    """Delete a pool in the background; one that is gone already is a success."""
    try:
        client.request("DELETE", _path(namespace, name), query={"propagationPolicy": "Background"})
    except Gone:
        return


def read_pool(item: Json) -> PoolSeen:
    """Return a pool from its JSON; never raises for a spec that makes no sense."""
    metadata: Json = item["metadata"]
    spec: Json = item.get("spec") or {}
    resources: Json = spec.get("resources") or {}
    problems: list[str] = []
    vcpu = _whole(resources.get("cpu", _DEFAULT_CPU), 1000, "spec.resources.cpu", problems)
    memory = _whole(resources.get("memory", _DEFAULT_MEMORY), Decimal(1) / _MIB, "spec.resources.memory", problems)
    image = str(spec.get("image") or "")
    labels = tuple(str(label) for label in spec.get("runnerLabels") or ())
    if not image:
        problems.append("spec.image is empty")
    if not labels:
        problems.append("spec.runnerLabels is empty")
    return PoolSeen(
        uid=metadata["uid"],
        name=metadata["name"],
        namespace=metadata["namespace"],
        image=image,
        runner_labels=labels,
        runner_group=int(spec.get("runnerGroup", 1)),
        vcpu_millicores=vcpu,
        memory_mib=memory,
        replicas=int(spec.get("replicas", 0)),
        allowed_accounts=tuple(int(account) for account in spec.get("allowedAccounts") or ()),
        allowed_repositories=tuple(str(repository) for repository in spec.get("allowedRepositories") or ()),
        routing_priority=int(spec.get("routingPriority", 0)),
        terminating="deletionTimestamp" in metadata,
        template_hash=template_hash(image=image, vcpu_millicores=vcpu, memory_mib=memory),
        problem="; ".join(problems) or None,
    )


def template_hash(*, image: str, vcpu_millicores: int, memory_mib: int) -> str:
    """Return 16 hex digits that name what shapes a Pod; small enough for a label."""
    content = json.dumps([_TEMPLATE_VERSION, image, vcpu_millicores, memory_mib])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _whole(value: Any, factor: int | Decimal, field: str, problems: list[str]) -> int:
    """Return a quantity times `factor`, rounded up; 0 and a problem when it is none."""
    try:
        amount = Decimal(parse_quantity(value)) * factor  # type: ignore[no-untyped-call]
    except (ValueError, ArithmeticError):
        problems.append(f"{field} is no quantity: {value!r}")
        return 0
    if not amount.is_finite() or amount <= 0:
        problems.append(f"{field} must be more than 0: {value!r}")
        return 0
    return math.ceil(amount)


def _path(namespace: str, name: str | None = None) -> str:
    collection = f"/apis/{API_VERSION}/namespaces/{quote(namespace, safe='')}/{_PLURAL}"
    return collection if name is None else f"{collection}/{quote(name, safe='')}"


def _established(definition: Json) -> bool:
    conditions = definition.get("status", {}).get("conditions") or []  # null at first
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


def _served(client: KubeClient) -> bool:
    """Return whether the kind is answered: for a moment after Established it is still 404."""
    try:
        client.request("GET", f"/apis/{API_VERSION}/{_PLURAL}", query={"limit": 1})
    except Gone:
        return False
    return True


def crd_manifest() -> Json:
    """Return the definition of `RunnerPool` as JSON."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": _CRD_NAME},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": _PLURAL,
                "singular": "runnerpool",
                "shortNames": ["rpool"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        {"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas"},
                        {"name": "Labels", "type": "string", "jsonPath": ".spec.runnerLabels"},
                        {"name": "Image", "type": "string", "jsonPath": ".spec.image", "priority": 1},
                        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
                    ],
                    "schema": {"openAPIV3Schema": _schema()},
                }
            ],
        },
    }


def _schema() -> Json:
    def quantity(default: int | str, text: str) -> Json:
        return {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "default": default,
            "description": text,
        }

    spec = {
        "type": "object",
        "required": ["image", "runnerLabels"],
        "properties": {
            "image": {"type": "string", "minLength": 1, "description": "Image of both containers of a Pod."},
            "runnerLabels": {
                "type": "array",
                "minItems": 1,
                "maxItems": 100,
                "items": {"type": "string", "minLength": 1, "maxLength": 256},
                "description": "Labels that its runners are registered with.",
            },
            "runnerGroup": {"type": "integer", "minimum": 1, "default": 1, "description": "Runner group on GitHub."},
            "resources": {
                "type": "object",
                "default": {},
                "properties": {
                    "cpu": quantity(2, "CPU of container `runner`, request and limit."),
                    "memory": quantity(_DEFAULT_MEMORY, "Memory of container `runner`, request and limit."),
                },
            },
            "replicas": {"type": "integer", "minimum": 0, "default": 0, "description": "Pods to keep."},
            "allowedAccounts": {
                "type": "array",
                "items": {"type": "integer", "format": "int64"},
                "description": "Accounts that may use the pool, by GitHub's numeric id; empty is all.",
            },
            "allowedRepositories": {
                "type": "array",
                "items": {"type": "string", "minLength": 1},
                "description": "Repositories that may use the pool, as owner/name; empty is all.",
            },
            "routingPriority": {
                "type": "integer",
                "default": 0,
                "description": "The higher one wins among pools that fit a job equally well.",
            },
        },
    }
    status = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {"type": "object", "required": ["spec"], "properties": {"spec": spec, "status": status}}

"""Deployed objects of a cluster that a deploy might change. `ostler check-deploy` reads them as whole objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import quote

import orjson

from k8s_adapters.calls.client import Json, KubeClient, object_path
from k8s_adapters.calls.metadata import METADATA_LIST
from k8s_adapters.names import API_VERSION, KIND, PLURAL, POOL_LABEL
from ostler.errors import Gone, Retryable

_PAGE = 500
_NETWORKING = "/apis/networking.k8s.io/v1"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_DEFINITION = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{PLURAL}.ostler.dev"

_OF_CLUSTER = (
    ("/api/v1", "namespaces", "v1", "Namespace"),
    (_NETWORKING, "networkpolicies", "networking.k8s.io/v1", "NetworkPolicy"),
    (f"/apis/{API_VERSION}", PLURAL, API_VERSION, KIND),
    (_ADMISSION, "validatingadmissionpolicies", "admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"),
    (
        _ADMISSION,
        "validatingadmissionpolicybindings",
        "admissionregistration.k8s.io/v1",
        "ValidatingAdmissionPolicyBinding",
    ),
)
"""Kinds that are read in all namespaces.

Policies and pools outside the namespaces of the deploy affect the deploy as well.
"""

_OF_NAMESPACES = (
    ("/apis/apps/v1", "deployments", "apps/v1", "Deployment"),
    ("/apis/apps/v1", "statefulsets", "apps/v1", "StatefulSet"),
    ("/apis/apps/v1", "daemonsets", "apps/v1", "DaemonSet"),
    ("/apis/batch/v1", "cronjobs", "batch/v1", "CronJob"),
    ("/api/v1", "services", "v1", "Service"),
    ("/api/v1", "configmaps", "v1", "ConfigMap"),
)


def read_deployed(client: KubeClient, *, namespaces: Iterable[str]) -> list[Json]:
    """Return the objects that a deploy might change.

    Some kinds are read in the whole cluster, other kinds only in `namespaces`. If the cluster does not know a kind, the
    result contains no objects of this kind. Raises the errors of `KubeClient.request` if a list fails, because an
    incomplete result would be wrong.
    """
    found: list[Json] = []
    for root, plural, version, kind in _OF_CLUSTER:
        found += _list(client, f"{root}/{plural}", version, kind)
    for namespace in sorted(set(namespaces)):
        for root, plural, version, kind in _OF_NAMESPACES:
            found += _list(client, f"{root}/namespaces/{quote(namespace, safe='')}/{plural}", version, kind)
    try:
        found.append(client.request("GET", _DEFINITION))
    except Gone:
        return found
    return found


def labels_of_runners(client: KubeClient, *, namespace: str) -> list[Mapping[str, str]]:
    """Return the labels of each runner Pod of a namespace.

    The result has one entry per Pod, even if several Pods have the same labels. The owner label of a stamp is one of
    the labels. Raises the errors of `KubeClient.request`.
    """
    found: list[Mapping[str, str]] = []
    query: dict[str, str | int] = {"limit": _PAGE, "labelSelector": POOL_LABEL}
    path = object_path("pods", namespace=namespace)
    while True:
        page = client.get(path, query=query, accept=METADATA_LIST, decode=orjson.loads)
        found += [each["metadata"].get("labels") or {} for each in _items(page, path)]
        following = (page.get("metadata") or {}).get("continue")
        if not following:
            return found
        query = {**query, "continue": following}


def _list(client: KubeClient, path: str, version: str, kind: str) -> list[Json]:
    query: dict[str, str | int] = {"limit": _PAGE}
    found: list[Json] = []
    while True:
        try:
            page = client.request("GET", path, query=query)
        except Gone:
            return []
        found += [{**each, "apiVersion": version, "kind": kind} for each in _items(page, path)]
        following = (page.get("metadata") or {}).get("continue")
        if not following:
            return found
        query = {**query, "continue": following}


def _items(page: Json, path: str) -> list[Json]:
    if "items" not in page:
        raise Retryable(f"GET {path}: the answer has no field `items`")
    return page["items"] or []

"""The CustomResourceDefinition of `RunnerPool` and its installation.

`runnerpools.yaml` beside this module is the only source of the definition: schema, defaults, CEL rules, columns and
subresources. `ostler crd` applies it, and the chart has a copy. The API server refuses a spec that violates a CEL rule.
CEL cannot detect some errors, such as an invalid overlay of the Pod template. Ostler reports such errors in the
condition `Degraded` of the pool.
"""

from __future__ import annotations

from importlib.resources import files

import yaml

from k8s_adapters.calls.client import MERGE_PATCH, Json, KubeClient
from k8s_adapters.names import API_VERSION, GROUP, PLURAL
from ostler.errors import Conflict, Gone, Retryable

CRD_NAME = f"{PLURAL}.{GROUP}"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def apply_crd(client: KubeClient, *, within: float = 30.0) -> None:
    """Create or update the definition of `RunnerPool`, and wait until the API server serves it.

    Several processes may call this function at the same time. Raises `Retryable` if the definition is not served after
    `within` seconds, and the errors of `KubeClient.request`.
    """
    try:
        client.request("POST", _CRDS, body=crd_manifest())
    except Conflict:
        client.request("PATCH", f"{_CRDS}/{CRD_NAME}", body=crd_manifest(), content_type=MERGE_PATCH)
    deadline = client.timing.clock() + within
    while not _established(client.request("GET", f"{_CRDS}/{CRD_NAME}")) or not _served(client):
        if client.timing.clock() > deadline:
            raise Retryable(f"the API server does not serve {CRD_NAME} after {within:.0f} s; try again")
        client.timing.sleep(0.05)


def _established(definition: Json) -> bool:
    conditions = definition.get("status", {}).get("conditions") or []  # the conditions are null at first
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


def _served(client: KubeClient) -> bool:
    """Return whether the API server serves `RunnerPool` objects.

    For a moment after the condition `Established` is true, the API server still answers 404.
    """
    try:
        client.request("GET", f"/apis/{API_VERSION}/{PLURAL}", query={"limit": 1})
    except Gone:
        return False
    return True


def crd_text() -> str:
    """Return the definition of `RunnerPool` as YAML."""
    return files("k8s_adapters.pools").joinpath("runnerpools.yaml").read_text(encoding="utf-8")


def crd_manifest() -> Json:
    """Return the definition of `RunnerPool` as JSON."""
    definition: Json = yaml.safe_load(crd_text())
    return definition

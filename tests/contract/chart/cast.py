"""The identities of a release on the real API server, and the rights of each identity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from k8s_adapters.calls.client import KubeClient
from lab.identities import Identities

ALL = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
POOLS = "ostler.dev@runnerpools"
LEASES = "coordination.k8s.io@leases"
CRDS = "apiextensions.k8s.io@customresourcedefinitions"
POLICIES = "admissionregistration.k8s.io@validatingadmissionpolicies"


@dataclass(frozen=True, kw_only=True)
class Cast:
    """An installed release: one client per identity, and two namespaces."""

    identities: Identities
    clients: Mapping[str, KubeClient]
    runners: str
    admin: KubeClient

    @property
    def release(self) -> str:
        return self.identities.namespace


def allowed(client: KubeClient, verb: str, resource: str, *, namespace: str | None, name: str | None = None) -> bool:
    """Return whether the client has a right. `resource` is `group@plural/subresource`, or `//path` for a URL."""
    spec: dict[str, Any]
    if resource.startswith("//"):
        spec = {"nonResourceAttributes": {"verb": verb, "path": resource[1:]}}
    else:
        group, _, rest = resource.rpartition("@")
        plural, _, sub = rest.partition("/")
        attributes = {"verb": verb, "group": group, "resource": plural, "subresource": sub}
        attributes |= {"namespace": namespace} if namespace else {}
        spec = {"resourceAttributes": attributes | ({"name": name} if name else {})}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec}
    answer = client.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=body)
    return bool(answer["status"]["allowed"])

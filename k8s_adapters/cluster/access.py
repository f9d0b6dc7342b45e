"""Rights that each process needs in the cluster, verb by verb. `ostler doctor` checks them with the API server.

The chart grants exactly these rights (charts/ostler/templates/rbac.yaml). A test compares this module with the chart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from k8s_adapters.calls.client import Json, KubeClient
from k8s_adapters.names import GROUP, PLURAL
from k8s_adapters.runners.runner_scripts import scripts_name

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


@dataclass(frozen=True, slots=True)
class Right:
    """One verb on one resource. The resource is written as `plural` or `plural/subresource`.

    The right applies to each namespace of runner Pods. If `cluster` is set, the right applies to the whole cluster. If
    `path` is set, the right is a GET of this path, and there is no resource.
    """

    verb: str
    resource: str = ""
    group: str = ""
    name: str | None = None
    cluster: bool = False
    path: str | None = None

    def __str__(self) -> str:
        if self.path is not None:
            return f"{self.verb} {self.path}"
        named = "" if self.name is None else f" {self.name}"
        return f"{self.verb} {self.resource}{'.' + self.group if self.group else ''}{named}"


def _rights(
    verbs: str, resource: str, group: str = "", *, name: str | None = None, cluster: bool = False
) -> list[Right]:
    return [Right(verb, resource, group, name=name, cluster=cluster) for verb in verbs.split()]


EPOCH = "ostler-epoch"
LEASE = "ostler-watch"

RIGHTS: Mapping[str, Sequence[Right]] = {
    "web": (
        *_rights("get", "pods"),
        *_rights("get", PLURAL, GROUP),
        *_rights("create", "tokenreviews", "authentication.k8s.io", cluster=True),
        Right("get", path="/.well-known/openid-configuration"),
        Right("get", path="/openid/v1/jwks"),
    ),
    "worker": (
        *_rights("get list create update patch delete", "pods"),
        *_rights("get list create delete", "serviceaccounts"),
        *_rights("get list create delete", "statefulsets", "apps"),
        *_rights("list delete", "persistentvolumeclaims"),
        *_rights("get list update patch", PLURAL, GROUP),
        *_rights("patch", f"{PLURAL}/status", GROUP),
        *_rights("create list", "events", "events.k8s.io"),
        *_rights("create", "configmaps"),
        *_rights("get patch", "configmaps", name=EPOCH),
        *_rights("get", "configmaps", name=scripts_name()),
        *_rights("get list", "nodes", cluster=True),
    ),
    "watch": (
        *_rights("list watch", "pods"),
        *_rights("list watch", PLURAL, GROUP),
        *_rights("create", "leases", "coordination.k8s.io"),
        *_rights("get patch", "leases", "coordination.k8s.io", name=LEASE),
    ),
}
"""Rights of each process. Beat and Flower need none.

`ostler migrate`, `ostler crd` and `ostler pool detach` are not listed, because an administrator or a hook of the chart
runs them.
"""

CONTAINER_RIGHTS: Mapping[str, Sequence[Right]] = {
    "worker": (
        *_rights("get create escalate bind", "roles", "rbac.authorization.k8s.io"),
        *_rights("get create", "rolebindings", "rbac.authorization.k8s.io"),
    ),
}
"""Rights that a process needs besides `RIGHTS` if a pool has container jobs (`runners.containers.enabled`)."""


def who_am_i(client: KubeClient) -> str:
    """Return the user name that the API server has authenticated this client as."""
    answer = client.request("POST", _WHO, body={"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"})
    return str(answer["status"]["userInfo"]["username"])


def may(client: KubeClient, right: Right, *, namespace: str) -> bool:
    """Return whether the API server would allow this client to use the right."""
    if right.path is not None:
        spec: Json = {"nonResourceAttributes": {"verb": right.verb, "path": right.path}}
    else:
        resource, _, subresource = right.resource.partition("/")
        attributes: Json = {
            "verb": right.verb,
            "group": right.group,
            "resource": resource,
            "subresource": subresource,
            "name": right.name or "",
            "namespace": "" if right.cluster else namespace,
        }
        spec = {"resourceAttributes": attributes}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec}
    return bool(client.request("POST", _REVIEWS, body=body)["status"]["allowed"])

"""ServiceAccounts and Roles of the chart, applied to the lab's cluster, with a token for each process of Ostler.

With them, every process of Ostler has the same permissions on a real control plane as in production, and never those of
the administrator. The chart's admission policy and disruption budget are applied too, so the cluster refuses here what
it refuses in production.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from k8s_adapters.calls.client import KubeClient
from lab import helm
from lab.control_plane_access import ClusterAccess, write_kubeconfig
from lab.manifests import Kinds, Manifest
from ostler.errors import Conflict

IDENTITIES = ("web", "worker", "beat", "watch", "flower", "migrate", "uninstall")
TOKEN_SECONDS = 24 * 3600

_KINDS = (
    "ServiceAccount",
    "Role",
    "RoleBinding",
    "ClusterRole",
    "ClusterRoleBinding",
    "PodDisruptionBudget",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
)
_RELEASE = "ostler"


class Identities:
    """Identities of one release. The release is in `namespace`, and its runner Pods are in the namespace `runners`.

    If the `values` name elevated pools, the runner Pods of these pools are in the elevated namespace.
    """

    def __init__(self, kube: KubeClient, *, namespace: str, runners: str, values: helm.Values | None = None) -> None:
        given = dict(values or {})
        given["runners"] = {**given.get("runners", {}), "namespace": runners, "create": False}
        objects = helm.render(values=given, namespace=namespace, release=_RELEASE)
        self._kube = kube
        self.namespace = namespace
        self.manifests: Sequence[Manifest] = [each for each in objects if each["kind"] in _KINDS]

    def put_in_place(self) -> None:
        """Create the namespaces of the manifests that do not exist, and apply all manifests."""
        namespaces = {each["metadata"].get("namespace", self.namespace) for each in self.manifests}
        for name in {self.namespace, *namespaces}:
            with contextlib.suppress(Conflict):
                self._kube.request("POST", "/api/v1/namespaces", body={"metadata": {"name": name}})
        kinds = Kinds(self._kube)
        for manifest in self.manifests:
            kinds.apply(manifest)

    def remove(self) -> None:
        """Delete the objects without a namespace, then the release's namespace.

        The cluster deletes the content of the namespace in the background. Objects in other namespaces remain.
        """
        kinds = Kinds(self._kube)
        for manifest in self.manifests:
            if "namespace" not in manifest["metadata"]:
                self._kube.request("DELETE", f"{kinds.collection(manifest)}/{manifest['metadata']['name']}")
        self._kube.request("DELETE", f"/api/v1/namespaces/{self.namespace}")
        self._kube.close()

    def account(self, process: str) -> str:
        """Return the name of a process's ServiceAccount."""
        return f"{_RELEASE}-{process}"

    def user(self, process: str) -> str:
        """Return the user name that the API server gives to a process."""
        return f"system:serviceaccount:{self.namespace}:{self.account(process)}"

    def token(self, process: str) -> str:
        """Request a token for a process's ServiceAccount, as the kubelet does, and return it."""
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{self.account(process)}/token"
        body: dict[str, Any] = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": TOKEN_SECONDS},
        }
        return str(self._kube.request("POST", path, body=body)["status"]["token"])

    def kubeconfig(self, process: str, access: ClusterAccess, folder: Path) -> Path:
        """Write a kubeconfig with a token of a process, and return its path."""
        path = folder / f"kubeconfig-{process}"
        write_kubeconfig(path, url=access.url, ca_file=access.ca_file, token=self.token(process))
        return path

"""The App's secrets in the cluster: created, kept beside others, and overwritten on request only."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.setup.store import ClusterSecret
from k8s_adapters.calls.client import KubeClient, object_path
from k8s_adapters.cluster.secrets import keys_of, put_secret
from lab.control_plane import ClusterAccess
from lab.control_plane_access import write_kubeconfig
from ostler.errors import Conflict, Forbidden, Gone, Invalid
from ostler.secrets import Secret

VALUES = {"OSTLER_GITHUB_APP_ID": Secret("Iv1"), "OSTLER_GITHUB_PRIVATE_KEY": Secret("pem\nof two lines")}


def read(admin: KubeClient, namespace: str, name: str = "ostler") -> dict[str, str]:
    data = admin.request("GET", object_path("secrets", namespace=namespace, name=name))["data"]
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


def test_a_secret_is_made_and_is_what_the_chart_reads(admin: KubeClient, namespace: str) -> None:
    assert keys_of(admin, namespace=namespace, name="ostler") is None
    put_secret(admin, namespace=namespace, name="ostler", values=VALUES)
    assert read(admin, namespace) == {key: value.reveal() for key, value in VALUES.items()}


@pytest.mark.cluster
def test_what_is_there_stays_beside_it_and_is_not_overwritten_unasked(
    admin: KubeClient, namespace: str, control_plane: ClusterAccess
) -> None:
    put_secret(admin, namespace=namespace, name="ostler", values={"OSTLER_DATABASE_URL": Secret("postgresql://x")})
    store = ClusterSecret(namespace, "ostler", str(control_plane.kubeconfig), replace=False)
    store.check()
    store.write(VALUES, api_url="https://api.github.com")
    assert read(admin, namespace)["OSTLER_DATABASE_URL"] == "postgresql://x"
    with pytest.raises(Conflict, match="--replace"):
        store.check()
    with pytest.raises(Conflict):
        store.write({"OSTLER_GITHUB_APP_ID": Secret("Iv2")}, api_url="https://api.github.com")
    assert read(admin, namespace)["OSTLER_GITHUB_APP_ID"] == "Iv1"
    again = ClusterSecret(namespace, "ostler", str(control_plane.kubeconfig), replace=True)
    again.check()
    again.write({"OSTLER_GITHUB_APP_ID": Secret("Iv2")}, api_url="https://api.github.com")
    assert read(admin, namespace)["OSTLER_GITHUB_APP_ID"] == "Iv2"


def store(namespace: str, kubeconfig: Path, *, replace: bool = False) -> ClusterSecret:
    return ClusterSecret(namespace, "ostler", str(kubeconfig), replace=replace)


@pytest.mark.cluster
def test_check_writes_nothing(admin: KubeClient, namespace: str, control_plane: ClusterAccess) -> None:
    store(namespace, control_plane.kubeconfig).check()

    assert keys_of(admin, namespace=namespace, name="ostler") is None


def test_missing_namespace_is_refused_by_the_check(control_plane: ClusterAccess) -> None:
    with pytest.raises(Gone, match="namespace 'nowhere' does not exist; create it with `kubectl create namespace"):
        store("nowhere", control_plane.kubeconfig).check()


@pytest.mark.cluster
def test_keys_without_a_value_are_filled_in(admin: KubeClient, namespace: str, control_plane: ClusterAccess) -> None:
    put_secret(admin, namespace=namespace, name="ostler", values={"OSTLER_GITHUB_APP_ID": Secret("")})
    kept = store(namespace, control_plane.kubeconfig)

    kept.check()
    kept.write(VALUES, api_url="https://api.github.com")

    assert read(admin, namespace)["OSTLER_GITHUB_APP_ID"] == "Iv1"


@pytest.mark.cluster
def test_immutable_secret_is_refused_by_the_check(
    admin: KubeClient, namespace: str, control_plane: ClusterAccess
) -> None:
    body = {"metadata": {"name": "ostler"}, "immutable": True, "stringData": {"OSTLER_DATABASE_URL": "postgresql://x"}}
    admin.request("POST", object_path("secrets", namespace=namespace), body=body)

    with pytest.raises(Invalid, match=r"ostler cannot be written: .*immutable"):
        store(namespace, control_plane.kubeconfig).check()


def rights(admin: KubeClient, namespace: str, *verbs: str) -> str:
    """Create a ServiceAccount with exactly these verbs on the Secrets of a namespace, and return its token."""
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    admin.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", body={"metadata": {"name": "me"}})
    rules = [{"apiGroups": [""], "resources": ["secrets"], "verbs": list(verbs)}]
    admin.request("POST", f"{rbac}/roles", body={"metadata": {"name": "me"}, "rules": rules})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "me"}
    subjects = [{"kind": "ServiceAccount", "name": "me", "namespace": namespace}]
    admin.request(
        "POST", f"{rbac}/rolebindings", body={"metadata": {"name": "me"}, "roleRef": role, "subjects": subjects}
    )
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/me/token"
    token: str = admin.request("POST", path, body={"spec": {}})["status"]["token"]
    return token


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("verbs", "exists", "allowed"),
    [
        (("get", "create", "patch"), False, True),
        (("get", "create", "patch"), True, True),
        (("get",), False, False),
        (("get", "create"), True, False),
        (("create", "patch"), False, False),
    ],
)
def test_check_needs_the_rights_of_the_write(
    admin: KubeClient,
    namespace: str,
    control_plane: ClusterAccess,
    tmp_path: Path,
    verbs: tuple[str, ...],
    exists: bool,
    allowed: bool,
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    token = rights(admin, namespace, *verbs)
    write_kubeconfig(kubeconfig, url=control_plane.url, ca_file=control_plane.ca_file, token=token)
    if exists:
        put_secret(admin, namespace=namespace, name="ostler", values={"OSTLER_DATABASE_URL": Secret("postgresql://x")})

    if allowed:
        store(namespace, kubeconfig).check()
        return
    with pytest.raises(Forbidden, match=r"needs the verbs get, create and patch on secrets there") as refused:
        store(namespace, kubeconfig).check()
    assert "cannot" in str(refused.value)  # the API server's own words
    assert "--kubeconfig" in str(refused.value)


def test_setup_ends_before_its_page_opens_when_the_namespace_is_missing(control_plane: ClusterAccess) -> None:
    command = [sys.executable, "-m", "ostler", "setup", "github", "--no-browser", "--namespace", "nowhere"]
    done = subprocess.run(
        [*command, "--webhook-url", "https://ostler.example.com/webhooks/github"],
        env={**os.environ, "OSTLER_KUBECONFIG": str(control_plane.kubeconfig)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.returncode == 1
    assert done.stderr.startswith("ostler: nothing was created yet: namespace 'nowhere' does not exist")
    assert done.stdout == ""

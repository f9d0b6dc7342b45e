"""The App's secrets in the cluster: created, kept beside others, and overwritten only when that is asked for."""

from __future__ import annotations

import base64

import pytest

from cli.setup.store import ClusterSecret
from k8s_adapters.client import KubeClient, object_path
from k8s_adapters.secrets import keys_of, put_secret
from lab.control_plane import ClusterAccess
from ostler.errors import Conflict
from ostler.secrets import Secret

VALUES = {"OSTLER_GITHUB_APP_ID": Secret("Iv1"), "OSTLER_GITHUB_PRIVATE_KEY": Secret("pem\nof two lines")}


def read(admin: KubeClient, namespace: str, name: str = "ostler") -> dict[str, str]:
    data = admin.request("GET", object_path("secrets", namespace=namespace, name=name))["data"]
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


def test_a_secret_is_made_and_is_what_the_chart_reads(admin: KubeClient, namespace: str) -> None:
    assert keys_of(admin, namespace=namespace, name="ostler") is None
    put_secret(admin, namespace=namespace, name="ostler", values=VALUES)
    assert read(admin, namespace) == {key: value.reveal() for key, value in VALUES.items()}


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

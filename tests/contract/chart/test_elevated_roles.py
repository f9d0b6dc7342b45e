"""Rights of container jobs with two namespaces of runner Pods: each binding stays in its own namespace."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pytest

from k8s_adapters.calls.client import Json, KubeClient, make_client
from k8s_adapters.hooks.hook_rights import RBAC, build_role_binding
from lab.control_plane import ClusterAccess
from lab.identities import Identities
from tests.contract.chart.cast import allowed
from tests.contract.chart.test_hook_rights import VALUES, create, role
from tests.waiting import eventually


@dataclass(frozen=True)
class Places:
    """The two namespaces of a release, and a client of its worker."""

    worker: KubeClient
    first: str
    second: str


@pytest.fixture(scope="module")
def places(
    admin: KubeClient, control_plane: ClusterAccess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Places]:
    release = f"roles-{secrets.token_hex(6)}"
    first, second = f"{release}-runners", f"{release}-up"
    for name, level in ((first, "restricted"), (second, "baseline")):
        labels = {"pod-security.kubernetes.io/enforce": level}
        admin.request("POST", "/api/v1/namespaces", body={"metadata": {"name": name, "labels": labels}})
    runners = {**VALUES["runners"], "allowedPodSecurity": "baseline", "elevatedNamespace": second}
    identities = Identities(admin, namespace=release, runners=first, values={**VALUES, "runners": runners})
    identities.put_in_place()
    folder = tmp_path_factory.mktemp("identities")
    worker = make_client(kubeconfig=str(identities.kubeconfig("worker", control_plane, folder)))
    for namespace in (first, second):
        foreign = role(namespace, "other-0000000a")
        foreign["rules"] = []
        eventually(partial(refuses, worker, foreign), within=60)
        eventually(partial(allowed, worker, "bind", f"{RBAC}@roles", namespace=namespace), within=60)
    yield Places(worker, first, second)
    worker.close()
    identities.remove()
    for name in (first, second):
        admin.request("DELETE", f"/api/v1/namespaces/{name}")


def refuses(client: KubeClient, body: Json) -> bool:
    """Return whether the API server refuses the creation of an object."""
    return create(client, body)[0] == 403


def binding(namespace: str, *, of: str) -> Json:
    """Return the RoleBinding of a runner Pod in `namespace` for a ServiceAccount in the namespace `of`."""
    made = build_role_binding(
        namespace=namespace, name="one-0000000a", pool="one", attempt="a", digest="d", account_uid="u"
    )
    made["subjects"][0]["namespace"] = of
    return made


def test_worker_binds_the_role_of_a_runner_pod_in_each_namespace(places: Places) -> None:
    for namespace in (places.first, places.second):
        assert create(places.worker, binding(namespace, of=namespace)) == (200, "")


def test_worker_binds_no_role_to_an_account_of_the_other_namespace(places: Places) -> None:
    for namespace, other in ((places.first, places.second), (places.second, places.first)):
        status, said = create(places.worker, binding(namespace, of=other))
        assert (status, "must bind the Role of its name" in said) == (403, True), said

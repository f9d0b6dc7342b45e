"""Fixtures of the chart's tests: a real Helm, and a cluster with every kind that the chart uses."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from k8s_adapters.calls.client import KubeClient, make_client
from lab import foreign, helm
from lab.control_plane import ClusterAccess
from lab.identities import IDENTITIES, Identities
from lab.manifests import Kinds, UnknownKind
from lab.processes import StartError
from ostler.errors import UpstreamError
from tests.contract.chart.cast import Cast

T = TypeVar("T")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the first test of a run enough time to build Helm, which takes minutes with an empty cache."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session", autouse=True)
def _helm() -> None:
    """Build Helm before the first test that needs it."""
    _built(helm.build)


@pytest.fixture(params=helm.VERSIONS, ids=lambda version: f"helm{version}")
def each_helm(request: pytest.FixtureRequest) -> Iterator[int]:
    """Run a test once with each major version of Helm. The fixture is the version in use."""
    with helm.using(request.param):
        yield request.param


@pytest.fixture(scope="session")
def kinds(admin: KubeClient) -> Kinds:
    """The kinds of the cluster, with those of KEDA and of the Prometheus operator."""
    needed = _built(foreign.definitions)
    for definition in needed:
        Kinds(admin).apply(definition)
    for definition in needed:
        _wait_until_served(admin, definition)
    return Kinds(admin)


@pytest.fixture(scope="module")
def cast(admin: KubeClient, control_plane: ClusterAccess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cast]:
    """An installed release, with one client per identity."""
    folder = tmp_path_factory.mktemp("identities")
    release = f"rbac-{secrets.token_hex(6)}"
    runners = f"{release}-runners"
    admin.request("POST", "/api/v1/namespaces", body={"metadata": {"name": runners}})
    identities = Identities(admin, namespace=release, runners=runners)
    identities.put_in_place()
    clients = {
        process: make_client(kubeconfig=str(identities.kubeconfig(process, control_plane, folder)))
        for process in IDENTITIES
    }
    yield Cast(identities=identities, clients=clients, runners=runners, admin=admin)
    for client in clients.values():
        client.close()
    identities.remove()
    admin.request("DELETE", f"/api/v1/namespaces/{runners}")


@pytest.fixture
def runners(admin: KubeClient, namespace: str) -> Iterator[str]:
    """A namespace for runner Pods, beside the namespace of the release (`namespace`)."""
    name = f"{namespace}-runners"
    admin.request("POST", "/api/v1/namespaces", body={"metadata": {"name": name}})
    yield name
    admin.request("DELETE", f"/api/v1/namespaces/{name}")


def _wait_until_served(admin: KubeClient, definition: helm.Manifest) -> None:
    spec = definition["spec"]
    sample = {
        "apiVersion": f"{spec['group']}/{spec['versions'][0]['name']}",
        "kind": spec["names"]["kind"],
        "metadata": {"namespace": "default"},
    }
    deadline = time.monotonic() + 60
    while True:
        try:
            admin.request("GET", Kinds(admin).collection(sample))
        except (UnknownKind, UpstreamError):  # for a moment after it was made it is 404
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def _built(build: Callable[[], T]) -> T:
    try:
        return build()
    except StartError as error:
        pytest.fail(str(error), pytrace=False)

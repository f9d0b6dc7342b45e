"""Fixtures with a real Kubernetes control plane: one per test run, a fresh namespace per test.

Where it cannot be had the tests fail with one line that says why; they are never skipped.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest

from k8s_adapters.client import KubeClient, make_client
from k8s_adapters.crd import apply_crd
from k8s_adapters.draining import remove_finalizer
from k8s_adapters.pools import list_pools
from lab.control_plane import ClusterAccess, ControlPlane, ControlPlaneUnavailable, NodeGrace
from lab.control_plane_shared import shared
from ostler.errors import Gone


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterAccess]:
    """Access to the run's control plane as administrator, with the RunnerPool kind in place."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # what the workers of one run have in common
    with prepared(lambda: shared(folder / "control-plane")) as access:
        yield access


@contextmanager
def prepared(begin: Callable[[], AbstractContextManager[ClusterAccess]]) -> Iterator[ClusterAccess]:
    """Begin a control plane and put the RunnerPool kind in place; fails the test where there is none."""
    try:
        with begin() as access:
            with administrator(access) as client:
                apply_crd(client)
            yield access
    except ControlPlaneUnavailable as error:
        pytest.fail(str(error), pytrace=False)


@contextmanager
def impatient(folder: Path, nodes: NodeGrace) -> Iterator[ClusterAccess]:
    """Begin a control plane of one's own that gives up silent nodes as soon as `nodes` says."""

    @contextmanager
    def own() -> Iterator[ClusterAccess]:
        with ControlPlane.start(folder, nodes=nodes) as started:
            yield started.access

    with prepared(own) as access:
        yield access


@contextmanager
def administrator(access: ClusterAccess) -> Iterator[KubeClient]:
    """Be the administrator of a control plane."""
    client = make_client(kubeconfig=str(access.kubeconfig))
    yield client
    client.close()


@pytest.fixture(scope="session")
def admin(control_plane: ClusterAccess) -> Iterator[KubeClient]:
    """A client with the administrator's identity."""
    with administrator(control_plane) as client:
        yield client


@pytest.fixture
def namespace(admin: KubeClient) -> Iterator[str]:
    """The name of a fresh namespace; it is deleted in the background afterwards."""
    name = f"test-{secrets.token_hex(6)}"
    admin.request("POST", "/api/v1/namespaces", body={"metadata": {"name": name}})
    yield name
    delete_namespace(admin, name)


def delete_namespace(kube: KubeClient, name: str) -> None:
    """Delete a namespace in the background, unless the test has deleted it.

    Its pools are let go first: nobody is left who would drain them.
    """
    for pool in list_pools(kube, namespace=name):
        if pool.has_finalizer:
            remove_finalizer(kube, namespace=name, name=pool.name, uid=pool.uid)
    with suppress(Gone):
        kube.request("DELETE", f"/api/v1/namespaces/{name}")

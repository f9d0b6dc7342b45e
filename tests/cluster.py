"""Fixtures with a Kubernetes API server: one server per test run, and a new namespace per test.

`--cluster` chooses the server of the fixture `control_plane`: the lab's embedded server (`make test`), or a real
control plane (`make test-cluster`). Tests that the embedded server cannot show have the marker `cluster`, and only the
second command runs them. If no control plane can be started, tests fail with one line that gives the reason. They are
never skipped.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest

from k8s_adapters.calls.client import KubeClient, make_client
from k8s_adapters.pools.crd import apply_crd
from k8s_adapters.pools.draining import remove_finalizer
from k8s_adapters.pools.pools import list_pools
from lab.control_plane import ClusterAccess, ControlPlane, ControlPlaneUnavailable, NodeGrace
from lab.control_plane_shared import shared
from lab.embedded import EmbeddedCluster
from ostler.errors import Gone

_TESTS = Path(__file__).parent
WITH_HELM = (_TESTS / "contract" / "chart", _TESTS / "integration" / "deploys")
"""Folders whose tests render or install the chart with Helm."""
_LONG = (_TESTS / "contract" / "github",)
"""Folders whose tests start many processes. They cost minutes, so `make test` leaves them to `make test-cluster`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the choice of the API server."""
    parser.addoption(
        "--cluster",
        choices=("embedded", "real"),
        default="embedded",
        help="API server of the fixture control_plane; embedded also deselects the tests that need a real one",
    )


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that need a real control plane and those that run on either; on embedded, deselect the former."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        elsewhere = any(item.path.is_relative_to(folder) for folder in (*WITH_HELM, *_LONG))
        owned = "control_plane" in fixtures and "StatefulSet" in item.name  # the embedded server has no such kind
        if "real_control_plane" in fixtures or elsewhere or owned:
            item.add_marker(pytest.mark.cluster)
        elif "control_plane" in fixtures and not item.get_closest_marker("cluster"):
            item.add_marker(pytest.mark.either)
    if config.getoption("cluster") == "real":
        return
    needing = [item for item in items if item.get_closest_marker("cluster")]
    if needing and len(needing) == len(items):
        raise pytest.UsageError(
            "these tests need a real control plane, Helm or kubectl, or take long: make test-cluster T=..."
        )
    config.hook.pytest_deselected(items=needing)
    items[:] = [item for item in items if not item.get_closest_marker("cluster")]


@pytest.fixture(scope="session")
def control_plane(request: pytest.FixtureRequest) -> ClusterAccess:
    """Access to the run's API server as administrator, with the RunnerPool kind in place."""
    real = request.config.getoption("cluster") == "real"
    access: ClusterAccess = request.getfixturevalue("real_control_plane" if real else "embedded_cluster")
    return access


@pytest.fixture(scope="session")
def embedded_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterAccess]:
    """Access to an embedded API server, with the RunnerPool kind in place."""
    with EmbeddedCluster.start(tmp_path_factory.mktemp("embedded")) as cluster:
        with administrator(cluster.access) as client:
            apply_crd(client)
        yield cluster.access


@pytest.fixture(scope="session")
def real_control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterAccess]:
    """Access to the run's real control plane, for every value of `--cluster`."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # what the workers of one run have in common
    with prepared(lambda: shared(folder / "control-plane")) as access:
        yield access


@contextmanager
def prepared(begin: Callable[[], AbstractContextManager[ClusterAccess]]) -> Iterator[ClusterAccess]:
    """Start a control plane and create the RunnerPool kind. If no control plane can be started, the test fails."""
    try:
        with begin() as access:
            with administrator(access) as client:
                apply_crd(client)
            yield access
    except ControlPlaneUnavailable as error:
        pytest.fail(str(error), pytrace=False)


@contextmanager
def impatient(folder: Path, nodes: NodeGrace) -> Iterator[ClusterAccess]:
    """Start a separate control plane that declares silent nodes lost as soon as `nodes` allows."""

    @contextmanager
    def own() -> Iterator[ClusterAccess]:
        with ControlPlane.start(folder, nodes=nodes) as started:
            yield started.access

    with prepared(own) as access:
        yield access


@contextmanager
def administrator(access: ClusterAccess) -> Iterator[KubeClient]:
    """Return a client with the administrator's identity."""
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
    """The name of a new namespace, which is deleted in the background after the test."""
    name = f"test-{secrets.token_hex(6)}"
    admin.request("POST", "/api/v1/namespaces", body={"metadata": {"name": name}})
    yield name
    delete_namespace(admin, name)


def delete_namespace(kube: KubeClient, name: str) -> None:
    """Delete a namespace in the background, unless the test has deleted it.

    The finalizers of its pools are removed first, because no process is left to drain the pools.
    """
    for pool in list_pools(kube, namespace=name):
        if pool.has_finalizer:
            remove_finalizer(kube, namespace=name, name=pool.name, uid=pool.uid)
    with suppress(Gone):
        kube.request("DELETE", f"/api/v1/namespaces/{name}")

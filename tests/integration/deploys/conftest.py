"""Fixtures of the tests of deploys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from k8s_adapters.client import KubeClient, make_client
from k8s_adapters.crd import apply_crd
from lab.control_plane import ClusterAccess, ControlPlane, ControlPlaneUnavailable
from tests.integration.deploys.operator import Operator


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterAccess]:
    """A control plane of its own: `--live` looks at all namespaces, and tries a Pod in each that has pools."""
    try:
        with ControlPlane.start(tmp_path_factory.mktemp("deploys") / "control-plane") as own:
            client = make_client(kubeconfig=str(own.access.kubeconfig))
            apply_crd(client)
            client.close()
            yield own.access
    except ControlPlaneUnavailable as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="session")
def admin(control_plane: ClusterAccess) -> Iterator[KubeClient]:
    """The administrator of that one; a session has the other's already."""
    client = make_client(kubeconfig=str(control_plane.kubeconfig))
    yield client
    client.close()


@pytest.fixture
def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Operator:
    return Operator(tmp_path, monkeypatch, capsys)

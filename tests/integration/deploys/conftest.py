"""Fixtures of the tests of deploys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from k8s_adapters.client import KubeClient
from lab.control_plane import ClusterAccess, ControlPlane
from tests.cluster import administrator, prepared
from tests.integration.deploys.operator import Operator


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterAccess]:
    """A control plane of its own: `--live` checks all namespaces, and tries a Pod in each that has pools."""

    @contextmanager
    def own() -> Iterator[ClusterAccess]:
        with ControlPlane.start(tmp_path_factory.mktemp("deploys") / "control-plane") as started:
            yield started.access

    with prepared(own) as access:
        yield access


@pytest.fixture(scope="session")
def admin(control_plane: ClusterAccess) -> Iterator[KubeClient]:
    """The administrator of that one; a session has the other's already."""
    with administrator(control_plane) as client:
        yield client


@pytest.fixture
def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Operator:
    return Operator(tmp_path, monkeypatch, capsys)

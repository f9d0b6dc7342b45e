"""Fixtures of the tests of deploys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from k8s_adapters.calls.client import KubeClient
from lab.control_plane import ClusterAccess, ControlPlane
from tests.cluster import administrator, prepared
from tests.integration.deploys.operator import Operator


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterAccess]:
    """A separate control plane, because `--live` checks all namespaces and creates a test Pod in each with pools."""

    @contextmanager
    def own() -> Iterator[ClusterAccess]:
        with ControlPlane.start(tmp_path_factory.mktemp("deploys") / "control-plane") as started:
            yield started.access

    with prepared(own) as access:
        yield access


@pytest.fixture(scope="session")
def admin(control_plane: ClusterAccess) -> Iterator[KubeClient]:
    """The administrator of this control plane."""
    with administrator(control_plane) as client:
        yield client


@pytest.fixture
def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Operator:
    return Operator(tmp_path, monkeypatch, capsys)

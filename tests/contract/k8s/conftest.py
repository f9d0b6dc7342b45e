"""Fixtures of the Kubernetes adapters' tests: a pool, a runner, a client with faults.

Each of them runs twice: on the real control plane, and on the lab's embedded API server.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from k8s_adapters.client import KubeClient, make_client
from k8s_adapters.crd import apply_crd
from k8s_adapters.pools import PoolSeen, create_pool
from lab.control_plane import ClusterAccess
from lab.embedded import EmbeddedCluster
from tests.contract.k8s.transport import FaultyTransport, MakeRunner, faulty_client, maker


@pytest.fixture(scope="session")
def real_control_plane(control_plane: ClusterAccess) -> ClusterAccess:
    """Access to the real one; where tests ask for `control_plane` they are given both in turn."""
    return control_plane


@pytest.fixture(scope="session")
def embedded_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterAccess]:
    """Access to an embedded API server, with the RunnerPool kind in place."""
    with EmbeddedCluster.start(tmp_path_factory.mktemp("embedded")) as cluster:
        client = make_client(kubeconfig=str(cluster.kubeconfig))
        apply_crd(client)
        client.close()
        yield cluster.access


@pytest.fixture
def pool(admin: KubeClient, namespace: str) -> PoolSeen:
    return create_pool(admin, namespace=namespace, name="pool", spec={"image": "runner:1", "runnerLabels": ["linux"]})


@pytest.fixture
def faulty(control_plane: ClusterAccess) -> Iterator[tuple[KubeClient, FaultyTransport]]:
    client, faults = faulty_client(control_plane)
    yield client, faults
    client.close()


@pytest.fixture
def make_runner(admin: KubeClient, pool: PoolSeen) -> MakeRunner:
    return maker(admin, pool, default="pool-0000000a")

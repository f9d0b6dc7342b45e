"""Fixtures of the Kubernetes adapters' tests: a pool, a runner, a client with faults.

`make test` runs these tests on the embedded API server, and `make test-cluster` on the real control plane.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from k8s_adapters.calls.client import KubeClient
from k8s_adapters.pools.pools import create_pool
from lab.control_plane import ClusterAccess
from rules.pools.pool_spec import PoolSpec
from tests.contract.k8s.transport import FaultyTransport, MakeRunner, faulty_client, maker


@pytest.fixture
def pool(admin: KubeClient, namespace: str) -> PoolSpec:
    return create_pool(admin, namespace=namespace, name="pool", spec={"image": "runner:1", "runnerLabels": ["linux"]})


@pytest.fixture
def faulty(control_plane: ClusterAccess) -> Iterator[tuple[KubeClient, FaultyTransport]]:
    client, faults = faulty_client(control_plane)
    yield client, faults
    client.close()


@pytest.fixture
def make_runner(admin: KubeClient, pool: PoolSpec) -> MakeRunner:
    return maker(admin, pool, default="pool-0000000a")

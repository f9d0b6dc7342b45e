"""Fixtures of the tests of owners, which need the controller of StatefulSets: they run on the real control plane."""

from __future__ import annotations

import pytest

from k8s_adapters.client import Json, KubeClient
from k8s_adapters.pools import PoolSeen, create_pool
from k8s_adapters.resources import Created
from k8s_adapters.runners import create_runner
from tests.contract.k8s.transport import MakeRunner

SPEC: Json = {"image": "runner:1", "runnerLabels": ["linux"], "workload": "StatefulSet"}


@pytest.fixture
def pool(admin: KubeClient, namespace: str) -> PoolSeen:
    return create_pool(admin, namespace=namespace, name="pool", spec=SPEC)


@pytest.fixture
def make_runner(admin: KubeClient, pool: PoolSeen) -> MakeRunner:
    def make(name: str = "pool-0000000a-0", *, attempt: str = "a1", client: KubeClient | None = None) -> Created:
        return create_runner(
            client or admin,
            pool=pool,
            name=name,
            attempt=attempt,
            dispatch_url="http://web/",
            audience="ostler-dispatch",
        )

    return make

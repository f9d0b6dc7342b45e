"""Fixtures of the tests of owners. They need the controller of StatefulSets, so they use the real control plane."""

from __future__ import annotations

import pytest

from k8s_adapters.calls.client import Json, KubeClient
from k8s_adapters.pools.pools import create_pool
from rules.pools.pool_spec import PoolSpec
from tests.contract.k8s.transport import MakeRunner, maker

SPEC: Json = {"image": "runner:1", "runnerLabels": ["linux"], "workload": "StatefulSet"}


@pytest.fixture
def pool(admin: KubeClient, namespace: str) -> PoolSpec:
    return create_pool(admin, namespace=namespace, name="pool", spec=SPEC)


@pytest.fixture
def make_runner(admin: KubeClient, pool: PoolSpec) -> MakeRunner:
    return maker(admin, pool, default="pool-0000000a-0")

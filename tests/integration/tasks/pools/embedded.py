"""A stage on the embedded API server, with a proxy of faults in front of it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing

import pytest

from k8s_adapters.calls.client import make_client
from lab.control_plane import ClusterAccess
from lab.faults.fault import Fault
from lab.faults.proxy import FaultProxy
from ostler.clock import Timing
from tasks.worker import runtime as current
from tests.database import Database
from tests.integration.tasks.conftest import Stage, StubRuntime

AT_ONCE = Timing(sleep=lambda _: None)
"""Clock of a client that repeats a failed call without a wait."""

WEBHOOK = 'failed calling webhook "mutate.policy.example": failed to call webhook: Post "https://policy.example:443/"'


@pytest.fixture
def proxy(embedded_cluster: ClusterAccess) -> Iterator[FaultProxy]:
    """The proxy between the tasks and the API server."""
    access = embedded_cluster
    with FaultProxy(access.url, ca_file=access.ca_file, token=access.token) as proxy:
        yield proxy


@pytest.fixture
def embedded(database: Database, embedded_cluster: ClusterAccess, proxy: FaultProxy) -> Iterator[Stage]:
    """A stage whose tasks call the API server through `proxy`. The test itself calls it directly."""
    namespace = f"test-{secrets.token_hex(6)}"
    with (
        closing(make_client(kubeconfig=str(embedded_cluster.kubeconfig))) as admin,
        closing(make_client(kubeconfig=str(proxy.kubeconfig(embedded_cluster.kubeconfig)), timing=AT_ONCE)) as kube,
    ):
        admin.request("POST", "/api/v1/namespaces", body={"metadata": {"name": namespace}})
        rt = StubRuntime(database, kube, namespace)
        current.install(rt)  # type: ignore[arg-type]
        yield Stage(rt, namespace, admin)
        current.install(None)


def answers(status: int, message: str, *, method: str, path: str, delay_seconds: float = 0) -> Fault:
    """Return a fault: the API server answers requests that match with this status and message."""
    body = f'{{"kind": "Status", "message": {_quoted(message)}, "reason": "InternalError", "code": {status}}}'
    return Fault(
        kind="status", status=status, body=body, method_regex=method, path_regex=path, delay_seconds=delay_seconds
    )


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'

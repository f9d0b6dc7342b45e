"""Runners that are too old, in the whole system: the brake, its explanation, and its end with another image."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from k8s_adapters.calls.client import MERGE_PATCH, KubeClient
from lab.bootstrap import LabPool
from lab.control_plane import ClusterAccess
from lab.system import Options, System
from tests.waiting import eventually

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

LABELS = ("self-hosted", "linux", "old")


@pytest.fixture
def system(
    control_plane: ClusterAccess, admin: KubeClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[System]:
    """A pool with runners that are too old. One of its Pods is real processes."""
    namespace = f"old-{secrets.token_hex(4)}"
    admin.request("POST", "/api/v1/namespaces", body={"metadata": {"name": namespace}})
    pool = LabPool("old", LABELS, 3, spec={"image": "registry.example.com/ci/runner:too-old"})
    options = Options(pools=(pool,), beats=1, real_pods=1)
    with System(
        tmp_path_factory.mktemp("system"), options, say=print, namespace=namespace, control_plane=control_plane
    ) as running:
        running.wait_for_warm_pods(3, timeout=120)
        yield running
    admin.request("DELETE", f"/api/v1/namespaces/{namespace}")


def degraded(system: System, admin: KubeClient) -> dict[str, Any]:
    """Return the condition Degraded of the pool."""
    pool = admin.request("GET", path_of(system))
    found = (pool.get("status") or {}).get("conditions") or []
    return next((each for each in found if each["type"] == "Degraded"), {})


def path_of(system: System) -> str:
    """Return the path of the pool."""
    return f"/apis/ostler.dev/v1alpha1/namespaces/{system.namespace}/runnerpools/old"


def completed(system: System) -> int:
    """Return the number of jobs that succeeded."""
    return int(system.lab("GET", "/stats")["conclusions"].get("success", 0))


def test_too_old_runners_cost_few_registrations_until_the_image_changes(system: System, admin: KubeClient) -> None:
    system.lab("POST", "/jobs", {"repository": "acme/shop", "labels": list(LABELS), "count": 6})

    eventually(lambda: degraded(system, admin).get("reason") == "RunnersDoNotStart", within=240)

    assert "too old (exit code 7)" in degraded(system, admin)["message"]
    # Each job may have had a Pod before the first failure was known, and a few probes after that.
    assert system.lab("GET", "/stats")["events"]["runner_registered"] <= 6 + 3
    assert completed(system) == 0

    mended = {"spec": {"image": "registry.example.com/ci/runner:2.336.0"}}
    admin.request("PATCH", path_of(system), body=mended, content_type=MERGE_PATCH)

    eventually(lambda: completed(system) == 6, within=240)
    eventually(lambda: degraded(system, admin).get("status") == "False", within=240)

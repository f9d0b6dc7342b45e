"""Twelve scale sets become pools: they are converted and applied, and each pool runs a job of an unchanged workflow."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s_adapters.calls.client import KubeClient
from lab.bootstrap import LabPool
from lab.control_plane import ClusterAccess
from lab.system import Options, System
from ostler.errors import Conflict
from tests.cluster import delete_namespace
from tests.fleet import Fleet
from tests.integration.cli.test_operator import run_command
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(400)

VALUES = sorted((Path(__file__).parents[1] / "unit" / "rules" / "scale_sets").glob("*.yaml"))
GROUPS = ("builders", "containers")
"""Runner groups that the values name."""
CLASSES: dict[str, dict[str, Any]] = {
    "/apis/scheduling.k8s.io/v1/priorityclasses": {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "ci"},
        "value": 1,
    },
    "/apis/node.k8s.io/v1/runtimeclasses": {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "gvisor"},
        "handler": "runsc",
    },
}
"""Objects that the values name, and that a real API server asks for when a Pod is created."""


def converted() -> list[LabPool]:
    """Return the pools that the command makes of the values files."""
    pools = []
    for file in VALUES:
        (item,) = yaml.safe_load_all(run_command({}, "pool", "convert", str(file)).stdout)
        spec = item["spec"]
        pools.append(LabPool(item["metadata"]["name"], tuple(spec["runnerLabels"]), 0, spec=spec))
    return pools


@pytest.fixture
def fleet(control_plane: ClusterAccess, admin: KubeClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A system whose owner allows pools above `restricted` in the namespace of all pools."""
    namespace = f"scale-sets-{secrets.token_hex(4)}"
    for name in (namespace, f"{namespace}-restricted"):
        admin.request("POST", "/api/v1/namespaces", body={"metadata": {"name": name}})
    for path, body in CLASSES.items() if not control_plane.embedded else ():
        with contextlib.suppress(Conflict):
            admin.request("POST", path, body=body)
    options = Options(
        pools=converted(),
        beats=1,
        real_pods=0,
        own_identities=False,
        settings={
            "OSTLER_NAMESPACE": f"{namespace}-restricted",
            "OSTLER_ELEVATED_NAMESPACE": namespace,
            "OSTLER_ALLOWED_POD_SECURITY": "privileged",
            "OSTLER_DIND_IMAGE": "dind:1",
            "OSTLER_HOOKS_IMAGE": "ostler:1",
        },
    )
    folder = tmp_path_factory.mktemp("system")
    with System(folder, options, say=print, namespace=namespace, control_plane=control_plane) as running:
        for number, name in enumerate(GROUPS, start=2):
            running.lab("PUT", f"/accounts/acme/groups/{number}", {"name": name})
        fleet = Fleet(running)
        with contextlib.closing(fleet.kube):
            yield fleet
    for name in (namespace, f"{namespace}-restricted"):
        delete_namespace(admin, name)


def test_twelve_scale_sets_become_pools_that_are_ready_and_run_a_job_each(fleet: Fleet) -> None:
    pools = fleet.system.options.pools
    assert len(pools) == 12
    jobs = {}
    for pool in pools:
        (repository,) = pool.spec.get("allowedRepositories", ["acme/*"])
        # A workflow names the scale set alone. The pool can have further labels.
        scale_set = pool.labels[0]
        (jobs[pool.name],) = fleet.send(labels=(scale_set,), repository=repository.replace("*", "shop"))
    for name, job in jobs.items():
        assert fleet.wait_for(job, "completed")["conclusion"] == "success", name
        assert fleet.pod_of(job).startswith(f"{name}-")

    def unready() -> list[str]:
        conditions = {each.name: fleet.pool(each.name)["status"]["conditions"] for each in pools}
        return [
            f"{name}: {each}"
            for name, found in conditions.items()
            for each in found
            if (each["type"], each["status"]) in {("Ready", "False"), ("Degraded", "True")}
        ]

    eventually(lambda: not unready(), f"pools are not Ready: {unready()}")

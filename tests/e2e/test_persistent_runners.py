"""Persistent runners end to end: they register themselves, run one job after the other, and leave when they are idle.

The control plane, the controller of StatefulSets, the workers and the scripts in the Pods are real.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from k8s_adapters.client import MERGE_PATCH, KubeClient
from k8s_adapters.pods import list_pods
from k8s_adapters.pools import pool_path
from lab.bootstrap import ACCOUNTS, SETS_POOL, LabPool
from lab.control_plane import ClusterAccess
from lab.system import Options, System, read_log
from lab.timings import timings
from lab.verdict import judge
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(900)

LIFE: dict[str, Any] = {"lifecycle": "persistent", "registration": {"organization": "acme"}}
POOLS = (
    LabPool("static", ("self-hosted", "linux", "static"), 0, spec=LIFE),
    LabPool("licensed", ("self-hosted", "linux", "licensed"), 0, spec={**SETS_POOL.spec, **LIFE}),
)
WITHIN = 240


@pytest.fixture
def system(
    control_plane: ClusterAccess, admin: KubeClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[System]:
    namespace = f"persistent-{secrets.token_hex(4)}"
    admin.request("POST", "/api/v1/namespaces", body={"metadata": {"name": namespace}})
    options = Options(
        pools=POOLS,
        workers=2,
        real_pods=10,
        settings=timings(due_after=3, resume_every=1, sweep_every=2, slow_sweep_every=5),
    )
    with System(
        tmp_path_factory.mktemp("system"), options, say=print, namespace=namespace, control_plane=control_plane
    ) as running:
        yield running
    admin.request("DELETE", f"/api/v1/namespaces/{namespace}")


class Fleet:
    """The pools of the system, and the jobs that they got."""

    def __init__(self, system: System) -> None:
        self.system, self.kube = system, system.kube()
        self.jobs = 0

    def change(self, **spec: Any) -> None:
        for pool in POOLS:
            path = pool_path(self.system.namespace, pool.name)
            self.kube.request("PATCH", path, body={"spec": spec}, content_type=MERGE_PATCH)

    def send(self, count: int, *, seconds: float = 0.5) -> None:
        for pool in POOLS:
            job = {"repository": f"acme/{ACCOUNTS[0].repositories[0]}", "labels": list(pool.labels)}
            self.system.lab("POST", "/jobs", {**job, "count": count, "duration_seconds": seconds})
            self.jobs += count

    def runners(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.system.lab("GET", "/runners")["runners"]
        return found

    def online(self, count: int) -> None:
        """Wait until each pool has this number of runners that are online, and no other runner is registered."""

        def reached() -> bool:
            runners = self.runners()
            pods = [pod for pod in list_pods(self.kube, namespace=self.system.namespace) if not pod.terminating]
            online = sum(each["status"] == "online" for each in runners)
            return {online, len(runners), len(pods)} == {count * len(POOLS)}

        eventually(reached, within=WITHIN, what=f"{count} online runners in each pool, and no others")

    def over(self) -> None:
        def ended() -> bool:
            completed: int = Counter(self.system.lab("GET", "/stats")["jobs"])["completed"]
            return completed == self.jobs

        eventually(ended, within=WITHIN, what="the end of every job")


def test_persistent_runners_run_job_after_job_and_are_scaled_and_rolled(system: System) -> None:
    fleet = Fleet(system)
    fleet.change(replicas=2)
    fleet.online(2)
    first = {each["name"] for each in fleet.runners()}
    fleet.send(6)
    fleet.over()
    assert {each["name"] for each in fleet.runners()} == first

    fleet.send(2, seconds=8)
    eventually(lambda: all(each["busy"] for each in fleet.runners()), within=WITHIN, what="busy runners")
    fleet.change(image="runner:2")
    fleet.change(replicas=1)
    fleet.over()
    eventually(lambda: not first & {each["name"] for each in fleet.runners()}, within=WITHIN, what="new runners only")
    fleet.online(1)

    fleet.change(replicas=0)
    eventually(lambda: not fleet.runners(), within=WITHIN, what="no runner at GitHub")
    eventually(lambda: not list_pods(fleet.kube, namespace=system.namespace), within=WITHIN, what="no Pod")
    verdict = judge(read_log(system.github_log), read_log(system.kubelet_log))
    assert verdict.problems == ()
    assert verdict.completed == verdict.jobs == verdict.executions == fleet.jobs

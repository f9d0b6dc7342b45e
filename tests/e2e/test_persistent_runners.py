"""Persistent runners end to end: they register, run one job after the other, and are removed when they are idle.

The control plane, the controller of StatefulSets, the workers and the scripts in the Pods are real. The second test has
all four combinations of workload and lifecycle at once, while workers are killed and calls fail.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from k8s_adapters.calls.client import MERGE_PATCH, KubeClient, object_path
from k8s_adapters.pools.pools import pool_path
from k8s_adapters.runners.pods import list_pods
from lab.bootstrap import ACCOUNTS, SETS_POOL, LabPool
from lab.control_plane import ClusterAccess
from lab.system import Options, System, read_log
from lab.timings import timings
from lab.verdict import judge
from tests.accusations import accusations
from tests.e2e.test_workloads import Fleet as FleetOfWorkloads
from tests.e2e.test_workloads import faults
from tests.halts import make_halts
from tests.waiting import eventually

pytestmark = [pytest.mark.timeout(900), pytest.mark.cluster]  # a long story

LIFE: dict[str, Any] = {"lifecycle": "persistent", "registration": {"organization": "acme"}}
POOLS = (
    LabPool("static", ("self-hosted", "linux", "static"), 0, spec=LIFE),
    LabPool("licensed", ("self-hosted", "linux", "licensed"), 0, spec={**SETS_POOL.spec, **LIFE}),
)
ALL = (
    *POOLS,
    LabPool("plain", ("self-hosted", "linux", "plain"), 0),
    LabPool("cached", SETS_POOL.labels, 0, spec=SETS_POOL.spec),
)
WITHIN = 240


@pytest.fixture
def halts(tmp_path: Path) -> Path:
    """The folder of the halting points."""
    return make_halts(tmp_path)


@pytest.fixture
def stormy(
    control_plane: ClusterAccess, admin: KubeClient, halts: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[System]:
    """A system with all four kinds of pools, in which 5 % of the calls fail."""
    namespace = f"four-{secrets.token_hex(4)}"
    admin.request("POST", "/api/v1/namespaces", body={"metadata": {"name": namespace}})
    options = Options(
        pools=ALL,
        workers=2,
        real_pods=2,
        kubernetes_faults=faults(seed=7),
        github_faults=faults(seed=8),
        settings={
            "OSTLER_HALT_DIR": str(halts),
            **timings(due_after=3, resume_every=1, sweep_every=2, slow_sweep_every=5, orphaned_account_after=20),
        },
    )
    with System(
        tmp_path_factory.mktemp("system"), options, say=print, namespace=namespace, control_plane=control_plane
    ) as running:
        yield running
    admin.request("DELETE", f"/api/v1/namespaces/{namespace}")


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
    """The pools of the system and their jobs."""

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
        """Wait until each pool has this number of online runners, and no other runner is registered."""

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


def scale_and_roll(system: System, halts: Path, *, most: int, some: int, jobs: int) -> None:
    fleet = FleetOfWorkloads(system, halts, ALL)

    def online(count: int) -> None:
        def reached() -> bool:
            runners = system.lab("GET", "/runners")["runners"]
            names = [each["name"] for each in runners if each["status"] == "online"]
            return all(sum(name.startswith(f"{pool.name}-") for name in names) == count for pool in POOLS)

        eventually(reached, within=2 * WITHIN, what=f"{count} online runners in each persistent pool")

    fleet.change(replicas=most)
    fleet.reach(most)
    online(most)
    fleet.send(jobs)
    fleet.kill_at("delete_pod")
    fleet.over()
    fleet.send(jobs, seconds=4)
    fleet.change(image="runner:2")
    fleet.kill_at("end_owner")
    fleet.change(image="runner:3")
    fleet.kill_at("release_pod")
    fleet.send(jobs, seconds=2)
    fleet.over()
    fleet.change(replicas=some)
    fleet.reach(some)
    online(some)
    fleet.send(some, seconds=2)
    fleet.over()
    fleet.change(replicas=0)
    fleet.kill_at("delete_pod")
    fleet.reach(0)

    def nothing_left() -> bool:
        accounts = fleet.kube.request("GET", object_path("serviceaccounts", namespace=system.namespace))["items"]
        ours = [each for each in accounts if "ostler.dev/pool" in (each["metadata"].get("labels") or {})]
        return not system.lab("GET", "/runners")["runners"] and not ours

    eventually(nothing_left, within=2 * WITHIN, what="no runner at GitHub and no ServiceAccount")
    verdict = judge(read_log(system.github_log), read_log(system.kubelet_log))
    assert verdict.problems == ()
    assert verdict.completed == verdict.jobs == verdict.executions == fleet.jobs
    assert accusations(system) == []


@pytest.mark.timeout(1800)
def test_all_four_kinds_of_runners_scale_and_roll_while_workers_die_and_calls_fail(stormy: System, halts: Path) -> None:
    scale_and_roll(stormy, halts, most=3, some=1, jobs=3)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_fifty_runners_of_each_of_the_four_kinds_scale_and_roll(stormy: System, halts: Path) -> None:
    scale_and_roll(stormy, halts, most=50, some=10, jobs=50)

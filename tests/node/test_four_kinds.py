"""All four combinations of workload and lifecycle in real containers, while workers are killed and calls fail.

The same story with the lab's kubelet, and with more Pods, is `tests/e2e/test_persistent_runners.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from k8s_adapters.calls.client import MERGE_PATCH, object_path
from k8s_adapters.pools.pools import pool_path
from k8s_adapters.runners.pods import list_pods
from lab.bootstrap import LabPool
from lab.chaos.waits import REAL_STARTS, scaled
from lab.node.namespace import is_isolated
from lab.system import NODE, Options, System, read_log
from lab.timings import merged, timings
from lab.verdict import judge
from tests.accusations import accusations
from tests.e2e.test_workloads import faults
from tests.fleet import Fleet
from tests.halts import kill_worker_at, make_halts
from tests.node.volumes import add_volume
from tests.waiting import eventually

pytestmark = [pytest.mark.node, pytest.mark.timeout(1800)]

VOLUMES = 8
"""Number of volumes that the cluster has. A runner whose predecessor has not ended yet needs one of its own."""

CLAIMS = {"claims": [{"name": "cache", "mountPath": "/cache", "storage": "10Mi", "storageClassName": "by-hand"}]}
PERSISTENT: dict[str, Any] = {"lifecycle": "persistent", "registration": {"organization": "acme"}}
SETS: dict[str, Any] = {"workload": "StatefulSet", "volumes": CLAIMS}
POOLS = tuple(
    LabPool(name, ("self-hosted", "linux", name), 0, cpu="50m", memory="128Mi", spec=spec)
    for name, spec in {
        "plain": {},
        "cached": SETS,
        "static": PERSISTENT,
        "licensed": {**SETS, **PERSISTENT},
    }.items()
)
WITHIN = 420


class Pools(Fleet):
    """The four pools, and the jobs that they got."""

    def __init__(self, system: System, halts: Path) -> None:
        super().__init__(system)
        self.halts = halts
        self.jobs: list[int] = []

    def change(self, **spec: Any) -> None:
        """Change all pools."""
        for pool in POOLS:
            path = pool_path(self.namespace, pool.name)
            self.kube.request("PATCH", path, body={"spec": spec}, content_type=MERGE_PATCH)

    def roll(self, generation: int) -> None:
        """Change the template of all pools."""
        self.change(podTemplate={"metadata": {"labels": {"example.com/generation": str(generation)}}})

    def give(self, count: int, *, seconds: int) -> list[int]:
        """Queue this number of jobs for each pool, and return them."""
        jobs = [job for pool in POOLS for job in self.send(count, labels=pool.labels, script=f"sleep {seconds}")]
        self.jobs += jobs
        return jobs

    def kill_at(self, step: str) -> None:
        """Kill the next worker that is about to carry out this step of a runner's end."""
        kill_worker_at(self.system, self.halts, f"runner_end.before_{step}", within=WITHIN)

    def over(self) -> None:
        """Wait until every job is over."""

        def ended() -> bool:
            return Counter(self.system.lab("GET", "/stats")["jobs"])["completed"] == len(self.jobs)

        eventually(ended, within=WITHIN, what="the end of every job")

    def reach(self, count: int) -> None:
        """Wait until each pool has this number of Pods and nothing else, and each persistent one is online."""

        def reached() -> bool:
            pods = Counter(str(pod.pool) for pod in list_pods(self.kube, namespace=self.namespace))
            sets = self.kube.request("GET", object_path("statefulsets", namespace=self.namespace, group="apps"))
            runners = self.system.lab("GET", "/runners")["runners"]
            online = [each["name"] for each in runners if each["status"] == "online"]
            return (
                all(pods[pool.name] == count for pool in POOLS)
                and len(sets["items"]) == 2 * count
                and all(sum(name.startswith(f"{pool.name}-") for name in online) == count for pool in POOLS[2:])
            )

        eventually(reached, within=WITHIN, what=f"{count} runners in each pool, and no more")


@pytest.fixture
def halts(tmp_path: Path) -> Path:
    """The folder of the halting points."""
    return make_halts(tmp_path)


@pytest.fixture
def pools(halts: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pools]:
    """The four pools without Pods, in a system in which 5 % of the calls fail."""
    if not is_isolated():
        pytest.fail("these tests need namespaces of their own: run `make test-node`", pytrace=False)
    options = Options(
        pools=POOLS,
        workers=2,
        beats=1,
        kubernetes_faults=faults(seed=11),
        github_faults=faults(seed=12),
        settings=merged(scaled(), REAL_STARTS, timings(orphaned_account_after=20), {"OSTLER_HALT_DIR": str(halts)}),
    )
    with System(tmp_path_factory.mktemp("system"), options, say=print, cluster=NODE) as system:
        pools = Pools(system, halts)
        for _ in range(VOLUMES):
            add_volume(pools.kube, tmp_path_factory.mktemp("volume"))
        yield pools
        pools.kube.close()


def test_all_four_kinds_of_runners_scale_and_roll_while_workers_die_and_calls_fail(pools: Pools) -> None:
    pools.change(replicas=2)
    pools.reach(2)
    pools.give(2, seconds=2)
    for step in ("end_owner", "delete_pod", "release_pod"):
        pools.kill_at(step)
    pools.over()

    running = pools.give(2, seconds=20)
    for job in running:
        pools.wait_for(job, "in_progress", within=WITHIN)
    pools.roll(2)
    pools.kill_at("end_owner")
    pools.roll(3)
    pools.kill_at("delete_pod")
    pools.over()
    pools.give(2, seconds=5)
    pools.change(replicas=1)
    pools.kill_at("release_pod")
    pools.over()
    pools.reach(1)
    pools.give(1, seconds=2)
    pools.over()
    pools.change(replicas=0)
    pools.kill_at("end_owner")
    pools.reach(0)

    def nothing_left() -> bool:
        accounts = pools.kube.request("GET", object_path("serviceaccounts", namespace=pools.namespace))["items"]
        ours = [each for each in accounts if "ostler.dev/pool" in (each["metadata"].get("labels") or {})]
        return not pools.system.lab("GET", "/runners")["runners"] and not ours

    eventually(nothing_left, within=WITHIN, what="no runner at GitHub and no ServiceAccount")
    verdict = judge(read_log(pools.system.github_log), read_log(pools.system.kubelet_log))
    assert verdict.problems == ()
    assert verdict.completed == verdict.jobs == verdict.executions == len(pools.jobs)
    assert {pools.job(job)["conclusion"] for job in pools.jobs} == {"success"}
    assert accusations(pools.system) == []

"""Pools of both workloads, scaled and rolled while jobs run, workers are killed and calls fail.

A tenth of the webhooks is lost, and during the rollouts every webhook `completed`. The controller of StatefulSets and
the garbage collector are real. These runs are part of `make test-slow`. `test_persistent_runners.py` has a shorter test
that is not slow: all four kinds of pools, the same failures of calls, and four killed workers instead of eight, but no
lost webhook.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from k8s_adapters.calls.client import MERGE_PATCH, KubeClient, object_path
from k8s_adapters.pools.pools import pool_path
from k8s_adapters.runners.pods import list_pods
from lab.bootstrap import ACCOUNTS, SETS_POOL, LabPool
from lab.control_plane import ClusterAccess
from lab.faults import Fault, FaultPlan
from lab.system import Options, System, read_log
from lab.timings import timings
from lab.verdict import judge
from tests.halts import kill_worker_at, make_halts
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(1800)

POOLS = (
    LabPool("plain", ("self-hosted", "linux", "plain"), 0),
    LabPool("cached", SETS_POOL.labels, 0, spec=SETS_POOL.spec),
    LabPool(
        "fresh",
        ("self-hosted", "linux", "fresh"),
        0,
        spec={**SETS_POOL.spec, "volumes": {**SETS_POOL.spec["volumes"], "reclaim": "Delete"}},
    ),
)
WITHIN = 420
STEPS = ("end_owner", "delete_pod", "release_pod")


def faults(*, seed: int) -> FaultPlan:
    """Return faults for 5 % of the calls."""
    return FaultPlan(
        [
            Fault(kind="status", status=409, method_regex="POST|PATCH|DELETE", probability=0.02),
            Fault(kind="status", status=503, probability=0.01),
            *(Fault(kind=kind, probability=0.01) for kind in ("reset_before", "reset_after", "truncate")),
        ],
        seed=seed,
    )


@pytest.fixture
def halts(tmp_path: Path) -> Path:
    """The folder of the halting points."""
    return make_halts(tmp_path)


@pytest.fixture
def system(
    control_plane: ClusterAccess, admin: KubeClient, halts: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[System]:
    namespace = f"workloads-{secrets.token_hex(4)}"
    admin.request("POST", "/api/v1/namespaces", body={"metadata": {"name": namespace}})
    options = Options(
        pools=POOLS,
        workers=2,
        real_pods=2,
        kubernetes_faults=faults(seed=5),
        github_faults=faults(seed=6),
        settings={
            "OSTLER_HALT_DIR": str(halts),
            **timings(
                due_after=3,
                resume_every=1,
                sweep_every=5,
                slow_sweep_every=5,
                orphaned_account_after=20,
                unresolved_after=6,
            ),
        },
    )
    folder = tmp_path_factory.mktemp("system")
    with System(folder, options, say=print, namespace=namespace, control_plane=control_plane) as running:
        yield running
    admin.request("DELETE", f"/api/v1/namespaces/{namespace}")


class Fleet:
    """The pools of the system and their jobs."""

    def __init__(self, system: System, halts: Path, pools: Sequence[LabPool] = POOLS) -> None:
        self.system, self.halts, self.pools = system, halts, pools
        self.kube = system.kube()
        self.jobs = 0

    def change(self, **spec: Any) -> None:
        """Change the spec of each pool."""
        for pool in self.pools:
            path = pool_path(self.system.namespace, pool.name)
            self.kube.request("PATCH", path, body={"spec": spec}, content_type=MERGE_PATCH)

    def send(self, count: int, *, seconds: float = 1.0) -> None:
        """Send jobs for each pool."""
        for number, pool in enumerate(self.pools):
            account = ACCOUNTS[0 if "lifecycle" in pool.spec else number % len(ACCOUNTS)]
            job = {"repository": f"{account.login}/{account.repositories[0]}", "labels": list(pool.labels)}
            self.system.lab("POST", "/jobs", {**job, "count": count, "duration_seconds": seconds})
            self.jobs += count

    def kill_at(self, step: str) -> None:
        """Kill the next worker that is about to run this step, and start another."""
        kill_worker_at(self.system, self.halts, f"runner_end.before_{step}", within=WITHIN)

    def pods(self) -> Counter[str]:
        """Return the number of Pods of each pool that are not terminating."""
        pods = list_pods(self.kube, namespace=self.system.namespace)
        return Counter(str(pod.pool) for pod in pods if not pod.terminating)

    def sets(self) -> int:
        path = object_path("statefulsets", namespace=self.system.namespace, group="apps")
        return len(self.kube.request("GET", path)["items"])

    def reach(self, replicas: int) -> None:
        """Wait until each pool has this number of Pods, and nothing of earlier Pods is left."""
        wanted = dict.fromkeys([pool.name for pool in self.pools], replicas) if replicas else {}
        sets = sum(pool.spec.get("workload") == "StatefulSet" for pool in self.pools)

        def reached() -> bool:
            everything = list_pods(self.kube, namespace=self.system.namespace)
            whole = len(everything) == len(self.pools) * replicas
            return self.pods() == wanted and whole and self.sets() == sets * replicas

        eventually(reached, within=WITHIN, what=f"{replicas} Pods of each pool, and no more")

    def over(self) -> None:
        """Wait until every job is over."""

        def ended() -> bool:
            return Counter(self.system.lab("GET", "/stats")["jobs"])["completed"] == self.jobs

        eventually(ended, within=WITHIN, what="the end of every job")


def scale_and_roll(system: System, halts: Path, *, most: int, some: int, jobs: int) -> None:
    fleet = Fleet(system, halts)
    system.lab("POST", "/webhooks", {"drop_rate": 0.1})
    fleet.change(replicas=most)
    fleet.reach(most)
    fleet.send(jobs)
    for step in STEPS:
        fleet.kill_at(step)
    system.lab("POST", "/webhooks", {"vanish_action": "completed"})
    fleet.send(jobs, seconds=3)
    fleet.change(image="runner:2")
    time.sleep(3)
    fleet.change(image="runner:3")
    for step in STEPS:
        fleet.kill_at(step)
    fleet.send(jobs, seconds=2)
    fleet.change(replicas=some)
    fleet.kill_at("release_pod")
    fleet.over()
    fleet.reach(some)
    system.lab("POST", "/webhooks", {"vanish_action": ""})
    fleet.send(some, seconds=2)
    fleet.change(replicas=0)
    fleet.kill_at("end_owner")
    # Queued jobs of a pool without Pods wait, so the pool gets Pods again, and then none.
    fleet.change(replicas=1)
    fleet.over()
    fleet.change(replicas=0)
    fleet.reach(0)

    def nothing_left() -> bool:
        accounts = fleet.kube.request("GET", object_path("serviceaccounts", namespace=system.namespace))["items"]
        claims = object_path("persistentvolumeclaims", namespace=system.namespace)
        volumes = [item["metadata"]["labels"]["ostler.dev/pool"] for item in fleet.kube.request("GET", claims)["items"]]
        runners = system.lab("GET", "/runners")["runners"]
        ours = [each for each in accounts if "ostler.dev/pool" in (each["metadata"].get("labels") or {})]
        return not runners and not ours and "fresh" not in volumes and "cached" in volumes

    eventually(nothing_left, within=WITHIN, what="no runner, no ServiceAccount and no volume of pool `fresh`")
    verdict = judge(read_log(system.github_log), read_log(system.kubelet_log))
    assert verdict.problems == ()
    assert verdict.completed == verdict.jobs == verdict.executions == fleet.jobs
    engine = create_engine(system.postgres.url("ostler"))
    with engine.connect() as db:
        used = db.execute(text("SELECT count(DISTINCT name) FROM runner_pods WHERE name LIKE 'cached-%'")).scalar_one()
        made = db.execute(text("SELECT count(*) FROM runner_pods WHERE name LIKE 'cached-%'")).scalar_one()
    engine.dispose()
    assert used < made, "no runner got the volumes of an earlier one"


@pytest.mark.slow
def test_both_workloads_scale_and_roll_while_workers_die_and_calls_fail(system: System, halts: Path) -> None:
    scale_and_roll(system, halts, most=4, some=2, jobs=4)


@pytest.mark.slow
def test_no_finished_pod_stays_terminating_when_the_workers_are_back(system: System, halts: Path) -> None:
    fleet = Fleet(system, halts)
    fleet.change(replicas=3)
    fleet.reach(3)
    fleet.send(3, seconds=10)
    eventually(lambda: Counter(system.lab("GET", "/stats")["jobs"])["in_progress"] == fleet.jobs, within=WITHIN)
    workers = [name for name in system.children if name.startswith("worker")]
    for name in workers:
        system.children[name].kill()

    def held() -> set[str]:
        return {pod.uid for pod in list_pods(fleet.kube, namespace=system.namespace) if pod.awaits_release}

    eventually(lambda: len(held()) == 6, within=WITHIN, what="a finished Pod of each StatefulSet")
    before = held()
    for name in workers:
        system.restart(name)
    eventually(lambda: not held() & before, within=60, what="no Pod that the finalizer keeps")
    fleet.over()
    assert judge(read_log(system.github_log), read_log(system.kubelet_log), allow_leftover_runners=True).problems == ()


@pytest.mark.slow
def test_fifty_runners_of_each_workload_scale_and_roll(system: System, halts: Path) -> None:
    scale_and_roll(system, halts, most=50, some=10, jobs=50)

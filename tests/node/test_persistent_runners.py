"""Persistent runners in real containers: they register themselves, run several jobs, and leave when they are idle."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from k8s_adapters.calls.client import MERGE_PATCH
from k8s_adapters.pools.pools import get_pool, pool_path
from lab.bootstrap import LabPool
from tests.fleet import Fleet
from tests.waiting import eventually

pytestmark = [pytest.mark.node, pytest.mark.timeout(900)]

LIFE: dict[str, Any] = {"lifecycle": "persistent", "registration": {"organization": "acme"}}
POOLS = (
    LabPool("static", ("self-hosted", "linux", "static"), 2, cpu="50m", memory="128Mi", spec=LIFE),
    LabPool(
        "licensed",
        ("self-hosted", "linux", "licensed"),
        2,
        cpu="50m",
        memory="128Mi",
        spec={**LIFE, "workload": "StatefulSet"},
    ),
)
JOBS = 3
"""Number of jobs for each pool, more than it has runners."""

WITHIN = 240


class Pools:
    """The two pools on the nodes of a fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def change(self, **spec: Any) -> None:
        """Change both pools."""
        for pool in POOLS:
            path = pool_path(self.fleet.namespace, pool.name)
            self.fleet.kube.request("PATCH", path, body={"spec": spec}, content_type=MERGE_PATCH)

    def online(self) -> set[str]:
        """Return the names of the online runners of both pools."""
        runners = self.fleet.system.lab("GET", "/runners")["runners"]
        prefixes = tuple(f"{pool.name}-" for pool in POOLS)
        return {each["name"] for each in runners if each["name"].startswith(prefixes) and each["status"] == "online"}

    def have(self, count: int) -> set[str]:
        """Wait until each pool has this number of online runners and Pods. Return the names of the runners."""

        def reached() -> bool:
            pods = sum(len(self.fleet.pods(pool.name)) for pool in POOLS)
            return len(self.online()) == pods == count * len(POOLS)

        eventually(reached, within=WITHIN, what=f"{count} online runners in each pool")
        return self.online()

    def send(self, script: str, count: int = 1) -> list[int]:
        """Queue jobs for each pool."""
        return [job for pool in POOLS for job in self.fleet.send(count, labels=pool.labels, script=script)]

    def wait_for(self, jobs: list[int]) -> None:
        """Wait until these jobs have succeeded."""
        for job in jobs:
            assert self.fleet.wait_for(job, "completed")["conclusion"] == "success"


@pytest.fixture
def pools(fleet: Fleet) -> Iterator[Pools]:
    for pool in POOLS:
        fleet.add_pool(pool)
    yield Pools(fleet)
    for pool in POOLS:
        fleet.delete_pool(pool.name)
    for pool in POOLS:
        eventually(partial(is_gone, fleet, pool.name), within=WITHIN, what=f"the end of pool {pool.name}")


def is_gone(fleet: Fleet, pool: str) -> bool:
    return get_pool(fleet.kube, namespace=fleet.namespace, name=pool) is None


def test_persistent_runners_of_both_workloads_run_jobs_are_rolled_and_scaled(fleet: Fleet, pools: Pools) -> None:
    first = pools.have(2)
    pools.wait_for(pools.send("true", JOBS))
    assert pools.online() == first

    long = pools.send("sleep 20", 2)
    for job in long:
        fleet.wait_for(job, "in_progress")
    pools.change(podTemplate={"metadata": {"labels": {"example.com/generation": "2"}}})
    pools.change(replicas=1)
    pools.wait_for(long)
    eventually(lambda: not first & pools.online(), within=WITHIN, what="new runners only")
    second = pools.have(1)
    pools.wait_for(pools.send("true", 2))
    assert pools.online() == second

    pools.change(replicas=0)
    pools.have(0)

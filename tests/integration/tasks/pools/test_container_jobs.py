"""Pools with container jobs: the charge for their jobs, and the setting that the workers need."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from k8s_adapters.calls.client import object_path
from k8s_adapters.pools.pools import list_pools
from models.pools.scaling import Load
from tasks.pools.autoscale import places_of
from tests.integration.tasks.conftest import Stage
from tests.integration.tasks.pools.fleet import condition, kept, new_tick, polls, retired, spec

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CONTAINERS = {"mode": "kubernetes", "vcpu": "1500m", "memoryMib": 1000}
SIZE = {"cpu": "500m", "memory": "512Mi"}


def sizes(stage: Stage) -> tuple[int, int]:
    """Return the vCPU (millicores) and the memory (MiB) that a job of the pool is charged with."""
    (row,) = stage.rows("SELECT vcpu, memory FROM pools")
    return row.vcpu, row.memory


def sidecars(stage: Stage, pod: str) -> list[Any]:
    """Return the images of a Pod's init containers."""
    found = stage.kube.request("GET", object_path("pods", namespace=stage.namespace, name=pod))
    return [each["image"] for each in found["spec"].get("initContainers", ())]


def deployed(stage: Stage, *, hooks_image: str) -> None:
    """Change the image of the sidecar, as after a complete upgrade: no old worker computes another hash of the spec."""
    stage.with_settings(hooks_image=hooks_image)
    stage.rows("UPDATE pools SET template_at = now() - interval '1 hour'")


def test_pool_with_container_jobs_is_degraded_while_the_workers_have_no_image(stage: Stage) -> None:
    stage.pool(replicas=2, containers=CONTAINERS)
    kept(stage)

    found = condition(stage, "Degraded")
    assert (found["status"], found["reason"]) == ("True", "ContainerJobsDisabled")
    assert "runners.containers.enabled" in found["message"]
    assert not stage.pods()

    deployed(stage, hooks_image="ostler:1")
    kept(stage)
    assert condition(stage, "Degraded")["status"] == "False"
    assert [sidecars(stage, name) for name in stage.pods()] == [["ostler:1"]] * 2


def test_pool_that_loses_the_image_becomes_degraded_and_keeps_its_pods(stage: Stage) -> None:
    stage.with_settings(hooks_image="ostler:1")
    stage.pool(replicas=2, containers=CONTAINERS)
    kept(stage)
    polls(stage)
    before = set(stage.pods())

    stage.with_settings(hooks_image=None)
    kept(stage)
    new_tick(stage)
    kept(stage)

    assert condition(stage, "Degraded")["reason"] == "ContainerJobsDisabled"
    assert set(stage.pods()) == before


def test_job_is_charged_for_the_runner_and_two_hook_pods(stage: Stage) -> None:
    stage.with_settings(hooks_image="ostler:1")
    stage.pool(replicas=1, resources=SIZE, containers=CONTAINERS)
    kept(stage)
    assert sizes(stage) == (500 + 2 * 1500, 512 + 2 * 1000)

    spec(stage, containers=None)
    kept(stage)
    assert sizes(stage) == (500, 512)


def test_autoscaler_counts_the_hook_pods_in_the_size_of_a_job(stage: Stage) -> None:
    stage.pool(replicas=1, resources=SIZE, containers=CONTAINERS)
    (pool,) = list_pools(stage.kube, namespace=stage.namespace)
    row = Load(id=1, uid="u", alive=0, load=0, idle=False, quiet_since=NOW, scaling=None, usual=None, typical_at=None)

    places = places_of(pool, row)

    assert (places.vcpu_millicores, places.memory_mib) == (3500, 2512)


def test_pods_roll_when_the_image_of_the_sidecar_changes(stage: Stage) -> None:
    stage.with_settings(hooks_image="ostler:1")
    stage.pool(replicas=1, containers=CONTAINERS)
    kept(stage)
    polls(stage)
    (before,) = stage.pods()

    deployed(stage, hooks_image="ostler:2")
    for _ in range(4):
        new_tick(stage)
        kept(stage)
        retired(stage)
        polls(stage)

    (after,) = (name for name in stage.pods() if name != before)
    assert sidecars(stage, after) == ["ostler:2"]

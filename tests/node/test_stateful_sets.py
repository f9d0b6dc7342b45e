"""Runners that are StatefulSets, in real containers with a real volume."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from k8s_adapters.calls.client import object_path
from k8s_adapters.pools.pools import get_pool
from lab.bootstrap import LabPool
from ostler.errors import Gone
from tests.fleet import Fleet
from tests.node.volumes import add_volume
from tests.waiting import eventually

pytestmark = [pytest.mark.node, pytest.mark.timeout(900)]

LABELS = ("self-hosted", "linux", "cached")
VOLUMES = 2
"""Number of volumes that the cluster has. The pool needs one for each runner."""

POOL = LabPool(
    "cached",
    LABELS,
    1,
    cpu="50m",
    memory="128Mi",
    spec={
        "workload": "StatefulSet",
        "volumes": {
            "claims": [{"name": "cache", "mountPath": "/cache", "storage": "10Mi", "storageClassName": "by-hand"}]
        },
    },
)
JOBS = 3
"""Number of jobs, one after the other: more than there are volumes."""

WITHIN = 180


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Folders of the node that volumes use."""
    found = [tmp_path / f"volume-{number}" for number in range(VOLUMES)]
    for folder in found:
        folder.mkdir()
    return found


@pytest.fixture
def cached(fleet: Fleet, folders: list[Path]) -> Iterator[str]:
    """The pool, with a PersistentVolume for each folder."""
    for folder in folders:
        add_volume(fleet.kube, folder)
    fleet.add_pool(POOL)
    yield POOL.name
    fleet.delete_pool(POOL.name)
    eventually(lambda: get_pool(fleet.kube, namespace=fleet.namespace, name=POOL.name) is None, within=WITHIN)
    for folder in folders:
        with suppress(Gone):
            fleet.kube.request("DELETE", f"/api/v1/persistentvolumes/{folder.name}")


def test_jobs_run_in_stateful_sets_and_later_runners_get_the_volumes_of_earlier_ones(
    fleet: Fleet, cached: str, folders: list[Path]
) -> None:
    for _ in range(JOBS):
        fleet.wait_until_whole(cached)
        before = uids(fleet)
        [job] = fleet.send(labels=LABELS, script="id -u >> /cache/written")
        assert fleet.wait_for(job, "completed")["conclusion"] == "success"
        eventually(partial(are_gone, fleet, before), within=WITHIN, what="the end of the Pod")

    fleet.wait_until_whole(cached)
    found = [(folder / "written").read_text() for folder in folders if (folder / "written").exists()]
    assert "".join(found) == "1001\n" * JOBS
    path = object_path("statefulsets", namespace=fleet.namespace, group="apps")
    eventually(lambda: len(fleet.kube.request("GET", path)["items"]) == 1, within=WITHIN)
    assert fleet.pool(cached)["status"]["volumes"] == {"inUse": 1, "free": 1, "lost": 0}


def are_gone(fleet: Fleet, before: set[str]) -> bool:
    """Return True if none of these Pods exists any more."""
    return uids(fleet).isdisjoint(before)


def uids(fleet: Fleet) -> set[str]:
    """Return the UIDs of the pool's Pods."""
    return {pod["metadata"]["uid"] for pod in fleet.pods(POOL.name).values()}

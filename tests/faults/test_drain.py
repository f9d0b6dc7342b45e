"""A pool is deleted under load: the worker is killed at each step of the drain, and no job is affected.

The whole system runs with the real garbage collector. A successor with the same labels is created, as after a rename.
Then the old pool is deleted in each possible way, while jobs keep coming. One system runs for the whole module, and the
pool that a test leaves is the one that the next test deletes. The result is judged by the lab's own logs and by the
laws.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator

import pytest
from sqlalchemy import text

from k8s_adapters.calls.client import KubeClient, object_path
from k8s_adapters.pools.pools import create_pool, get_pool, list_pools, pool_path
from k8s_adapters.runners.pods import list_pods
from lab.bootstrap import RUNNER_IMAGE
from lab.control_plane import ClusterAccess
from tests.faults.stage import POOL, Stage, running
from tests.guard import guarded, lingering, own, refused, until_collected

pytestmark = [pytest.mark.timeout(1200), pytest.mark.cluster]

HELD = {
    "add_finalizer.before_call",
    "add_finalizer.after_call",
    "remove_finalizer.before_call",
    "remove_finalizer.after_call",
}
"""Points from the finalizer of the successor to the finalizer of the old pool."""

EVERY = HELD | {
    "retire.before_commit",
    "retire.after_commit",
    "end_retired.before_commit",
    "end_retired.after_commit",
}
"""These points and the retirement of a warm Pod, which `test_kill_points` reaches too."""

LONG = 15.0
"""Duration in seconds of the jobs that run on the old pool when it is deleted."""

_numbers = itertools.count(2)


@pytest.fixture(scope="module")
def stage(control_plane: ClusterAccess, admin: KubeClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A system whose namespace has the chart's policy."""
    namespace = f"drains-{secrets.token_hex(4)}"
    folder = tmp_path_factory.mktemp("drain")
    # Not tried: what tries it is a Pod, which the lab's kubelet would run.
    with (
        guarded(admin, namespace, tried=False),
        running(folder, control_plane, namespace, workers=2, copies=1) as stage,
    ):
        until_collected(admin, "default")
        yield stage


def successor(stage: Stage) -> str:
    """Create a pool with the same labels, and return its name."""
    name = f"{POOL.name}-{next(_numbers)}"
    spec = {"image": RUNNER_IMAGE, "runnerLabels": list(POOL.labels), "replicas": POOL.replicas}
    create_pool(stage.kube, namespace=stage.system.namespace, name=name, spec=spec)
    return name


def pods_of(stage: Stage, pool: str) -> dict[str, str]:
    """Return the names of a pool's Pods by their UIDs."""
    return {pod.uid: pod.name for pod in list_pods(stage.kube, namespace=stage.system.namespace, pool=pool)}


def drains(stage: Stage, uid: str) -> bool:
    """Return whether Ostler has recorded that a pool was deleted."""
    with stage.engine.connect() as db:
        found = db.execute(text("SELECT 1 FROM pools WHERE uid = :uid AND draining"), {"uid": uid}).one_or_none()
    return found is not None


def accounts(stage: Stage) -> set[str]:
    path = object_path("serviceaccounts", namespace=stage.system.namespace)
    return {each["metadata"]["name"] for each in stage.kube.request("GET", path)["items"]}


@pytest.mark.parametrize(
    ("way", "steps"),
    [
        ("Foreground", HELD),
        pytest.param("Background", EVERY, marks=pytest.mark.slow),
        pytest.param("Orphan", EVERY, marks=pytest.mark.slow),
    ],
    ids=["Foreground", "Background", "Orphan"],
)
def test_jobs_outlive_the_deletion_of_their_pool_and_every_kill_of_its_drain(
    stage: Stage, control_plane: ClusterAccess, way: str, steps: set[str]
) -> None:
    namespace = stage.system.namespace
    (old,) = list_pools(stage.kube, namespace=namespace)
    running = [*stage.send(3, seconds=LONG), *stage.send(2, seconds=LONG)]
    stage.until(lambda: len(stage.started(running)) == len(running), what="the jobs run")
    busy = {uid for _, uid in stage.started(running).values()}
    canary = own(stage.kube, old)

    stage.arm(steps)
    new = successor(stage)
    with lingering(stage.kube, canary):
        stage.kube.request("DELETE", pool_path(namespace, old.name), query={"propagationPolicy": way})
        # Jobs of before that would be the warm Pods' own: none would be left to retire.
        stage.until(lambda: drains(stage, old.uid), what="the deletion is seen")
        jobs = stage.send(4, seconds=0.5)
        if way == "Foreground":
            stage.until(lambda: busy <= refused(control_plane, busy), what="the collector is refused the busy Pods")
        stage.until(lambda: busy >= set(pods_of(stage, old.name)), what="the warm Pods are retired")
        jobs += stage.send(4, seconds=0.5)
        stage.until(lambda: stage.are_over([*running, *jobs]), what="the jobs are over")
    stage.until(lambda: get_pool(stage.kube, namespace=namespace, name=old.name) is None, what="the old pool has gone")
    # A worker that was killed elsewhere may have let the pool go in that moment: nobody is told of it then.
    told = steps - {"remove_finalizer.after_call"}
    stage.until(lambda: not stage.armed() & told, what=f"the worker is killed at {stage.armed()}")
    stage.happens(stage.all_reached, within=5)
    stage.disarm()

    stage.assert_whole()
    left = pods_of(stage, new)
    assert pods_of(stage, old.name) == {}
    stage.until(lambda: accounts(stage) == {"default", *pods_of(stage, new).values()}, what="accounts of Pods alone")
    assert len(left) == POOL.replicas
    assert {kill.point for kill in stage.kills} >= told
    stage.kills.clear()

"""Deleted pools and the cluster's own garbage collector: no busy Pod is deleted, and nothing is left.

Pools are deleted in each possible way, with our finalizer and without it. Two facts show that the collector ran: it
deletes an unprotected object of the pool, and its own log contains its refused deletions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import pytest

from k8s_adapters.calls.client import KubeClient, object_path
from k8s_adapters.names import DRAIN_FINALIZER
from k8s_adapters.runners.identity import review_token
from lab.control_plane import ClusterAccess
from rules.claims.pod_view import PodView
from rules.pools.pool_spec import PoolSpec
from tests.guard import exists, guarded, lingering, own, refused, until_collected
from tests.integration.tasks.conftest import Stage
from tests.integration.tasks.pools.drains import busy_pod, delete, drain, end_job, patch, seen, tick
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

WAYS = ("Background", "Foreground", "Orphan")


@pytest.fixture(scope="session", autouse=True)
def _collector(admin: KubeClient) -> None:
    """Wait until the collector knows RunnerPools."""
    name = "collector-knows"
    admin.request("POST", "/api/v1/namespaces", body={"metadata": {"generateName": name, "name": name}})
    until_collected(admin, name)
    admin.request("DELETE", f"/api/v1/namespaces/{name}")


@dataclass(frozen=True, slots=True)
class Scene:
    """A pool with two busy Pods (claim by name; one is stamped), a warm Pod, a spent Pod, and an unprotected object."""

    stage: Stage
    pool: PoolSpec
    busy: dict[str, int]
    uids: dict[str, str]
    canary: str

    def refused(self, access: ClusterAccess) -> set[str]:
        """Return the names of the Pods whose deletion the collector was refused."""
        found = refused(access, self.uids.values())
        return {name for name, uid in self.uids.items() if uid in found}

    def finalizers(self) -> list[str]:
        """Return the finalizers of the pool."""
        path = f"/apis/ostler.dev/v1alpha1/namespaces/{self.stage.namespace}/runnerpools/{self.pool.name}"
        found: list[str] = self.stage.kube.request("GET", path)["metadata"].get("finalizers", [])
        return found


def set_up(stage: Stage) -> Scene:
    pool = stage.pool(replicas=4)
    tick(stage)
    first, second, warm, spent = sorted(stage.pods())
    busy = dict([busy_pod(stage, 7, name=first, stamped=True), busy_pod(stage, 8, name=second)])
    stage.finish(warm, phase="Running", poller=1, runner=None)
    stage.finish(spent)
    uids = {name: pod.uid for name, pod in stage.pods().items()}
    return Scene(stage=stage, pool=pool, busy=busy, uids=uids, canary=own(stage.kube, pool))


@pytest.fixture
def scene(stage: Stage) -> Iterator[Scene]:
    """The pool, with the policy against the collector."""
    with guarded(stage.kube, stage.namespace):
        yield set_up(stage)


@pytest.fixture
def open_scene(stage: Stage) -> Scene:
    """The pool, without the policy."""
    return set_up(stage)


def owners(stage: Stage, name: str) -> list[str]:
    metadata = stage.kube.request("GET", object_path("pods", namespace=stage.namespace, name=name))["metadata"]
    return [each["name"] for each in metadata.get("ownerReferences", [])]


def delete_before_the_collector(scene: Scene, access: ClusterAccess, *, way: str, held: bool) -> None:
    """Delete the pool, and wait until the collector has finished its work on the deletion."""
    stage = scene.stage
    lingers = lingering(stage.kube, scene.canary) if way == "Foreground" else nullcontext()
    with lingers:
        delete(stage, propagation=way)
        if way == "Orphan":
            eventually(lambda: not any(owners(stage, name) for name in scene.busy), what="the Pods are orphans")
        elif way == "Foreground" or not held:
            eventually(lambda: set(scene.busy) <= scene.refused(access), what="the collector is refused the busy Pods")
    if held:
        eventually(lambda: scene.finalizers() == [DRAIN_FINALIZER], what="nothing but our finalizer holds the pool")
    else:
        eventually(lambda: seen(stage) is None, what="the pool is gone")


@pytest.mark.parametrize("held", [True, False], ids=["held", "not held"])
@pytest.mark.parametrize("way", WAYS)
def test_a_deleted_pool_takes_no_busy_pod_and_leaves_nothing(
    scene: Scene, control_plane: ClusterAccess, way: str, *, held: bool
) -> None:
    stage = scene.stage
    if not held:
        patch(stage, {"metadata": {"finalizers": []}})
    delete_before_the_collector(scene, control_plane, way=way, held=held)

    drain(stage)
    drain(stage)

    left = stage.pods()
    assert {name: pod.uid for name, pod in left.items()} == {name: scene.uids[name] for name in scene.busy}
    assert not any(pod.terminating for pod in left.values())
    assert stage.service_accounts() == {"default", *scene.busy}
    assert (seen(stage) is not None) == held

    for name, claim in scene.busy.items():
        end_job(stage, name, claim)
    eventually(lambda: not (drain(stage) or stage.pods()), what="the Pods are gone")  # type: ignore[func-returns-value]
    assert stage.service_accounts() == {"default"}
    assert seen(stage) is None
    eventually(
        lambda: (way == "Orphan") == exists(stage.kube, scene.canary), what="the collector takes what the pool owned"
    )
    rows = stage.rows("SELECT purpose, count(*) AS n, count(ended_at) AS ended FROM claims GROUP BY 1 ORDER BY 1")
    assert [(row.purpose, row.n, row.ended) for row in rows] == [("job", 2, 2), ("retire", 1, 1)]


def test_foreground_deletion_kills_busy_pods_without_the_policy_despite_a_finalizer(open_scene: Scene) -> None:
    """This is the reason for the policy."""
    stage = open_scene.stage
    with lingering(stage.kube, open_scene.canary):
        delete(stage, propagation="Foreground")
        eventually(lambda: not open_scene.busy.keys() & stage.pods().keys(), what="the busy Pods die")
    pool = seen(stage)
    assert pool is not None
    assert pool.has_finalizer


def test_without_policy_and_finalizer_any_deletion_kills_busy_pods(open_scene: Scene) -> None:
    stage = open_scene.stage
    patch(stage, {"metadata": {"finalizers": []}})
    delete(stage)
    eventually(lambda: not open_scene.busy.keys() & stage.pods().keys(), what="the busy Pods die")


def test_finalizer_alone_protects_busy_pods_from_background_deletion(
    open_scene: Scene,
) -> None:
    stage = open_scene.stage
    delete(stage)
    for _ in range(5):
        drain(stage)
    assert set(stage.pods()) == set(open_scene.busy)
    assert exists(stage.kube, open_scene.canary)


def token_of(stage: Stage, pod: PodView) -> str:
    """Return a token as the kubelet puts it into the Pod."""
    spec = {
        "audiences": ["ostler-dispatch"],
        "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid},
    }
    path = object_path("serviceaccounts", namespace=stage.namespace, name=pod.name)
    return str(stage.kube.request("POST", f"{path}/token", body={"spec": spec})["status"]["token"])


@pytest.mark.parametrize("accounts", [True, False], ids=["accounts guarded", "Pods alone guarded"])
def test_foreground_deletion_invalidates_pod_tokens_unless_accounts_are_guarded(
    stage: Stage, control_plane: ClusterAccess, *, accounts: bool
) -> None:
    """A token that the API server refuses is a definite no: a Pod that was just claimed would get no JIT."""
    with guarded(stage.kube, stage.namespace, accounts=accounts):
        scene = set_up(stage)
        name = min(scene.busy)
        pod = stage.pods()[name]
        token = token_of(stage, pod)

        def taken() -> bool | None:
            return review_token(stage.kube, token=token, audience="ostler-dispatch", timeout=10, pod_uid=pod.uid)

        assert taken() is True
        delete_before_the_collector(scene, control_plane, way="Foreground", held=True)
        if accounts:
            assert name in stage.service_accounts()
            assert taken() is True
        else:
            eventually(lambda: taken() is False, what="the token is refused")
            assert name in stage.pods()

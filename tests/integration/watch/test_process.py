"""`ostler watch` as processes on the real control plane: its messages, and failures that must not prevent them."""

from __future__ import annotations

from k8s_adapters.pools.pools import delete_pool, get_pool, patch_pool_replicas, patch_pool_status
from lab.faults import Fault
from tests.integration.watch.conftest import Scene, Watch
from tests.waiting import eventually

WATCHES = r"/api/v1/namespaces/[^/]+/pods\?watch=1.*"
EXPIRED = '{"type":"ERROR","object":{"kind":"Status","status":"Failure","reason":"Expired","code":410}}\n'
"""The text of the real server, with status 200 (`tests/contract/k8s/test_watch.py`)."""


def led(scene: Scene, **settings: float) -> Watch:
    """Return a process that leads, has listed and has requested the sweeps."""
    watch = scene.start(**settings)
    eventually(watch.leads, what="a leader")
    eventually(lambda: scene.asked_sweeps() > 0, what="sweeps asked")
    return watch


def test_changes_of_a_pod_are_reported_and_shown(scene: Scene) -> None:
    before = scene.runner("small-0000000a")
    watch = led(scene, lease=10)
    ends, runs = scene.runner("small-0000000b"), scene.runner("small-0000000c")

    scene.report("small-0000000c", phase="Running", ready=True)
    eventually(lambda: scene.told("executing") == [runs.uid], what="an execution told")
    scene.report("small-0000000b", phase="Succeeded")
    eventually(lambda: scene.told("pools") == ["small"], what="a spent Pod told")
    assert scene.told("gone") == []
    for name in ("small-0000000a", "small-0000000b"):
        scene.delete(name)
    eventually(lambda: len(scene.told("gone")) == 2, what="two deletions told")

    assert set(scene.told("gone")) == {before.uid, ends.uid}
    endings = scene.endings()
    assert set(endings) == {before.uid, ends.uid}
    assert all(each["deletion_at"] is not None for each in endings.values())
    assert scene.asked_sweeps() == 1
    shown = watch.metrics()
    assert (shown["ostler_watch_leader"], shown["ostler_watch_connected"]) == (1, 1)
    assert shown["ostler_watch_last_event_timestamp_seconds"] > 1.7e9
    assert (shown['ostler_watch_hints_total{hint="gone"}'], shown["ostler_watch_lists_total"]) == (2, 1)
    for why in ("ended", "expired", "silent", "failed"):
        assert shown[f'ostler_watch_restarts_total{{why="{why}"}}'] == 0
    with scene.redis.client() as redis:
        eventually(lambda: bool(redis.exists(f"ostler:watched:{scene.namespace}")), what="a sign for the reconcilers")


def test_hook_pod_is_reported_with_its_runner_pod(scene: Scene) -> None:
    runner = scene.runner("small-0000000a")
    led(scene, lease=10)
    scene.hook_pod("small-0000000a-workflow", runner=runner)
    eventually(lambda: scene.hooks(runner.uid) == [("small-0000000a-workflow", False)], what="a hook Pod told")
    scene.delete("small-0000000a-workflow")
    eventually(lambda: scene.hooks(runner.uid)[-1:] == [("small-0000000a-workflow", True)], what="its end told")
    assert scene.told("gone") == []


def test_spec_change_of_a_pool_is_reported_and_a_status_change_is_not(scene: Scene) -> None:
    led(scene, lease=10)
    eventually(lambda: scene.changed() == ["small"], what="the pool as it is at first")

    pool = get_pool(scene.kube, namespace=scene.namespace, name="small")
    assert pool is not None
    patch_pool_status(scene.kube, namespace=scene.namespace, name="small", uid=pool.uid, status={"warm": 3})
    patch_pool_replicas(scene.kube, namespace=scene.namespace, name="small", replicas=2)
    eventually(lambda: scene.changed() == ["small"] * 2, what="a change told")
    delete_pool(scene.kube, namespace=scene.namespace, name="small")
    eventually(lambda: scene.changed() == ["small"] * 3, what="its end told")


def test_a_standby_takes_over_from_a_leader_that_was_killed(scene: Scene) -> None:
    both = [scene.start(lease=3), scene.start(lease=3)]
    eventually(lambda: all(watch.metrics_up() for watch in both), what="two processes")
    eventually(lambda: scene.asked_sweeps() > 0, what="a leader")
    holder = scene.holder()
    # By the Lease: on a machine that is slow it may have changed hands already.
    (leader,) = [watch for watch in both if f"-{watch.child.pid}-" in holder]
    (standby,) = [watch for watch in both if watch is not leader]
    before = len(standby.events("watch.objects_listed"))

    leader.child.kill()

    eventually(lambda: scene.holder() not in {"", holder}, what="another holder")
    assert f"-{standby.child.pid}-" in scene.holder()
    # What went while nobody led is known to the rows alone, so the new leader has the sweeps look.
    eventually(lambda: len(standby.events("watch.objects_listed")) > before, what="a list of the new leader")
    seen = scene.runner("small-0000000b")
    scene.report("small-0000000b", phase="Running", ready=True)
    eventually(lambda: seen.uid in scene.told("executing"), what="an execution told by the new leader")
    eventually(lambda: scene.asked_sweeps() > 1, what="the sweeps asked again")


def test_a_leader_that_ends_gives_its_lease_back(scene: Scene) -> None:
    watch = led(scene, lease=300)
    assert scene.holder()
    assert watch.child.stop() == 0
    assert scene.holder() == ""
    led_again = scene.start(lease=300)
    eventually(led_again.leads, what="a leader that did not wait for the Lease to run out")


def test_expired_version_has_the_pods_listed_again_and_missing_pods_reported(scene: Scene) -> None:
    gone = scene.runner("small-0000000a")
    watch = led(scene)
    # Every new watch is answered as expired until the fault is taken away; the one that stands is cut.
    watch.proxy.add(Fault(kind="status", status=200, body=EXPIRED, path_regex=WATCHES))
    watch.relay.cut()
    eventually(lambda: watch.metrics()['ostler_watch_restarts_total{why="expired"}'] > 0, what="an expired watch")

    scene.delete("small-0000000a")
    eventually(lambda: scene.told("gone") == [gone.uid], what="a deletion told from a list")

    watch.proxy.clear()
    later = scene.runner("small-0000000b")
    scene.report("small-0000000b", phase="Running", ready=True)
    eventually(lambda: later.uid in scene.told("executing"), what="an execution told")  # so the Pod is known
    scene.delete("small-0000000b")
    eventually(lambda: later.uid in scene.told("gone"), what="another deletion told")
    assert scene.told("gone").count(gone.uid) == 1


def test_stalled_watch_is_detected_and_its_missed_changes_are_reported(scene: Scene) -> None:
    gone = scene.runner("small-0000000a")
    watch = led(scene, timeout=2)
    eventually(lambda: watch.relay.silence_watches() == 3, what="the watches of Pods, hook Pods and pools to silence")

    scene.delete("small-0000000a")

    eventually(lambda: scene.told("gone") == [gone.uid], what="a deletion told")
    assert watch.metrics()['ostler_watch_restarts_total{why="silent"}'] >= 1
    assert watch.metrics()["ostler_watch_leader"] == 1  # its other connections were well all the time
    assert watch.metrics()["ostler_watch_lists_total"] == 1

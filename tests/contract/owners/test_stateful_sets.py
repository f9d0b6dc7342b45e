"""A runner that is a StatefulSet, on the real API server with the real controller and garbage collector."""

from __future__ import annotations

import time
from weakref import WeakSet

import pytest

from k8s_adapters.calls.client import MERGE_PATCH, Json, KubeClient, object_path
from k8s_adapters.names import EXIT_FINALIZER
from k8s_adapters.pools.pools import create_pool
from k8s_adapters.runners.owners import stateful_set
from k8s_adapters.runners.owners.kinds import owner_of
from k8s_adapters.runners.owners.stateful_set import APPS, KIND, TOO_OLD, Unsupported
from k8s_adapters.runners.pod_hash import pod_hash
from k8s_adapters.runners.pods import get_pod
from k8s_adapters.runners.runners import Deletion, create_runner, delete_runner
from lab.control_plane import ClusterAccess
from ostler.errors import Gone
from rules.claims.pod_view import PodView
from rules.pools.pool_spec import PoolSpec
from tests.contract.k8s.test_stamps import bind_to_a_node
from tests.contract.k8s.transport import MakeRunner, faulty_client
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

NAME = "pool-0000000a-0"
SET = "pool-0000000a"
REPLACED_WITHIN = 2.0
"""Seconds to wait for a successor. The controller replaces a Pod about 0.1 s after the Pod is gone."""


def pod_of(admin: KubeClient, namespace: str, name: str = NAME) -> PodView | None:
    return get_pod(admin, namespace=namespace, name=name)


def created(admin: KubeClient, namespace: str, name: str = NAME) -> PodView:
    """Wait for the Pod, and return it."""
    found = eventually(lambda: pod_of(admin, namespace, name))
    assert found is not None
    return found


def set_of(admin: KubeClient, namespace: str, name: str = SET) -> Json | None:
    try:
        return admin.request("GET", object_path(KIND, namespace=namespace, name=name, group=APPS))
    except Gone:
        return None


def start(admin: KubeClient, namespace: str, name: str) -> None:
    """Write the status of a Pod whose containers run."""
    running = {"state": {"running": {"startedAt": None}}, "image": "r", "imageID": "", "ready": True, "restartCount": 0}
    containers = [{"name": each, **running} for each in ("poller", "runner")]
    body: Json = {"status": {"phase": "Running", "containerStatuses": containers}}
    path = f"{object_path('pods', namespace=namespace, name=name)}/status"
    admin.request("PATCH", path, body=body, content_type=MERGE_PATCH)


def finish(admin: KubeClient, namespace: str, *, code: int = 0, name: str = NAME) -> None:
    """Write the status of a Pod whose containers have ended, and end a requested deletion, as the kubelet does."""
    ended = {"terminated": {"exitCode": code, "startedAt": None, "finishedAt": None}}
    statuses = [
        {"name": each, "image": "runner:1", "imageID": "", "ready": False, "restartCount": 0, "state": ended}
        for each in ("poller", "runner")
    ]
    body = {"status": {"phase": "Failed" if code else "Succeeded", "containerStatuses": statuses}}
    path = f"{object_path('pods', namespace=namespace, name=name)}/status"
    admin.request("PATCH", path, body=body, content_type=MERGE_PATCH)
    found = pod_of(admin, namespace, name)
    if found is not None and found.terminating:
        admin.request("DELETE", object_path("pods", namespace=namespace, name=name), body={"gracePeriodSeconds": 0})


def end(admin: KubeClient, namespace: str, pod: PodView, *, force: bool = False) -> Deletion:
    return delete_runner(admin, namespace=namespace, name=pod.name, uid=pod.uid, attempt=pod.attempt, force=force)


def end_all(admin: KubeClient, namespace: str, pod: PodView, *, force: bool = False) -> None:
    """End a runner as its callers do: again until its Pod is gone."""

    def is_gone() -> bool:
        end(admin, namespace, pod, force=force)
        found = pod_of(admin, namespace, pod.name)
        return found is None or found.uid != pod.uid

    eventually(is_gone, within=30)


def assert_no_successor(admin: KubeClient, namespace: str, name: str = NAME) -> None:
    until = time.monotonic() + REPLACED_WITHIN
    while time.monotonic() < until:
        assert pod_of(admin, namespace, name) is None
        time.sleep(0.1)


def test_the_pod_is_like_any_other_runner_pod(
    admin: KubeClient, namespace: str, pool: PoolSpec, make_runner: MakeRunner
) -> None:
    answer = make_runner()
    pod = created(admin, namespace)

    assert (answer.name, answer.uid, answer.ours_before) == (NAME, "", False)
    assert (pod.pool, pod.stamp, pod.owner, pod.attempt, pod.exit_held) == ("pool", "0.0", None, "a1", True)
    assert pod.digest == pod_hash(pool, dispatch_url="http://web/", audience="ostler-dispatch")
    assert pod.is_ours
    spec = admin.request("GET", object_path("pods", namespace=namespace, name=NAME))["spec"]
    assert spec["serviceAccountName"] == NAME
    assert {each["name"]: each["restartPolicy"] for each in spec["containers"]} == {
        "poller": "Never",
        "runner": "Never",
    }


def test_repeating_a_creation_changes_nothing(admin: KubeClient, namespace: str, make_runner: MakeRunner) -> None:
    make_runner()
    pod = created(admin, namespace)

    assert make_runner().ours_before
    found = pod_of(admin, namespace)
    assert found is not None
    assert found.uid == pod.uid


@pytest.mark.parametrize("code", [0, 1, 137])
def test_a_finished_pod_stays_until_it_is_ended_and_gets_no_successor(
    admin: KubeClient, namespace: str, make_runner: MakeRunner, code: int
) -> None:
    make_runner()
    pod = created(admin, namespace)
    bind_to_a_node(admin, namespace, NAME)
    finish(admin, namespace, code=code)

    # The controller deletes a finished Pod at once, and the finalizer keeps it.
    eventually(lambda: (found := pod_of(admin, namespace)) is not None and found.terminating)
    time.sleep(REPLACED_WITHIN)
    found = pod_of(admin, namespace)
    assert found is not None
    assert (found.uid, found.is_over, found.runner_exit_code) == (pod.uid, True, code)
    assert found.awaits_release

    end_all(admin, namespace, pod)
    assert_no_successor(admin, namespace)
    assert set_of(admin, namespace) is None
    with pytest.raises(Gone):
        admin.request("GET", object_path("serviceaccounts", namespace=namespace, name=NAME))


def test_a_running_pod_ends_in_two_steps_and_keeps_its_finalizer_while_it_runs(
    admin: KubeClient, namespace: str, make_runner: MakeRunner
) -> None:
    make_runner()
    pod = created(admin, namespace)
    bind_to_a_node(admin, namespace, NAME)

    assert end(admin, namespace, pod) is Deletion.ACCEPTED
    eventually(lambda: set_of(admin, namespace) is None)
    found = pod_of(admin, namespace)
    assert found is not None
    assert (found.uid, found.terminating, found.exit_held, found.awaits_release) == (pod.uid, True, True, False)

    finish(admin, namespace, code=143)
    end_all(admin, namespace, pod)
    assert_no_successor(admin, namespace)


def test_a_pod_without_a_node_ends_at_once(admin: KubeClient, namespace: str, make_runner: MakeRunner) -> None:
    make_runner()
    pod = created(admin, namespace)

    end_all(admin, namespace, pod)
    assert_no_successor(admin, namespace)


def test_a_pod_on_a_gone_node_ends_by_force(admin: KubeClient, namespace: str, make_runner: MakeRunner) -> None:
    make_runner()
    pod = created(admin, namespace)
    bind_to_a_node(admin, namespace, NAME)
    end(admin, namespace, pod)
    assert pod_of(admin, namespace) is not None

    end_all(admin, namespace, pod, force=True)
    assert_no_successor(admin, namespace)


def test_ending_the_owner_leaves_a_busy_pod_alone(admin: KubeClient, namespace: str, make_runner: MakeRunner) -> None:
    make_runner()
    pod = created(admin, namespace)
    bind_to_a_node(admin, namespace, NAME)
    found = set_of(admin, namespace)
    assert found is not None

    owner_of(NAME).end(admin, namespace=namespace, name=NAME, uid=found["metadata"]["uid"], policy=None)

    eventually(lambda: set_of(admin, namespace) is None)
    time.sleep(REPLACED_WITHIN)
    living = pod_of(admin, namespace)
    assert living is not None
    assert (living.uid, living.terminating) == (pod.uid, False)


def test_an_end_of_an_earlier_attempt_spares_the_successor(
    admin: KubeClient, namespace: str, make_runner: MakeRunner
) -> None:
    make_runner()
    old = created(admin, namespace)
    end_all(admin, namespace, old)
    eventually(lambda: pod_of(admin, namespace) is None and set_of(admin, namespace) is None)
    make_runner(attempt="a2")
    new = created(admin, namespace)

    assert end(admin, namespace, old) is Deletion.SUCCESSOR
    found = set_of(admin, namespace)
    assert found is not None
    assert "deletionTimestamp" not in found["metadata"]
    living = pod_of(admin, namespace)
    assert living is not None
    assert (living.uid, living.terminating) == (new.uid, False)


@pytest.mark.parametrize("cut", ["DELETE", "PATCH"])
def test_an_end_whose_reply_was_lost_is_completed_by_the_next(
    control_plane: ClusterAccess, admin: KubeClient, namespace: str, make_runner: MakeRunner, cut: str
) -> None:
    make_runner()
    pod = created(admin, namespace)
    bind_to_a_node(admin, namespace, NAME)
    finish(admin, namespace)
    client, faults = faulty_client(control_plane)
    faults.lose_reply(cut)

    def ended() -> bool:
        delete_runner(client, namespace=namespace, name=NAME, uid=pod.uid, attempt=pod.attempt)
        return pod_of(admin, namespace) is None

    eventually(ended)
    assert_no_successor(admin, namespace)
    assert set_of(admin, namespace) is None
    client.close()


def test_the_finalizers_of_others_stay(admin: KubeClient, namespace: str, make_runner: MakeRunner) -> None:
    make_runner()
    pod = created(admin, namespace)
    body = {"metadata": {"finalizers": ["example.com/audit", EXIT_FINALIZER]}}
    path = object_path("pods", namespace=namespace, name=NAME)
    admin.request("PATCH", path, body=body, content_type=MERGE_PATCH)

    end(admin, namespace, pod)

    assert admin.request("GET", path)["metadata"]["finalizers"] == ["example.com/audit"]
    admin.request("PATCH", path, body={"metadata": {"finalizers": None}}, content_type=MERGE_PATCH)


def test_each_runner_has_its_volumes_and_they_outlive_it(admin: KubeClient, namespace: str) -> None:
    spec = {
        "image": "runner:1",
        "runnerLabels": ["linux"],
        "workload": "StatefulSet",
        "volumes": {"claims": [{"name": "cache", "mountPath": "/cache", "storage": "1Gi"}]},
    }
    pool = create_pool(admin, namespace=namespace, name="caches", spec=spec)
    create_runner(
        admin, pool=pool, name="caches-0000000a-0", attempt="a1", dispatch_url="http://web/", audience="ostler"
    )
    pod = created(admin, namespace, "caches-0000000a-0")
    whole = admin.request("GET", object_path("pods", namespace=namespace, name=pod.name))
    runner = next(each for each in whole["spec"]["containers"] if each["name"] == "runner")
    assert ("cache", "/cache") in [(each["name"], each["mountPath"]) for each in runner["volumeMounts"]]
    poller = next(each for each in whole["spec"]["containers"] if each["name"] == "poller")
    assert "cache" not in [each["name"] for each in poller["volumeMounts"]]
    assert pod.attachable_volumes

    end_all(admin, namespace, pod)
    eventually(lambda: pod_of(admin, namespace, pod.name) is None)
    path = object_path("persistentvolumeclaims", namespace=namespace, name="cache-caches-0000000a-0")
    labels = admin.request("GET", path)["metadata"]["labels"]
    assert labels == {"ostler.dev/pool": "caches", "ostler.dev/runner": "caches-0000000a"}


def test_an_api_server_that_drops_the_restart_policy_is_refused(
    admin: KubeClient, namespace: str, pool: PoolSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stateful_set, "_never_restarts", lambda _: False)
    monkeypatch.setattr(stateful_set, "_supported", WeakSet())
    with pytest.raises(Unsupported) as refused:
        create_runner(admin, pool=pool, name=NAME, attempt="a1", dispatch_url="http://web/", audience="ostler-dispatch")
    assert str(refused.value) == TOO_OLD
    assert set_of(admin, namespace) is None

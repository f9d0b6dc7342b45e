"""Detachment of runner Pods after Ostler is removed, on the real controller of StatefulSets and garbage collector."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from k8s_adapters.calls import finalizers
from k8s_adapters.calls.client import MERGE_PATCH, Json, KubeClient, object_path
from k8s_adapters.names import OWNER_LABEL
from k8s_adapters.runners.owners import detaching
from k8s_adapters.runners.owners.detaching import Detached, detach_runners
from k8s_adapters.runners.owners.stateful_set import APPS, KIND
from k8s_adapters.runners.pods import list_pods
from lab.control_plane import ClusterAccess
from ostler.errors import Forbidden, Retryable
from tests.contract.chart.test_admission_policy import evict
from tests.contract.k8s.test_stamps import bind_to_a_node
from tests.contract.k8s.transport import MakeRunner
from tests.contract.owners.test_stateful_sets import assert_no_successor, created, finish, pod_of, start
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

IDLE, RUNS, FINISHED, DELETED = (f"pool-0000000{letter}-0" for letter in "abcd")


@pytest.fixture
def fleet(admin: KubeClient, namespace: str, make_runner: MakeRunner) -> None:
    """A Pod without a node, one whose containers run, one that has finished, and one that is being deleted."""
    for name in (IDLE, RUNS, FINISHED, DELETED):
        make_runner(name)
        created(admin, namespace, name)
    for name in (RUNS, FINISHED, DELETED):
        bind_to_a_node(admin, namespace, name)
    for name in (RUNS, DELETED):
        start(admin, namespace, name)
    finish(admin, namespace, name=FINISHED)
    admin.request("DELETE", object_path("pods", namespace=namespace, name=DELETED))
    finish(admin, namespace, name=DELETED)
    # The controller deletes a finished Pod, and only the finalizer keeps it.
    eventually(lambda: [each for each in list_pods(admin, namespace=namespace) if each.terminating][1:])


def left(admin: KubeClient, namespace: str) -> list[str]:
    """Return the StatefulSets and the Pods with the finalizer."""
    sets = admin.request("GET", object_path(KIND, namespace=namespace, group=APPS))["items"]
    pods = [pod.name for pod in list_pods(admin, namespace=namespace) if pod.exit_held]
    return [*(each["metadata"]["name"] for each in sets), *pods]


@pytest.mark.usefixtures("fleet")
def test_running_pods_go_on_and_no_other_pod_stays(admin: KubeClient, namespace: str) -> None:
    running = created(admin, namespace, RUNS)

    assert detach_runners(admin, namespace=namespace) == Detached(stateful_sets=4, finalizers=4)

    assert left(admin, namespace) == []
    eventually(lambda: {pod.name for pod in list_pods(admin, namespace=namespace)} == {IDLE, RUNS})
    found = created(admin, namespace, RUNS)
    assert (found.uid, found.terminating, found.runner_ready) == (running.uid, False, True)
    finish(admin, namespace, name=RUNS)
    assert not created(admin, namespace, RUNS).terminating, "it is an ordinary Pod now"
    for name in (FINISHED, DELETED):
        assert_no_successor(admin, namespace, name)
    assert detach_runners(admin, namespace=namespace) == Detached()


@pytest.mark.usefixtures("fleet")
def test_a_detachment_that_was_cut_short_is_completed_by_the_next(
    admin: KubeClient, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = finalizers.remove, 0

    def fails_at_the_second(*given: Any, **named: Any) -> bool:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise Retryable("no answer")
        return real(*given, **named)

    monkeypatch.setattr(finalizers, "remove", fails_at_the_second)
    with pytest.raises(Retryable):
        detach_runners(admin, namespace=namespace)
    monkeypatch.setattr(finalizers, "remove", real)
    assert len(left(admin, namespace)) == 3

    assert detach_runners(admin, namespace=namespace) == Detached(finalizers=3)
    assert left(admin, namespace) == []


@pytest.mark.usefixtures("fleet")
def test_a_pod_that_must_not_be_changed_does_not_stop_the_others(
    admin: KubeClient, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = finalizers.remove, 0

    def is_refused_at_first(*given: Any, **named: Any) -> bool:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise Forbidden("an admission policy refuses the change")
        return real(*given, **named)

    monkeypatch.setattr(finalizers, "remove", is_refused_at_first)
    with pytest.raises(Forbidden):
        detach_runners(admin, namespace=namespace)
    assert len(left(admin, namespace)) == 1


@pytest.mark.usefixtures("fleet")
def test_a_detached_pod_is_still_protected_by_a_disruption_budget(admin: KubeClient, namespace: str) -> None:
    detach_runners(admin, namespace=namespace)
    path = object_path("pods", namespace=namespace, name=RUNS)
    admin.request("PATCH", path, body={"metadata": {"labels": {OWNER_LABEL: "1"}}}, content_type=MERGE_PATCH)
    budget: Json = {
        "metadata": {"name": "busy"},
        "spec": {
            "maxUnavailable": 0,
            "selector": {"matchExpressions": [{"key": OWNER_LABEL, "operator": "Exists"}]},
        },
    }
    budgets = object_path("poddisruptionbudgets", namespace=namespace, group="policy")
    admin.request("POST", budgets, body=budget)
    eventually(lambda: "observedGeneration" in (admin.request("GET", f"{budgets}/busy").get("status") or {}))
    assert evict(admin, path) == 429
    assert not created(admin, namespace, RUNS).terminating
    assert evict(admin, object_path("pods", namespace=namespace, name=IDLE)) == 201


def test_a_garbage_collector_that_does_not_work_is_named_and_finalizers_stay(
    admin: KubeClient, namespace: str, make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_runner(IDLE)
    created(admin, namespace, IDLE)
    monkeypatch.setattr(detaching, "OWNERS_WITHIN", 0.0)
    monkeypatch.setattr(detaching, "becomes_true", lambda *_given, **_named: False)
    with pytest.raises(Retryable, match="check that kube-controller-manager runs"):
        detach_runners(admin, namespace=namespace)
    pod = pod_of(admin, namespace, IDLE)
    assert pod is not None
    assert pod.exit_held


@pytest.mark.usefixtures("fleet")
def test_the_command_detaches_and_says_what_it_did(namespace: str, control_plane: ClusterAccess) -> None:
    variables = {"OSTLER_KUBECONFIG": str(control_plane.kubeconfig), "OSTLER_NAMESPACE": namespace}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ostler", "pool", "detach", *arguments]
        return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)

    refused = run()
    assert (refused.returncode, "Confirm with --yes" in refused.stderr) == (2, True)
    done = run("--yes", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (
        0,
        {"namespaces": [namespace], "stateful_sets": 4, "finalizers": 4},
    )
    again = run("--yes", "--settle", "1")
    assert again.stdout == f"no runner in '{namespace}' has a StatefulSet or a finalizer of Ostler\n"

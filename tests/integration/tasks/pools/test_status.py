"""A pool's status: its content, when it is written, and the status of unusable and paused pools."""

from __future__ import annotations

from typing import Any

import pytest

from k8s_adapters.calls.client import MERGE_PATCH, KubeClient
from k8s_adapters.pools.draining import add_finalizer
from k8s_adapters.pools.pools import create_pool, delete_pool, get_pool, patch_pool_replicas
from lab.control_plane import ClusterAccess
from tasks.pools.mirror_pools import mirror_pool, pool_changed
from tasks.pools.reconcile import reconcile
from tasks.worker.runtime import runtime
from tests.integration.cli.test_operator import run_command
from tests.integration.tasks.conftest import Stage
from tests.integration.tasks.pools.fleet import (
    beats,
    condition,
    kept,
    new_tick,
    polls,
    reasons,
    retired,
    spec,
    status,
    the_pool,
)

UNUSABLE = {"spec": {"hostNetwork": True}}


def again(stage: Stage) -> None:
    """Reconcile once more, as if the last status was written long ago."""
    stage.rows("UPDATE pools SET status_at = NULL")
    kept(stage)


@pytest.mark.cluster
def test_it_counts_the_pods_by_their_states_and_tells_of_the_spec_that_was_seen(stage: Stage) -> None:
    stage.pool(replicas=5)
    kept(stage)
    busy, reserved, warm, ending, _ = sorted(stage.pods())
    polls(stage, busy, reserved, warm, ending)
    for number, (pod, state) in enumerate([(busy, "executing"), (reserved, "claimed"), (ending, "executing")]):
        stage.job(number)
        stage.claim(pod, job_id=number, state=state)
    stage.rows("""
        UPDATE claims SET state = 'ended', end_reason = 'completed', ended_at = now() WHERE job_id = 2
    """)
    again(stage)
    found = status(stage)
    counts = {
        "busy": 1,
        "reserved": 1,
        "warm": 1,
        "ending": 1,
        "starting": 1,
        "unresponsive": 0,
        "spent": 0,
        "retiring": 0,
    }
    assert {name: found[name] for name in counts} == counts
    assert (found["replicas"], found["stale"], found["observedGeneration"]) == (5, 0, 1)
    assert found["selector"] == "ostler.dev/pool=small"
    path = f"/apis/ostler.dev/v1alpha1/namespaces/{stage.namespace}/runnerpools/small/scale"
    scale = stage.kube.request("GET", path)
    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (5, 5)


def applied(stage: Stage, *, replicas: int | None) -> None:
    """Apply a manifest of a pool as a GitOps controller does, with or without `replicas`."""
    spec = {"image": "runner:1", "runnerLabels": ["small"], "autoscaling": {"enabled": True}}
    body = {
        "apiVersion": "ostler.dev/v1alpha1",
        "kind": "RunnerPool",
        "metadata": {"name": "small"},
        "spec": spec if replicas is None else {**spec, "replicas": replicas},
    }
    stage.kube.request(
        "PATCH",
        f"/apis/ostler.dev/v1alpha1/namespaces/{stage.namespace}/runnerpools/small",
        body=body,
        query={"fieldManager": "gitops", "force": "true"},
        content_type="application/apply-patch+yaml",
    )


@pytest.mark.cluster
def test_replicas_that_another_manager_sets_beside_autoscaling_are_told(stage: Stage) -> None:
    applied(stage, replicas=None)
    kept(stage)
    assert condition(stage, "Degraded")["reason"] == "AsExpected"

    applied(stage, replicas=3)
    told = condition(stage, "Degraded")
    assert (told["status"], told["reason"]) == ("True", "ReplicasConflict")
    assert "gitops" in told["message"]

    patch_pool_replicas(stage.kube, namespace=stage.namespace, name="small", replicas=4)
    assert condition(stage, "Degraded")["reason"] == "AsExpected", "the autoscaler owns the field now"
    spec(stage, autoscaling={"enabled": False})
    applied(stage, replicas=3)
    spec(stage, autoscaling={"enabled": False})
    assert condition(stage, "Degraded")["reason"] == "AsExpected", "replicas are theirs without autoscaling"


def test_ready_follows_the_pods_and_keeps_the_time_of_its_last_change(stage: Stage) -> None:
    stage.pool(replicas=1)
    kept(stage)
    first = condition(stage, "Ready")
    assert (first["status"], first["reason"]) == ("False", "PodsStarting")
    stage.rows("""
        UPDATE pools SET status = jsonb_set(status, '{conditions,0,lastTransitionTime}', '"2020-01-01T00:00:00Z"')
    """)
    spec(stage, routingPriority=3)
    assert condition(stage, "Ready")["lastTransitionTime"] == "2020-01-01T00:00:00Z"
    polls(stage)
    now = condition(stage, "Ready")
    assert (now["status"], now["observedGeneration"]) == ("True", 2)
    assert now["lastTransitionTime"] > first["lastTransitionTime"][:4]


def test_api_server_takes_the_status_of_a_pool_with_an_outdated_runner(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.pool(replicas=1)
    monkeypatch.setattr("tasks.pools.report.outdated", lambda *_: "GitHub will refuse its runner")
    assert condition(stage, "RunnerOutdated")["message"] == "GitHub will refuse its runner"


def test_a_pool_at_rest_costs_one_list_and_no_write(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.pool(replicas=2)
    kept(stage)
    polls(stage)
    again(stage)
    asked: list[tuple[str, str]] = []
    send = KubeClient.request

    def noted(self: KubeClient, method: str, path: str, **rest: Any) -> Any:
        asked.append((method, path.rpartition("/")[2]))
        return send(self, method, path, **rest)

    monkeypatch.setattr(KubeClient, "request", noted)
    reconcile.run(pool_id=the_pool(stage).id)
    assert asked == [("GET", "pods")]


def test_failed_status_write_is_repeated_by_the_next_reconcile(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.pool(replicas=1)
    kept(stage)
    polls(stage)
    with monkeypatch.context() as broken:
        broken.setattr("tasks.pools.report.pool_plans.record_status", fail)
        stage.rows("UPDATE pools SET status_at = NULL")
        with pytest.raises(ZeroDivisionError):  # killed after the write, before it was noted down
            kept(stage)
    again(stage)
    assert the_pool(stage).status == status(stage)


def fail(*_: Any, **__: Any) -> None:
    raise ZeroDivisionError


def test_invalid_pool_is_degraded_and_keeps_its_pods_while_other_pools_continue(stage: Stage) -> None:
    stage.pool("small", replicas=2)
    kept(stage)
    polls(stage)
    stage.pool("large", replicas=1)
    spec(stage, podTemplate=UNUSABLE, replicas=0, image="runner:9")
    kept(stage)
    new_tick(stage)
    kept(stage)
    assert sorted(pod.pool or "" for pod in stage.pods().values()) == ["large", "small", "small"]
    assert reasons(stage) == {}
    found = condition(stage, "Degraded")
    assert (found["status"], found["reason"]) == ("True", "InvalidSpec")
    assert "hostNetwork" in found["message"]

    spec(stage, podTemplate=None, image="runner:1")
    kept(stage)
    assert condition(stage, "Degraded")["status"] == "False"
    assert len(reasons(stage)) == 2


def test_a_pool_that_never_could_be_used_is_told_so_once(stage: Stage) -> None:
    body = {"image": "i", "runnerLabels": ["a"], "replicas": 1, "podTemplate": UNUSABLE}
    create_pool(stage.kube, namespace=stage.namespace, name="small", spec=body)
    kept(stage)
    found = condition(stage, "Degraded")
    assert (found["status"], found["reason"]) == ("True", "InvalidSpec")
    assert (condition(stage, "Ready")["status"], condition(stage, "Ready")["reason"]) == ("False", "PodsMissing")
    assert not stage.pods()
    path = f"/apis/ostler.dev/v1alpha1/namespaces/{stage.namespace}/runnerpools/small"
    before = stage.kube.request("GET", path)["metadata"]["resourceVersion"]
    kept(stage)
    assert stage.kube.request("GET", path)["metadata"]["resourceVersion"] == before


def test_a_paused_pool_stays_as_it_is_and_its_spent_pods_are_reaped(stage: Stage) -> None:
    stage.pool(replicas=3)
    kept(stage)
    first, *_ = sorted(stage.pods())
    polls(stage, first)
    spec(stage, paused=True, replicas=1, image="runner:2", provisioning={"startTimeout": "0s"})
    beats(stage)
    kept(stage)
    assert (len(stage.pods()), reasons(stage)) == (3, {})
    stage.finish(first)
    kept(stage)
    kept(stage)
    assert first not in stage.pods()
    assert len(stage.pods()) == 2
    assert condition(stage, "Ready")["reason"] == "Paused"


def test_a_paused_pool_that_is_deleted_drains(stage: Stage) -> None:
    stage.pool(replicas=1)
    kept(stage)
    polls(stage)
    spec(stage, paused=True)
    delete_pool(stage.kube, namespace=stage.namespace, name="small")
    kept(stage)
    assert list(reasons(stage).values()) == ["the pool is being deleted"]
    found = next(each for each in status(stage)["conditions"] if each["type"] == "Draining")
    assert found["status"] == "True"
    retired(stage)
    assert stage.pods() == {}


def test_a_change_that_the_watch_tells_of_is_mirrored_for_that_pool_alone(stage: Stage) -> None:
    stage.pool("small", replicas=0)
    stage.pool("large", replicas=0)
    kept(stage)
    spec(stage, "small", replicas=2)
    spec(stage, "large", replicas=2)
    pool_changed.run(namespace=stage.namespace, pool="small")
    ids = {row.name: row.id for row in stage.rows("SELECT id, name FROM pools")}
    assert [message["pool_id"] for message in stage.outbox.take("ostler.reconcile")] == [ids["small"]]
    found = {row.name: row.replicas for row in stage.rows("SELECT name, replicas FROM pools")}
    assert found == {"small": 2, "large": 0}

    delete_pool(stage.kube, namespace=stage.namespace, name="large")
    path = f"/apis/ostler.dev/v1alpha1/namespaces/{stage.namespace}/runnerpools/large"
    body: dict[str, Any] = {"metadata": {"finalizers": []}}
    stage.kube.request("PATCH", path, body=body, content_type="application/merge-patch+json")
    pool_changed.run(namespace=stage.namespace, pool="large")
    (row,) = stage.rows("SELECT deleted_at FROM pools WHERE name = 'large'")
    assert row.deleted_at is not None


NEVER_USABLE: dict[str, dict[str, Any]] = {
    "InvalidSpec": {"podTemplate": UNUSABLE},
    "ContainerJobsDisabled": {"containers": {"mode": "kubernetes", "vcpu": "1500m", "memoryMib": 1000}},
    "PodSecurityNotAllowed": {"security": {"podSecurity": "baseline"}},
}


@pytest.mark.cluster
@pytest.mark.parametrize("reason", NEVER_USABLE)
def test_pool_that_was_never_usable_is_changed_and_drained_by_command(
    stage: Stage, control_plane: ClusterAccess, reason: str
) -> None:
    body = {"image": "i", "runnerLabels": ["a"], "replicas": 1, **NEVER_USABLE[reason]}
    create_pool(stage.kube, namespace=stage.namespace, name="small", spec=body)
    assert condition(stage, "Degraded")["reason"] == reason
    shell = {
        "HOME": "/nonexistent",
        "OSTLER_KUBECONFIG": str(control_plane.kubeconfig),
        "OSTLER_NAMESPACE": stage.namespace,
    }

    for change in (("pause", "small"), ("resume", "small"), ("scale", "small", "3")):
        done = run_command(shell, "pool", *change)
        assert done.returncode == 0, done.stderr
    assert (reason == "InvalidSpec") == ("the spec of small is invalid" in done.stderr)

    done = run_command(shell, "pool", "drain", "small", "--yes", "--no-wait")
    assert (done.returncode, done.stderr) == (0, "")
    kept(stage)
    kept(stage)
    assert get_pool(stage.kube, namespace=stage.namespace, name="small") is None
    assert run_command(shell, "pool", "detach", "--yes").returncode == 0


def test_finalizer_of_a_degraded_pool_is_added_again(stage: Stage) -> None:
    stage.pool(replicas=1)
    kept(stage)
    spec(stage, podTemplate=UNUSABLE)
    kept(stage)
    path = f"/apis/ostler.dev/v1alpha1/namespaces/{stage.namespace}/runnerpools/small"
    stage.kube.request("PATCH", path, body={"metadata": {"finalizers": []}}, content_type=MERGE_PATCH)
    kept(stage)
    found = get_pool(stage.kube, namespace=stage.namespace, name="small")
    assert found is not None
    assert found.has_finalizer


def test_a_held_pool_without_a_row_drains_though_it_cannot_be_used(stage: Stage) -> None:
    """This is the state after a restore of an older Postgres."""
    body = {"image": "i", "runnerLabels": ["a"], "podTemplate": UNUSABLE}
    pool = create_pool(stage.kube, namespace=stage.namespace, name="small", spec=body)
    assert add_finalizer(stage.kube, namespace=stage.namespace, name="small", uid=pool.uid)
    delete_pool(stage.kube, namespace=stage.namespace, name="small")
    kept(stage)
    assert get_pool(stage.kube, namespace=stage.namespace, name="small") is None


def test_older_list_of_a_pool_does_not_undo_a_newer_one(stage: Stage) -> None:
    pool = stage.pool("small", replicas=1)
    kept(stage)
    newer = patch_pool_replicas(stage.kube, namespace=stage.namespace, name="small", replicas=2)
    assert newer.generation > pool.generation
    rt = runtime()
    mirror_pool(rt, newer)
    mirror_pool(rt, pool)
    assert the_pool(stage).replicas == 2

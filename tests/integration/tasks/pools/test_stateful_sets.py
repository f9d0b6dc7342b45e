"""Pools whose runners are StatefulSets, on the real controller: the same reconciler, claims and retirements."""

from __future__ import annotations

import time
from typing import Any
from weakref import WeakSet

import pytest
from sqlalchemy import Connection

from k8s_adapters.calls import finalizers
from k8s_adapters.calls.client import MERGE_PATCH, Json, KubeClient, object_path
from k8s_adapters.runners.owners import detaching, stateful_set
from k8s_adapters.runners.owners.volumes import list_volumes
from models.db.engine import transaction
from models.pools import pool_plans
from ostler.clock import utcnow
from ostler.errors import Conflict, Forbidden, Retryable
from rules.pools.volumes import VolumePlan, VolumeSeen
from tasks.claims.retire import retire
from tasks.pools import create_pods, delete_volumes, plan
from tasks.pools import volumes as pool_volumes
from tasks.pools.pod_lists import Listed
from tasks.sweeps.orphaned_service_accounts import orphaned_service_accounts
from tests.guard import guarded
from tests.integration.tasks.conftest import Stage
from tests.integration.tasks.pools.dead_nodes import all_pods
from tests.integration.tasks.pools.drains import busy_pod, delete, drain, end_job, seen, tick
from tests.integration.tasks.pools.fleet import (
    NEW,
    beats,
    condition,
    images,
    limit_pods,
    no_node_takes,
    polls,
    reasons,
    rounds,
    spec,
    status,
)
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

SETS = {"workload": "StatefulSet"}
CACHE = {"claims": [{"name": "cache", "mountPath": "/cache", "storage": "1Gi"}]}


def sets(stage: Stage) -> set[str]:
    """Return the names of the StatefulSets."""
    found = stage.kube.request("GET", object_path("statefulsets", namespace=stage.namespace, group="apps"))
    return {item["metadata"]["name"] for item in found["items"]}


def volumes(stage: Stage) -> set[str]:
    """Return the names of the pool's volumes that are not being deleted."""
    found = list_volumes(stage.kube, namespace=stage.namespace, pool="small")
    return {each.name for each in found if not each.terminating}


def started(stage: Stage, count: int, **more: Any) -> list[str]:
    """Create a pool with `count` polling runners, and return the names of their Pods."""
    stage.pool(replicas=count, **SETS, **more)
    return grown(stage, count)


def grown(stage: Stage, count: int) -> list[str]:
    """Wait until the pool has this number of polling runners."""

    def all_polled() -> bool:
        tick(stage)
        polls(stage)
        (row,) = stage.rows("SELECT count(*) AS many FROM runner_pods WHERE uid IS NOT NULL AND gone_at IS NULL")
        return bool(row.many == count and len(stage.pods()) == count)

    eventually(all_polled)
    return sorted(stage.pods())


def written(stage: Stage) -> Json:
    """Write the status of the pool, and return it."""
    stage.rows("UPDATE pools SET status_at = NULL")
    tick(stage)
    return status(stage)


def finish(stage: Stage, name: str, *, runner: int = 0) -> None:
    """Write the kubelet's status of a Pod whose containers have ended."""
    stage.finish(name, phase="Failed" if runner else "Succeeded", runner=runner)
    path = object_path("pods", namespace=stage.namespace, name=name)
    if "deletionTimestamp" in stage.kube.request("GET", path)["metadata"]:
        stage.kube.request("DELETE", path, body={"gracePeriodSeconds": 0})


def test_a_runner_has_a_stateful_set_and_its_row_gets_the_uid_of_the_pod(stage: Stage) -> None:
    first, second = started(stage, 2)

    assert sets(stage) == {first.removesuffix("-0"), second.removesuffix("-0")}
    rows = stage.rows("SELECT name, uid FROM runner_pods ORDER BY name")
    assert {row.name: row.uid for row in rows} == {name: pod.uid for name, pod in stage.pods().items()}
    assert stage.service_accounts() >= {first, second}
    assert written(stage)["warm"] == 2


@pytest.mark.parametrize("code", [0, 1], ids=["succeeded", "failed"])
def test_a_finished_runner_is_recorded_removed_and_replaced_by_another(stage: Stage, code: int) -> None:
    (name,) = started(stage, 1)
    _, claim = busy_pod(stage, name=name)
    stage.rows("UPDATE claims SET state = 'ended', end_reason = 'completed', ended_at = now() WHERE id = :id", id=claim)
    stage.rows("UPDATE jobs SET state = 'completed', conclusion = 'success'")
    finish(stage, name, runner=code)

    def replaced() -> bool:
        tick(stage)
        return set(stage.pods()) != set() and name not in stage.pods()

    eventually(replaced)
    (row,) = stage.rows("SELECT * FROM runner_pods WHERE name = :name", name=name)
    assert (row.runner_exit_code, row.gone_at is not None) == (code, True)
    assert name.removesuffix("-0") not in sets(stage)
    assert name not in stage.service_accounts()


def test_the_exit_of_a_runner_that_ends_during_its_retirement_is_recorded(stage: Stage) -> None:
    (name,) = started(stage, 1)
    claim = stage.retire_claim(name)
    finish(stage, name, runner=137)

    def gone() -> bool:
        stage.rows("UPDATE claims SET leased_until = NULL")
        retire.run(claim_id=claim)
        return name not in all_pods(stage)

    eventually(gone)
    (row,) = stage.rows("SELECT runner_exit_code, terminal_at FROM runner_pods WHERE name = :name", name=name)
    assert (row.runner_exit_code, row.terminal_at is not None) == (137, True)


def test_scaling_down_retires_warm_runners_and_spares_the_busy_one(stage: Stage) -> None:
    names = started(stage, 3)
    busy, _ = busy_pod(stage, name=names[1])
    spec(stage, replicas=0)

    def only_the_busy_one() -> bool:
        rounds(stage, 1, polling=False)
        return set(stage.pods()) == {busy}

    eventually(only_the_busy_one)
    assert stage.pods()[busy].terminating is False
    assert sets(stage) == {busy.removesuffix("-0")}


def test_a_changed_template_replaces_the_stateful_sets_one_after_the_other(stage: Stage) -> None:
    started(stage, 2)
    spec(stage, image=NEW)

    def rolled() -> bool:
        rounds(stage, 1)
        return len(images(stage)[NEW]) == 2 and len(stage.pods()) == 2

    eventually(rolled)
    assert len(sets(stage)) == 2


def test_a_deleted_pool_drains_and_leaves_nothing(stage: Stage) -> None:
    first, _ = started(stage, 2)
    name, claim = busy_pod(stage, name=first)
    delete(stage)
    for _ in range(3):
        drain(stage)
    assert set(stage.pods()) == {name}

    end_job(stage, name, claim)

    def is_gone() -> bool:
        drain(stage)
        return seen(stage) is None

    eventually(is_gone)
    assert stage.pods() == {}
    assert sets(stage) == set()


def wait_until_detached(stage: Stage) -> None:
    """Reconcile until no Pod has the finalizer."""

    def are_detached() -> bool:
        tick(stage)
        return not any(pod.exit_held for pod in stage.pods().values())

    eventually(are_detached)


def test_a_busy_pod_of_a_deleted_pool_ends_without_ostler(stage: Stage) -> None:
    first, _ = started(stage, 2)
    name, claim = busy_pod(stage, name=first)
    before = stage.pods()[name]
    delete(stage)

    wait_until_detached(stage)
    found = stage.pods()[name]
    assert (found.uid, found.terminating, found.runner_ready) == (before.uid, False, before.runner_ready)
    assert name.removesuffix("-0") not in sets(stage)
    end_job(stage, name, claim)
    stage.kube.request("DELETE", object_path("pods", namespace=stage.namespace, name=name))
    eventually(lambda: name not in stage.pods())


def test_a_pod_that_cannot_be_detached_now_does_not_stop_the_others(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = started(stage, 2)
    for number, name in enumerate(names):
        busy_pod(stage, 7 + number, name=name)
    real, failed = finalizers.remove, set()

    def fails_at_first(client: KubeClient, path: str, **named: Any) -> bool:
        if path not in failed:
            failed.add(path)
            raise Retryable("no answer")
        return real(client, path, **named)

    monkeypatch.setattr(finalizers, "remove", fails_at_first)
    delete(stage)
    tick(stage)
    assert len(failed) == 2
    assert sets(stage) == set()
    assert all(pod.exit_held for pod in stage.pods().values())

    wait_until_detached(stage)
    assert not any(pod.terminating for pod in stage.pods().values())


def test_a_pod_that_ended_after_the_list_keeps_its_finalizer(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    (name,) = started(stage, 1)
    busy_pod(stage, name=name)
    real = detaching.is_orphaned

    def ends_meanwhile(*args: Any, **named: Any) -> bool:
        finish(stage, name)
        return real(*args, **named)

    monkeypatch.setattr(detaching, "is_orphaned", ends_meanwhile)
    delete(stage)
    tick(stage)

    assert stage.pods()[name].exit_held
    assert sets(stage) == set()
    tick(stage)
    (row,) = stage.rows("SELECT terminal_at, runner_exit_code FROM runner_pods WHERE name = :name", name=name)
    assert (row.terminal_at is not None, row.runner_exit_code) == (True, 0)


def test_the_pod_of_another_attempt_is_detached_from_its_own_stateful_set(stage: Stage) -> None:
    (name,) = started(stage, 1)
    busy_pod(stage, name=name)
    stage.rows("UPDATE runner_pods SET attempt_id = 'another'")
    delete(stage)

    wait_until_detached(stage)
    assert sets(stage) == set()
    assert not stage.pods()[name].terminating


def test_a_busy_pod_without_a_claim_is_detached_too(stage: Stage) -> None:
    (name,) = started(stage, 1)
    _, claim = busy_pod(stage, name=name)
    stage.rows("UPDATE claims SET state = 'ended', end_reason = 'completed', ended_at = now() WHERE id = :id", id=claim)
    stage.rows("UPDATE jobs SET state = 'completed', conclusion = 'success'")
    delete(stage)

    wait_until_detached(stage)
    assert not stage.pods()[name].terminating


def test_a_warm_pod_that_somebody_deletes_is_replaced_by_another_runner(stage: Stage) -> None:
    (name,) = started(stage, 1)
    stage.kube.request("DELETE", object_path("pods", namespace=stage.namespace, name=name))

    def replaced() -> bool:
        tick(stage)
        polls(stage)
        return set(stage.pods()) != set() and name not in stage.pods()

    eventually(replaced)

    def is_removed() -> bool:
        tick(stage)
        return name.removesuffix("-0") not in sets(stage)

    eventually(is_removed)


@pytest.mark.parametrize("propagation", ["Orphan", "Background", "Foreground"])
def test_a_stateful_set_that_somebody_deletes_costs_no_job(stage: Stage, propagation: str) -> None:
    (name,) = started(stage, 1)
    with guarded(stage.kube, stage.namespace):
        _, claim = busy_pod(stage, name=name)
        path = object_path("statefulsets", namespace=stage.namespace, name=name.removesuffix("-0"), group="apps")
        stage.kube.request("DELETE", path, query={"propagationPolicy": propagation})
        for _ in range(3):
            tick(stage)
        pod = stage.pods()[name]
        assert pod.terminating is False
        end_job(stage, name, claim)

        def replaced() -> bool:
            tick(stage)
            return set(stage.pods()) != set() and name not in stage.pods()

        eventually(replaced)
        eventually(lambda: name.removesuffix("-0") not in sets(stage))


def test_a_stateful_set_that_somebody_scales_to_zero_costs_no_job(stage: Stage) -> None:
    (name,) = started(stage, 1)
    with guarded(stage.kube, stage.namespace):
        busy_pod(stage, name=name)
        path = object_path("statefulsets", namespace=stage.namespace, name=name.removesuffix("-0"), group="apps")
        stage.kube.request("PATCH", path, body={"spec": {"replicas": 0}}, content_type=MERGE_PATCH)
        for _ in range(5):
            tick(stage)
        assert stage.pods()[name].terminating is False


def test_a_stateful_set_without_a_row_is_removed_by_the_sweep(stage: Stage) -> None:
    (name,) = started(stage, 1)
    path = object_path("pods", namespace=stage.namespace, name=name)
    stage.kube.request("PATCH", path, body={"metadata": {"finalizers": None}}, content_type=MERGE_PATCH)
    stage.rows("DELETE FROM offers")
    stage.rows("UPDATE runner_pods SET gone_at = now()")
    # A quota that allows no Pod: the StatefulSet stays without a Pod.
    limit_pods(stage, 0)
    stage.kube.request("DELETE", path, body={"gracePeriodSeconds": 0})
    eventually(lambda: stage.pods() == {})
    assert sets(stage) == {name.removesuffix("-0")}

    stage.with_settings(orphaned_account_after=0.0)
    orphaned_service_accounts.run()

    eventually(lambda: sets(stage) == set())
    assert name not in stage.service_accounts()


def test_the_next_runner_gets_the_volumes_of_a_finished_runner(stage: Stage) -> None:
    (name,) = started(stage, 1, volumes=CACHE)
    assert volumes(stage) == {f"cache-{name}"}
    assert written(stage)["volumes"] == {"inUse": 1, "free": 0, "lost": 0}
    uid = stage.pods()[name].uid
    finish(stage, name)

    def again() -> bool:
        tick(stage)
        pod = stage.pods().get(name)
        return pod is not None and pod.uid != uid

    eventually(again)
    grown(stage, 1)
    assert volumes(stage) == {f"cache-{name}"}
    assert len(stage.rows("SELECT id FROM runner_pods WHERE name = :name", name=name)) == 2


def test_the_volumes_of_a_finished_runner_are_deleted_if_the_pool_says_so(stage: Stage) -> None:
    (name,) = started(stage, 1, volumes={**CACHE, "reclaim": "Delete"})
    finish(stage, name)

    def deleted() -> bool:
        tick(stage)
        polls(stage)
        found = volumes(stage)
        return len(found) == 1 and f"cache-{name}" not in found

    eventually(deleted)


def test_a_volume_whose_persistent_volume_is_gone_counts_as_lost_and_is_not_reused(stage: Stage) -> None:
    (name,) = started(stage, 1, volumes=CACHE)
    path = object_path("persistentvolumeclaims", namespace=stage.namespace, name=f"cache-{name}")
    stage.kube.request("PATCH", f"{path}/status", body={"status": {"phase": "Lost"}}, content_type=MERGE_PATCH)
    assert written(stage)["volumes"] == {"inUse": 0, "free": 0, "lost": 1}
    finish(stage, name)

    def is_replaced() -> bool:
        tick(stage)
        return bool(stage.pods()) and name not in stage.pods()

    eventually(is_replaced, within=30)
    grown(stage, 1)
    assert written(stage)["volumes"] == {"inUse": 1, "free": 0, "lost": 1}


@pytest.mark.parametrize(("recorded", "in_use"), [("1 hour", 1), ("-1 hour", 0)])
def test_the_volume_of_a_listed_pod_is_in_use_although_its_row_is_gone(
    stage: Stage, recorded: str, in_use: int
) -> None:
    (name,) = started(stage, 1, volumes=CACHE)
    listed = Listed(list(stage.pods().values()), utcnow())
    stage.rows("UPDATE runner_pods SET gone_at = now() - CAST(:age AS interval) RETURNING id", age=recorded)
    found = list_volumes(stage.kube, namespace=stage.namespace, pool="small")

    def body(db: Connection) -> VolumePlan | None:
        (pool,) = stage.rows("SELECT id FROM pools")
        return pool_volumes.make_volume_plan(db, pool_plans.lock_pool(db, pool.id), found, listed=listed)

    made = transaction(stage.rt.engine, body)
    assert made is not None
    assert (made.in_use, made.free) == (in_use, 1 - in_use)
    assert made.reusable == (() if in_use else (name.removesuffix("-0"),))


def test_a_deleted_pool_waits_for_volumes_that_cannot_be_deleted_and_says_so(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    started(stage, 1, volumes={**CACHE, "reclaim": "Delete"})

    def refused(*_: Any, **__: Any) -> None:
        raise Forbidden("no right to delete volumes")

    def condition() -> Json:
        return next(each for each in written(stage)["conditions"] if each["type"] == "Draining")

    with monkeypatch.context() as patched:
        patched.setattr(delete_volumes, "delete_volume", refused)
        delete(stage)
        eventually(lambda: condition()["reason"] == "VolumesLeft")
        assert "not yet deleted: 1 PersistentVolumeClaim of the pool" in condition()["message"]

    def is_gone() -> bool:
        tick(stage)
        return seen(stage) is None

    eventually(is_gone)


def test_volumes_of_another_shape_are_kept_but_never_used_again(stage: Stage) -> None:
    (name,) = started(stage, 1, volumes=CACHE)
    larger = {"claims": [{"name": "cache", "mountPath": "/cache", "storage": "2Gi"}]}
    spec(stage, volumes=larger)

    def rolled() -> bool:
        rounds(stage, 1)
        return len(stage.pods()) == 1 and name not in stage.pods()

    eventually(rolled)
    tick(stage)
    (new,) = stage.pods()
    assert volumes(stage) == {f"cache-{name}", f"cache-{new}"}
    assert written(stage)["volumes"] == {"inUse": 1, "free": 1, "lost": 0}


def test_no_runner_is_created_while_the_volumes_cannot_be_listed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    (name,) = started(stage, 1, volumes=CACHE)

    def refused(*_: Any, **__: Any) -> None:
        raise Forbidden("no right to list volumes")

    with monkeypatch.context() as patched:
        patched.setattr(pool_volumes, "list_volumes", refused)
        finish(stage, name)
        for _ in range(3):
            tick(stage)
        assert name not in stage.pods()
        assert stage.pods() == {}
    assert grown(stage, 1) == [name]


def test_an_account_that_an_earlier_runner_left_does_not_block_its_name(stage: Stage) -> None:
    (name,) = started(stage, 1, volumes=CACHE)
    spec(stage, replicas=0)
    finish(stage, name)

    def is_gone() -> bool:
        tick(stage)
        return name not in stage.service_accounts()

    eventually(is_gone)
    body = {
        "metadata": {
            "name": name,
            "labels": {"ostler.dev/pool": "small"},
            "annotations": {"ostler.dev/attempt": "earlier", "ostler.dev/spec-digest": "d"},
        }
    }
    stage.kube.request("POST", object_path("serviceaccounts", namespace=stage.namespace), body=body)
    spec(stage, replicas=1)
    assert grown(stage, 1) == [name]


def test_a_pod_that_the_controller_cannot_create_is_named_in_the_condition(stage: Stage) -> None:
    quota = limit_pods(stage, 1)
    stage.pool(replicas=2, **SETS)

    def is_named() -> bool:
        stage.rows("UPDATE pools SET status_at = NULL")
        tick(stage)
        polls(stage)
        ready = next(each for each in status(stage)["conditions"] if each["type"] == "Ready")
        return bool(ready["reason"] == "QuotaExceeded" and "exceeded quota: few" in ready["message"])

    eventually(is_named)
    assert len(stage.pods()) == 1  # the other runner of the pool goes on
    stage.kube.request("DELETE", quota)

    def is_ready() -> bool:
        stage.rows("UPDATE pools SET status_at = NULL, create_after = NULL")
        tick(stage)
        polls(stage)
        ready = next(each for each in status(stage)["conditions"] if each["type"] == "Ready")
        return bool(ready["reason"] == "PodsAvailable")

    eventually(is_ready)
    spec(stage, replicas=3)
    grown(stage, 3)
    (row,) = stage.rows("SELECT start_trouble FROM pools")
    assert row.start_trouble is None


def test_a_name_in_use_does_not_count_as_an_accepted_pod(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.pool(replicas=0, **SETS)
    tick(stage)
    spec(stage, replicas=1)
    stage.rows("UPDATE pools SET start_trouble = 'quota', start_detail = 'exceeded quota: few' RETURNING id")

    def in_use(*_: Any, **__: Any) -> None:
        raise Conflict("another object has the name")

    def trouble() -> str | None:
        found: str | None = stage.rows("SELECT start_trouble FROM pools")[0].start_trouble
        return found

    with monkeypatch.context() as patched:
        patched.setattr(create_pods, "create_runner", in_use)
        for _ in range(3):
            tick(stage)
        assert trouble() == "quota"
    grown(stage, 1)
    assert trouble() is None


def test_an_api_server_that_is_too_old_degrades_the_pool(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stateful_set, "_never_restarts", lambda _: False)
    monkeypatch.setattr(stateful_set, "_supported", WeakSet())
    stage.pool(replicas=1, **SETS)
    for _ in range(2):
        stage.rows("UPDATE pools SET status_at = NULL")
        tick(stage)
    degraded = next(each for each in status(stage)["conditions"] if each["type"] == "Degraded")
    assert degraded["reason"] == "PodRefused"
    assert "needs Kubernetes 1.35" in degraded["message"]
    eventually(lambda: sets(stage) == set())


def test_a_runner_without_its_volume_is_named_and_others_of_the_pool_go_on(stage: Stage) -> None:
    """Examples are a storage class without space and a volume in a full zone: the scheduler finds no node."""
    first, second = started(stage, 2, volumes=CACHE)
    stage.rows("UPDATE runner_pods SET first_polled_at = NULL, polled_at = NULL WHERE name = :name", name=second)
    stage.rows("DELETE FROM offers")
    before = stage.pods()[second].uid
    no_node_takes(stage, second)
    beats(stage)
    spec(stage, provisioning={"startTimeout": "1s"})
    time.sleep(1.5)
    tick(stage)
    why = "no node accepted the Pod within 1 s: 0/1 nodes"
    assert reasons(stage) == {second: f"the Pod did not start to poll: {why}"}
    degraded = condition(stage, "Degraded")
    assert (degraded["reason"], degraded["message"]) == ("PodsDoNotStart", f"Pods do not start: {why}")

    def replaced() -> bool:
        stage.rows("UPDATE pools SET create_after = NULL, start_timeout = 3600")
        tick(stage)
        uids = {pod.uid for pod in stage.pods().values()}
        return len(uids) == 2 and before not in uids

    spec(stage, provisioning={"startTimeout": "1h"})
    eventually(replaced, within=60)
    assert stage.pods()[first].terminating is False
    assert f"cache-{second}" in volumes(stage)


def test_volumes_that_cannot_be_deleted_do_not_stop_the_others(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [VolumeSeen(name=f"cache-{each}", uid=str(each), runner=str(each), shape="s") for each in range(8)]
    tried: set[str] = set()

    def refused(*_: Any, name: str, **__: Any) -> None:
        tried.add(name)
        raise Forbidden("no right to delete volumes")

    started(stage, 1, volumes={**CACHE, "reclaim": "Delete"})
    monkeypatch.setattr(delete_volumes, "delete_volume", refused)
    monkeypatch.setattr(plan, "make_volume_plan", lambda *_args, **_more: VolumePlan(delete=tuple(kept), free=8))
    for _ in range(20):
        before = len(tried)
        tick(stage)
        assert len(tried) - before <= 5
    assert tried == {each.name for each in kept}

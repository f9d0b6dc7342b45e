"""Deleted pools on a real API server: protected before their first Pod, drained, and released when nothing is left."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from k8s_adapters.calls.client import MERGE_PATCH, object_path
from k8s_adapters.names import DRAIN_FINALIZER, POOL_LABEL
from k8s_adapters.pools.pools import create_pool
from k8s_adapters.runners.runners import create_runner
from ostler.clock import utcnow
from ostler.errors import Retryable
from rules.pools.pool_spec import PoolSpec
from tests.integration.tasks.conftest import Stage, StubGitHub
from tests.integration.tasks.pools.drains import busy_pod, delete, drain, end_creations, end_job, patch, seen, tick

OTHER = "example.com/audit"


def test_a_pool_is_held_before_its_first_pod_is_made(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[bool] = []

    def create(*args: Any, pool: PoolSpec, **kwargs: Any) -> Any:
        found = seen(stage)
        held.append(found is not None and found.has_finalizer and pool.has_finalizer)
        return create_runner(*args, pool=pool, **kwargs)

    monkeypatch.setattr("tasks.pools.create_pods.create_runner", create)
    stage.pool(replicas=2)
    tick(stage)
    assert held == [True, True]


def test_a_pool_that_cannot_be_held_makes_no_pod_and_stops_no_other(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.pool("small", replicas=1)
    stage.pool("large", replicas=1)
    with monkeypatch.context() as broken:

        def refuse(*_: Any, name: str, **__: Any) -> bool:
            if name == "small":
                raise Retryable("no answer")
            patch(stage, {"metadata": {"finalizers": [DRAIN_FINALIZER]}}, name)
            return True

        broken.setattr("tasks.pools.finalizers.add_finalizer", refuse)
        tick(stage)
        assert [name.partition("-")[0] for name in stage.pods()] == ["large"]
    tick(stage)
    assert len(stage.pods()) == 2


def test_an_empty_pool_is_held_too_and_one_patch_does_for_ever(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.pool(replicas=0)
    tick(stage)
    pool = seen(stage)
    assert pool is not None
    assert pool.has_finalizer
    monkeypatch.setattr("tasks.pools.finalizers.add_finalizer", None)
    tick(stage)


def test_a_deleted_pool_retires_its_warm_pods_keeps_its_busy_one_and_goes_with_it(stage: Stage) -> None:
    stage.pool(replicas=3)
    tick(stage)
    name, claim = busy_pod(stage)
    delete(stage)
    drain(stage)
    assert list(stage.pods()) == [name]
    assert seen(stage) is not None
    warm = stage.rows("SELECT end_reason FROM claims WHERE purpose = 'retire'")
    assert [row.end_reason for row in warm] == ["retired"] * 2

    end_job(stage, name, claim)
    drain(stage)

    assert seen(stage) is None
    assert stage.pods() == {}
    assert stage.service_accounts() == {"default"}
    (row,) = stage.rows("SELECT deleted_at, draining_since FROM pools")
    assert row.deleted_at is not None
    assert row.draining_since is not None


def test_the_finalizers_of_others_outlast_ours(stage: Stage) -> None:
    stage.pool(replicas=1)
    tick(stage)
    patch(stage, {"metadata": {"finalizers": [OTHER, DRAIN_FINALIZER]}})
    delete(stage)
    drain(stage)
    pool = seen(stage)
    assert pool is not None
    assert not pool.has_finalizer
    assert stage.pods() == {}
    patch(stage, {"metadata": {"finalizers": []}})
    tick(stage)
    assert seen(stage) is None


def test_a_pool_stays_while_a_row_says_that_a_pod_may_live(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.rt.github = StubGitHub(broken=True)
    stage.pool(replicas=2)
    tick(stage)
    busy_pod(stage)
    delete(stage)
    monkeypatch.setattr(
        "tasks.pools.observe.list_pods", lambda *_, **__: []
    )  # the list of a server that is not up to date
    drain(stage)
    pool = seen(stage)
    assert pool is not None
    assert pool.has_finalizer


def test_a_pool_stays_while_the_pod_of_a_given_up_row_might_come(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def create(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.undo()
        delete(stage)
        drain(stage)  # by other workers, between the last look at the pool and the creation
        (row,) = stage.rows("SELECT uid FROM runner_pods WHERE gone_at IS NOT NULL")
        assert row.uid is None
        return create_runner(*args, **kwargs)

    monkeypatch.setattr("tasks.pools.create_pods.create_runner", create)
    stage.pool(replicas=1)
    tick(stage)

    (pod,) = stage.pods().values()
    assert not pod.terminating
    pool = seen(stage)
    assert pool is not None
    assert pool.has_finalizer
    drain(stage)
    assert [row.end_reason for row in stage.rows("SELECT end_reason FROM claims WHERE purpose = 'retire'")] == [
        "retired"
    ]
    assert stage.pods() == {}
    assert seen(stage) is None


def test_a_pool_whose_spec_went_bad_drains_like_any_other(stage: Stage) -> None:
    stage.pool(replicas=2)
    tick(stage)
    name, claim = busy_pod(stage)
    patch(stage, {"spec": {"podTemplate": {"spec": {"hostNetwork": True}}}})
    tick(stage)
    assert len(stage.pods()) == 2
    delete(stage)
    drain(stage)
    assert list(stage.pods()) == [name]
    end_job(stage, name, claim)
    drain(stage)
    assert seen(stage) is None


def test_a_pool_that_went_without_our_finalizer_is_drained_by_its_rows(stage: Stage) -> None:
    stage.pool(replicas=3)
    tick(stage)
    name, claim = busy_pod(stage)
    patch(stage, {"metadata": {"finalizers": []}})
    for pod in stage.pods():  # as a deletion that leaves orphans does
        path = object_path("pods", namespace=stage.namespace, name=pod)
        stage.kube.request("PATCH", path, body={"metadata": {"ownerReferences": []}}, content_type=MERGE_PATCH)
    delete(stage)
    assert seen(stage) is None
    drain(stage)
    assert list(stage.pods()) == [name]
    end_job(stage, name, claim)
    drain(stage)
    assert stage.pods() == {}
    assert stage.service_accounts() == {"default"}


def test_a_pool_met_terminating_without_our_finalizer_is_drained(stage: Stage) -> None:
    stage.pool(replicas=2)
    tick(stage)
    name, _ = busy_pod(stage)
    patch(stage, {"metadata": {"finalizers": [OTHER]}})
    delete(stage)
    drain(stage)
    assert list(stage.pods()) == [name]
    patch(stage, {"metadata": {"finalizers": []}})


def test_a_pod_that_was_being_made_when_its_pool_went_is_found_and_retired(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = stage.pool(replicas=1)

    def killed(*_: Any, **__: Any) -> Any:
        raise Retryable("killed before the call went out")

    with monkeypatch.context() as broken:
        broken.setattr("tasks.pools.create_pods.create_runner", killed)
        tick(stage)
    (row,) = stage.rows("SELECT name, attempt_id FROM runner_pods")
    delete(stage)
    drain(stage)
    end_creations(stage)
    drain(stage)
    assert seen(stage) is None

    # Owned by a pool that is there, so that the collector leaves it to us.
    spec = {"image": "runner:1", "runnerLabels": ["other"]}
    other = create_pool(stage.kube, namespace=stage.namespace, name="other", spec=spec)
    create_runner(
        stage.kube, pool=other, name=row.name, attempt=row.attempt_id, dispatch_url="http://127.0.0.1:1/", audience="a"
    )
    path = object_path("pods", namespace=stage.namespace, name=row.name)
    body = {"metadata": {"labels": {POOL_LABEL: pool.name}}}
    stage.kube.request("PATCH", path, body=body, content_type=MERGE_PATCH)
    drain(stage)

    assert row.name not in stage.pods()
    assert row.name not in stage.service_accounts()


def condition(stage: Stage) -> dict[str, str]:
    """Return the pool's condition Draining as it is written now and stored in the rows."""
    stage.rows("UPDATE pools SET status_at = NULL")
    tick(stage)
    pool = seen(stage)
    assert pool is not None
    (found,) = [each for each in pool.status["conditions"] if each["type"] == "Draining"]
    (row,) = stage.rows("SELECT status -> 'conditions' AS told FROM pools")
    assert found in row.told
    told: dict[str, str] = found
    return told


def test_draining_condition_reports_its_start_the_busy_pods_and_an_overdue_drain(stage: Stage) -> None:
    stage.pool(replicas=2)
    tick(stage)
    patch(stage, {"spec": {"drainTimeout": "1h"}})
    assert condition(stage)["status"] == "False"
    name, claim = busy_pod(stage)
    delete(stage)
    drain(stage)

    told = condition(stage)
    assert (told["status"], told["reason"]) == ("True", "PodsLeft")
    assert re.fullmatch(
        r"Draining since 20\S+Z: 1 of 1 remaining Pods are busy; job 7 has been running since 20\S+Z", told["message"]
    )

    late = utcnow() + timedelta(hours=2)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tasks.pools.report.utcnow", lambda: late)
        told = condition(stage)
    assert told["reason"] == "Overdue"
    assert told["message"].endswith("drainTimeout has passed, but no job is stopped")
    assert list(stage.pods()) == [name]
    end_job(stage, name, claim)
    drain(stage)
    assert seen(stage) is None


def test_a_paused_pool_drains_when_it_is_deleted(stage: Stage) -> None:
    stage.pool(replicas=2)
    tick(stage)
    patch(stage, {"spec": {"paused": True}})
    tick(stage)
    delete(stage)
    drain(stage)
    assert seen(stage) is None
    assert stage.pods() == {}


def test_a_pool_stays_while_a_pod_lives_that_rows_take_for_gone(stage: Stage) -> None:
    """This can happen after a restored Postgres or a wrong repair. The cluster and the rows must agree."""
    stage.pool(replicas=1)
    tick(stage)
    name, _ = busy_pod(stage)
    stage.rows("UPDATE runner_pods SET gone_at = now()")
    delete(stage)
    drain(stage)
    pool = seen(stage)
    assert pool is not None
    assert pool.has_finalizer
    assert list(stage.pods()) == [name]

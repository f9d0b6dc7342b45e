"""Frequent failures of real clusters, and the reactions of a pool."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from k8s_adapters.calls.client import MERGE_PATCH
from k8s_adapters.runners.pods import list_pods
from rules.claims.pod_view import PodView
from tasks.pools.mirror_pools import pools
from tests.integration.tasks.conftest import Stage
from tests.integration.tasks.pools.fleet import (
    beats,
    kept,
    new_tick,
    polls,
    reasons,
    retired,
    rounds,
    spec,
    the_pool,
    woken,
)


def test_pods_that_end_before_their_first_poll_are_made_with_a_backoff(stage: Stage) -> None:
    stage.pool(replicas=5)
    beats(stage)
    made: set[str] = set()
    for _ in range(4):
        kept(stage)
        made |= set(stage.pods())
        for name in stage.pods():
            stage.finish(name, phase="Failed", poller=2, runner=2)
        kept(stage)
        retired(stage)
    assert len(made) <= 10


def test_scale_down_spares_healthy_pods_when_others_are_unresponsive(stage: Stage) -> None:
    stage.pool(replicas=10)
    beats(stage)
    kept(stage)
    polls(stage)
    unresponsive = sorted(stage.pods())[:5]
    stage.rows(
        """
        UPDATE runner_pods SET polled_at = now() - interval '3 min', first_polled_at = now() - interval '5 min'
        WHERE name = ANY(:names)
        """,
        names=unresponsive,
    )
    spec(stage, replicas=5)
    rounds(stage, 2, polling=False)
    assert set(reasons(stage)) == set(unresponsive)
    assert not set(unresponsive) & set(stage.pods())


def test_unresponsive_surplus_pod_with_a_jit_is_not_deleted(stage: Stage) -> None:
    stage.pool(replicas=1)
    kept(stage)
    polls(stage)
    (name,) = stage.pods()
    stage.rows("UPDATE runner_pods SET polled_at = now() - interval '3 min'")
    spec(stage, replicas=0)
    kept(stage)
    assert list(reasons(stage)) == [name]
    stage.finish(name, phase="Running", poller=0, runner=None)  # its kubelet could not report this before
    retired(stage)
    assert name in stage.pods()


def test_a_pool_follows_its_spec_when_etcd_was_restored_from_a_backup(stage: Stage) -> None:
    stage.pool(replicas=1)
    kept(stage)
    stage.rows("UPDATE pools SET generation = generation + 40")
    spec(stage, replicas=3)
    for _ in range(3):
        kept(stage)
        new_tick(stage)
    assert (the_pool(stage).replicas, len(stage.pods())) == (3, 3)


@pytest.fixture
def stuck_name(stage: Stage) -> Iterator[None]:
    """Create a row whose name belongs to a ServiceAccount that stays Terminating because of a foreign finalizer."""
    stage.pool(replicas=3)
    pools.run()
    row = the_pool(stage)
    stage.rows(
        """
        INSERT INTO runner_pods (pool_id, namespace, name, attempt_id, template_hash, created_at)
        VALUES (:pool, :namespace, 'small-00000000', 'a', :hash, now())
        """,
        pool=row.id,
        namespace=stage.namespace,
        hash=row.template_hash,
    )
    path = f"/api/v1/namespaces/{stage.namespace}/serviceaccounts"
    account = {"metadata": {"name": "small-00000000", "finalizers": ["example.com/slow"]}}
    stage.kube.request("POST", path, body=account)
    stage.kube.request("DELETE", f"{path}/small-00000000")
    yield
    freed = {"metadata": {"finalizers": None}}
    stage.kube.request("PATCH", f"{path}/small-00000000", body=freed, content_type=MERGE_PATCH)


@pytest.mark.usefixtures("stuck_name")
def test_other_pods_are_created_when_one_name_cannot_be(stage: Stage) -> None:
    for _ in range(2):
        kept(stage)
    assert len(stage.pods()) >= 2


def test_a_pod_is_replaced_when_its_job_is_over_and_a_sidecar_runs_on(stage: Stage) -> None:
    sidecar = {"spec": {"containers": [{"name": "dind", "image": "docker:dind"}]}}
    stage.pool(replicas=1, podTemplate=sidecar)
    kept(stage)
    polls(stage)
    (name,) = stage.pods()
    stage.job(7)
    claim = stage.claim(name, job_id=7, state="executing")
    stage.finish(name, phase="Running", poller=0, runner=0)
    stage.rows("UPDATE claims SET state = 'ended', ended_at = now(), end_reason = 'completed' WHERE id = :c", c=claim)
    stage.rows("UPDATE jobs SET state = 'completed', conclusion = 'success', completed_at = now() WHERE id = 7")
    for _ in range(3):
        kept(stage)
        retired(stage)
        new_tick(stage)
    assert name not in stage.pods()
    assert len(stage.pods()) == 1


def test_pods_are_created_when_the_list_of_the_pool_is_slow(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.pool(replicas=3)
    pools.run()

    def slow(*args: Any, **more: Any) -> list[PodView]:
        time.sleep(17.5)  # ten pages of 500 Pods at 1.75 s each
        return list_pods(*args, **more)

    monkeypatch.setattr("tasks.pools.observe.list_pods", slow)
    woken(stage)
    assert len(stage.pods()) == 3


def test_a_strangers_pod_with_the_label_of_a_pool_is_left_alone(stage: Stage) -> None:
    stage.pool(replicas=1)
    beats(stage)
    kept(stage)
    polls(stage)
    body = {
        "metadata": {"name": "copied-for-debugging", "labels": {"ostler.dev/pool": "small"}},
        "spec": {"containers": [{"name": "x", "image": "busybox"}]},
    }
    stage.kube.request("POST", f"/api/v1/namespaces/{stage.namespace}/pods", body=body)
    kept(stage)
    assert reasons(stage) == {}


def other_settings(stage: Stage, *, after: str) -> None:
    """Act as a worker of another deployment, `after` the pool got its template."""
    stage.rows(f"UPDATE pools SET template_at = now() - interval '{after}'")  # noqa: S608  a literal of this file
    stage.with_settings(dispatch_url="http://other/runners/v1/dispatch")


def test_warm_pods_are_rolled_when_the_dispatch_url_changes(stage: Stage) -> None:
    stage.pool(replicas=2)
    kept(stage)
    polls(stage)
    old = set(stage.pods())
    other_settings(stage, after="3 min")
    rounds(stage, 6)  # one Pod at a time is replaced, each after its successor polled
    assert not old & set(stage.pods())


def test_busy_pods_stay_when_the_dispatch_url_changes(stage: Stage) -> None:
    stage.pool(replicas=2)
    kept(stage)
    polls(stage)
    busy, idle = sorted(stage.pods())
    stage.job(7)
    stage.claim(busy, job_id=7, state="delivered")
    other_settings(stage, after="3 min")
    rounds(stage, 3)
    assert busy in stage.pods()
    assert idle not in stage.pods()


def test_a_worker_of_another_deployment_makes_no_pods_that_are_stale_from_the_start(stage: Stage) -> None:
    stage.pool(replicas=1)
    rounds(stage, 1)
    (ended,) = stage.pods()
    stage.finish(ended)
    ours = stage.rt.settings
    other_settings(stage, after="1 min")
    rounds(stage, 2)
    assert stage.pods() == {}

    stage.rt.settings = ours
    rounds(stage, 2)
    assert len(stage.pods()) == 1
    assert ended not in stage.pods()

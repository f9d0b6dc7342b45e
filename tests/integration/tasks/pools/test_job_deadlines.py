"""The longest job of a pool: the Pods that get a deadline, and when. Nothing else depends on it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from k8s_adapters.calls.client import MERGE_PATCH, object_path
from k8s_adapters.pools.pools import get_pool
from k8s_adapters.runners import deadlines
from ostler.clock import utcnow
from ostler.errors import Retryable
from tests.integration.tasks.conftest import Stage
from tests.integration.tasks.pools.drains import busy_pod, patch
from tests.integration.tasks.test_reconciler import reconcile_all

DAY = 24 * 3600


def started(stage: Stage, name: str, *, seconds_ago: int) -> None:
    """Write the status of a kubelet that accepted the Pod `seconds_ago` seconds ago."""
    at = f"{utcnow() - timedelta(seconds=seconds_ago):%FT%TZ}"
    path = object_path("pods", namespace=stage.namespace, name=name)
    stage.kube.request("PATCH", f"{path}/status", body={"status": {"startTime": at}}, content_type=MERGE_PATCH)


def deadlines_of(stage: Stage) -> dict[str, int | None]:
    return {name: pod.active_deadline for name, pod in stage.pods().items()}


def test_a_busy_pod_gets_its_age_and_the_duration_and_a_warm_one_gets_nothing(stage: Stage) -> None:
    stage.pool(replicas=2, maxJobDuration="1h30m")
    reconcile_all(stage)
    for name in stage.pods():
        started(stage, name, seconds_ago=DAY)
    assert set(deadlines_of(stage).values()) == {None}, "no template has it, and no warm Pod"
    name, _ = busy_pod(stage)
    reconcile_all(stage)

    found = deadlines_of(stage)

    deadline = found.pop(name)
    assert deadline is not None
    assert DAY + 5400 <= deadline <= DAY + 5400 + 120
    assert set(found.values()) == {None}


def test_a_deadline_is_set_once_whatever_becomes_of_the_pool(stage: Stage) -> None:
    stage.pool(replicas=1, maxJobDuration="1h")
    reconcile_all(stage)
    name, _ = busy_pod(stage)
    started(stage, name, seconds_ago=60)
    reconcile_all(stage)
    before = deadlines_of(stage)[name]
    assert before is not None
    patch(stage, {"spec": {"maxJobDuration": "5m"}})
    reconcile_all(stage)
    assert deadlines_of(stage)[name] == before


def test_a_pool_that_gets_the_field_gives_running_jobs_its_whole_duration(stage: Stage) -> None:
    stage.pool(replicas=1)
    reconcile_all(stage)
    name, _ = busy_pod(stage)
    started(stage, name, seconds_ago=DAY)
    reconcile_all(stage)
    assert deadlines_of(stage) == {name: None}
    template = stage.rows("SELECT template_hash FROM pools")
    patch(stage, {"spec": {"maxJobDuration": "5m", "paused": True}})
    reconcile_all(stage)
    assert (deadlines_of(stage)[name] or 0) >= DAY + 300
    assert stage.rows("SELECT template_hash FROM pools") == template, "no Pod is rolled for it"


def test_a_pod_that_has_a_jit_and_no_job_yet_gets_no_deadline(stage: Stage) -> None:
    """A spare waits for a job, perhaps for a long time."""
    stage.pool(replicas=1, maxJobDuration="1h")
    reconcile_all(stage)
    name = min(stage.pods())
    started(stage, name, seconds_ago=DAY)
    stage.job(7)
    stage.claim(name, job_id=7, state="delivered")
    reconcile_all(stage)
    assert deadlines_of(stage) == {name: None}


def test_failed_deadline_stops_nothing_and_is_set_by_the_next_reconcile(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.pool(replicas=2, maxJobDuration="1h")
    reconcile_all(stage)
    name, _ = busy_pod(stage)
    started(stage, name, seconds_ago=10)
    patch(stage, {"spec": {"replicas": 3}})

    def away(*_: object, **__: object) -> bool:
        raise Retryable("the API server is away")

    with monkeypatch.context() as broken:
        broken.setattr("tasks.pools.deadlines.set_deadline", away)
        reconcile_all(stage)
    assert deadlines_of(stage)[name] is None
    assert len(stage.pods()) == 3
    assert stage.rows("SELECT listed_at IS NOT NULL AS all FROM pools")[0].all

    reconcile_all(stage)
    assert deadlines_of(stage)[name] is not None


@pytest.mark.cluster
def test_another_pod_of_the_name_and_an_earlier_deadline_are_left_alone(stage: Stage) -> None:
    stage.pool(replicas=1)
    reconcile_all(stage)
    (pod,) = stage.pods().values()

    def put(seconds: int, *, uid: str = pod.uid, name: str = pod.name) -> bool:
        return deadlines.set_deadline(stage.kube, namespace=stage.namespace, name=name, uid=uid, seconds=seconds)

    assert [put(50, uid="another"), put(50, name="nobody")] == [False, False]
    assert deadlines_of(stage) == {pod.name: None}
    assert [put(100), put(200), put(90)] == [True, False, True]
    assert deadlines_of(stage) == {pod.name: 90}


def test_the_pool_says_what_is_wrong_with_its_duration(stage: Stage) -> None:
    assert stage.pool("small", replicas=0, maxJobDuration="2h").max_job_seconds == 7200
    stage.pool("none", replicas=0)
    found = get_pool(stage.kube, namespace=stage.namespace, name="none")
    assert found is not None
    assert found.max_job_seconds is None

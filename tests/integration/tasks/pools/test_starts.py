"""Pods that do not start: replaced in time, with growing pauses, and reported by conditions that rarely change."""

from __future__ import annotations

from typing import Any

import pytest

from k8s_adapters.pools.pools import create_pool
from tests.integration.tasks.conftest import Stage
from tests.integration.tasks.pools.fleet import (
    beats,
    condition,
    kept,
    kubelet_says,
    limit_pods,
    new_tick,
    polls,
    reasons,
    retired,
    spec,
    status,
    the_pool,
)
from tests.waiting import eventually

WITHIN = 60.0


def pool(stage: Stage, *, replicas: int, timeout: str = "0s", **more: Any) -> None:
    """Create a pool whose Pods must poll within `timeout`."""
    body = {
        "image": "runner:1",
        "runnerLabels": ["self-hosted"],
        "replicas": replicas,
        "provisioning": {"startTimeout": timeout, "maxConcurrent": 10, **more.pop("provisioning", {})},
        **more,
    }
    create_pool(stage.kube, namespace=stage.namespace, name="small", spec=body)


def pause_is_over(stage: Stage) -> None:
    stage.rows("UPDATE pools SET create_after = now() - interval '1 s'")
    new_tick(stage)


def test_pod_without_a_timely_poll_is_replaced_after_growing_pauses(
    stage: Stage,
) -> None:
    pool(stage, replicas=2)
    beats(stage)
    kept(stage)
    pauses = []
    for _ in range(4):
        kept(stage)  # all that is starting has failed
        row = the_pool(stage)
        pauses.append(round((row.create_after - row.failed_at).total_seconds()))
        retired(stage)
        assert len(stage.pods()) == 0
        kept(stage)
        assert len(stage.pods()) == (2 if pauses[-1] == 0 else 0)
        pause_is_over(stage)
        kept(stage)
        new_tick(stage)
    assert pauses == [0, 5, 10, 20]
    name, kind, _, note = next(each for each in stage.rt.events.told if each[2] == "BackOff")
    assert (name, kind) == ("small", "Warning")
    assert note.startswith(
        "1 failed start in a row (the Pod did not poll within 0 s); the next Pod is created not before"
    )
    assert set(reasons(stage).values()) == {"the Pod did not start to poll: the Pod did not poll within 0 s"}
    assert condition(stage, "Degraded")["reason"] == "PodsDoNotStart"
    assert condition(stage, "Ready")["reason"] == "PodsMissing"


def test_the_first_poll_ends_the_pause(stage: Stage) -> None:
    pool(stage, replicas=2)
    beats(stage)
    for _ in range(2):
        kept(stage)
        kept(stage)
        retired(stage)
        pause_is_over(stage)
    assert the_pool(stage).failed_starts == 2
    spec(stage, provisioning={"startTimeout": "1h"})
    kept(stage)
    polls(stage)
    kept(stage)
    row = the_pool(stage)
    assert (row.failed_starts, row.create_after, row.start_trouble) == (0, None, None)
    assert condition(stage, "Degraded")["status"] == "False"


def test_a_new_template_is_tried_at_once(stage: Stage) -> None:
    pool(stage, replicas=1)
    beats(stage)
    for _ in range(3):
        kept(stage)
        kept(stage)
        retired(stage)
        pause_is_over(stage)
    stage.rows("UPDATE pools SET create_after = now() + interval '5 min'")
    kept(stage)
    assert len(stage.pods()) == 0
    spec(stage, image="runner:2", provisioning={"startTimeout": "1h"})
    kept(stage)
    assert len(stage.pods()) == 1


def test_without_a_web_process_nothing_is_counted_nor_replaced(stage: Stage) -> None:
    pool(stage, replicas=1)
    kept(stage)
    kept(stage)
    assert (reasons(stage), the_pool(stage).failed_starts) == ({}, 0)


def test_the_setting_holds_where_the_pool_gives_no_deadline_of_its_own(stage: Stage) -> None:
    stage.with_settings(start_timeout=7)
    stage.pool(replicas=0)
    kept(stage)
    assert the_pool(stage).start_timeout == 7


def test_no_more_pods_are_starting_at_a_time_than_the_pool_allows(stage: Stage) -> None:
    pool(stage, replicas=5, timeout="1h", provisioning={"maxConcurrent": 2})
    kept(stage)
    kept(stage)
    assert len(stage.pods()) == 2
    polls(stage, min(stage.pods()))
    kept(stage)
    assert len(stage.pods()) == 3


def test_unusable_image_degrades_a_pool_at_once_and_a_missing_one_after_the_timeout(
    stage: Stage,
) -> None:
    pool(stage, replicas=1, timeout="1h")
    beats(stage)
    kept(stage)
    (name,) = stage.pods()
    kubelet_says(stage, name, waiting="ImagePullBackOff")
    assert condition(stage, "Degraded")["status"] == "False"
    kubelet_says(stage, name, waiting="ErrImageNeverPull")
    found = condition(stage, "Degraded")
    assert (found["status"], found["reason"]) == ("True", "ErrImageNeverPull")

    kubelet_says(stage, name, waiting="ImagePullBackOff")
    spec(stage, provisioning={"startTimeout": "0s"})
    kept(stage)
    retired(stage)
    found = condition(stage, "Degraded")
    assert (found["status"], found["reason"]) == ("True", "ImagePullBackOff")
    assert "s3cret" not in str(found)


@pytest.mark.cluster
def test_a_used_up_quota_waits_and_is_no_failure(stage: Stage) -> None:
    quota = limit_pods(stage, 1)
    pool(stage, replicas=2, timeout="1h")
    beats(stage)
    kept(stage)
    kept(stage)
    row = the_pool(stage)
    assert (len(stage.pods()), row.failed_starts, row.start_trouble) == (1, 0, "quota")
    name, kind, _, note = next(each for each in stage.rt.events.told if each[2] == "FailedCreate")
    assert (name, kind) == ("small", "Warning")
    assert "The API server refused a Pod: " in note
    polls(stage)
    found = condition(stage, "Ready")
    assert found["reason"] == "QuotaExceeded"
    assert status(stage)["replicas"] == 1  # there is one, and a row of another
    assert "pods" in found["message"]
    assert condition(stage, "Degraded")["status"] == "False"

    stage.kube.request("DELETE", quota)

    def filled() -> bool:
        kept(stage)
        return len(stage.pods()) == 2

    eventually(filled)
    assert the_pool(stage).start_trouble is None


@pytest.mark.cluster
def test_refused_pod_degrades_its_pool_and_its_creation_backs_off(stage: Stage) -> None:
    pool(stage, replicas=3, podTemplate={"spec": {"priorityClassName": "nobody-has-it"}})
    stage.pool("other", replicas=1)
    for _ in range(3):
        kept(stage)
    assert [pod.pool for pod in stage.pods().values()] == ["other"]
    row = stage.rows("SELECT * FROM pools WHERE name = 'small'")[0]
    assert (row.failed_starts, row.start_trouble) == (2, "refused")  # at once, and then not for 5 s
    found = condition(stage, "Degraded")
    assert (found["status"], found["reason"]) == ("True", "PodRefused")
    assert "nobody-has-it" in found["message"]


@pytest.mark.cluster
def test_what_is_told_of_a_field_that_is_wrong_is_its_name_and_not_its_value(stage: Stage) -> None:
    env = [{"name": "A=s3cret", "value": "x"}]
    pool(stage, replicas=1, podTemplate={"spec": {"containers": [{"name": "runner", "env": env}]}})
    kept(stage)
    found = condition(stage, "Degraded")
    assert found["reason"] == "PodRefused"
    assert ".name: Invalid value" in found["message"]
    assert "s3cret" not in found["message"]

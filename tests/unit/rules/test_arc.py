"""Conversion of the runner objects of actions-runner-controller: every field gets a note, and nothing is guessed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rules.pools.arc import Converted, NotConvertible, convert

PAGE = Path(__file__).parents[3] / "docs" / "operations" / "migrating-from-arc.md"
RUNNER = {"organization": "acme", "labels": ["builds"]}


def one(kind: str = "RunnerDeployment", runner: Any = None, scaler: Any = None, **spec: Any) -> Converted:
    """Return the pool of one object. `runner` is the spec of its runner, and `scaler` the spec of its autoscaler."""
    template = {"spec": RUNNER if runner is None else runner}
    objects = [{"kind": kind, "metadata": {"name": "builds"}, "spec": {"template": template, **spec}}]
    if scaler is not None:
        target = {"scaleTargetRef": {"kind": kind, "name": "builds"}}
        objects.insert(0, {"kind": "HorizontalRunnerAutoscaler", "spec": target | scaler})
    (pool,) = convert(objects)
    return pool


def decisions(pool: Converted) -> dict[str, str]:
    return {note.field: note.what for note in pool.notes if note.open}


def rows(about: str) -> list[tuple[str, bool]]:
    """Return the fields in a table of the page, and whether each asks for a decision."""
    table = PAGE.read_text().partition(f"| {about} | becomes |")[2].partition("\n\n")[0]
    found = []
    for line in table.splitlines()[2:]:
        left, right = line.strip("| ").split(" | ", 1)
        found += [(field, right.startswith("a decision")) for field in re.findall(r"`(\w+)`", left)]
    return found


VALUES: dict[str, Any] = {
    "containerMode": "kubernetes",
    "env": [{"name": "A", "value": "b"}],
    "ephemeral": True,
    "group": "builders",
    "image": "example.com/runner:1",
    "labels": ["builds"],
    "repository": "acme/app",
    "resources": {"limits": {"cpu": "1"}},
    "volumeMounts": [{"name": "a", "mountPath": "/a"}],
}
UNKNOWN = "aFieldOfTomorrow"


@pytest.mark.parametrize(
    ("field", "decision"), [*((field, asks) for field, asks in rows("field of a runner")), (UNKNOWN, True)]
)
def test_every_field_of_the_page_gets_the_note_that_the_page_promises(field: str, decision: bool) -> None:
    scope = {} if field == "repository" else {"organization": "acme"}
    runner = scope | {field: VALUES.get(field, "acme")}
    if field in {"organization", "repository"} and not decision:
        runner["ephemeral"] = False
    assert decision in {note.open for note in one(runner=runner).notes if note.field == field}


def test_the_table_of_the_page_is_read_at_all() -> None:
    assert len(rows("field of a runner")) > 30
    assert ("image", True) in rows("field of a runner")


def test_ephemeral_runners_get_no_scope_and_an_advice_about_accounts_and_forks() -> None:
    pool = one()
    assert pool.spec == {
        "image": "ghcr.io/actions/actions-runner:latest",
        "runnerLabels": ["self-hosted", "linux", "x64", "builds"],
        "lifecycle": "ephemeral",
        "replicas": 1,
    }
    assert set(decisions(pool)) == {"image", "organization", "allowForks"}


def test_runners_in_one_repository_admit_only_that_repository() -> None:
    assert one(runner={"repository": "acme/app"}).spec["allowedRepositories"] == ["acme/app"]


def test_persistent_runners_keep_their_scope_and_their_autoscaler() -> None:
    busy = {"type": "PercentageRunnersBusy", "scaleUpThreshold": "0.75"}
    pool = one(runner=RUNNER | {"ephemeral": False}, scaler={"minReplicas": 1, "maxReplicas": 7, "metrics": [busy]})
    assert pool.spec["lifecycle"] == "persistent"
    assert pool.spec["registration"] == {"organization": "acme"}
    assert "replicas" not in pool.spec
    assert pool.spec["autoscaling"] == {"enabled": True, "minWarm": 1, "maxReplicas": 7, "targetBusyPercent": 75}


@pytest.mark.parametrize(
    ("metric", "percent"), [({}, 80), ({"scaleUpThreshold": "0"}, 1), ({"scaleUpThreshold": 2}, 100)]
)
def test_the_threshold_of_busy_runners_becomes_a_percentage(metric: dict[str, Any], percent: int) -> None:
    metrics = [{"type": "TotalNumberOfQueuedAndInProgressWorkflowRuns"}, {"type": "PercentageRunnersBusy"} | metric]
    pool = one(scaler={"maxReplicas": 7, "metrics": metrics})
    assert pool.spec["autoscaling"]["targetBusyPercent"] == percent


def test_persistent_runners_of_an_enterprise_are_refused() -> None:
    with pytest.raises(NotConvertible, match="neither organization nor repository"):
        one(runner={"enterprise": "acme", "ephemeral": False})


OF_OTHERS = {"minReplicas", "maxReplicas", "replicas", "volumeClaimTemplates"}
"""Fields in the table that other tests are about."""


@pytest.mark.parametrize("field", sorted({field for field, _ in rows("field of the object")} - OF_OTHERS))
def test_every_field_of_an_autoscaler_gets_a_note(field: str) -> None:
    pool = one(scaler={"maxReplicas": 7, field: [{}]})
    assert pool.spec["autoscaling"] == {"enabled": True, "minWarm": 0, "maxReplicas": 7}
    assert any(note.field.endswith(field) for note in pool.notes)


def test_an_autoscaler_of_another_object_is_not_taken() -> None:
    pool = one(scaler={"maxReplicas": 7, "scaleTargetRef": {"name": "others"}}, replicas=3)
    assert pool.spec["replicas"] == 3


def test_a_volume_that_the_runner_does_not_mount_is_not_guessed() -> None:
    claim = {"metadata": {"name": "cache"}, "spec": {"resources": {"requests": {"storage": "1Gi"}}}}
    pool = one("RunnerSet", volumeClaimTemplates=[claim], **RUNNER)
    assert "volumes" not in pool.spec
    assert "volumeClaimTemplates[cache]" in decisions(pool)


def test_mounts_of_claims_are_not_mounted_twice() -> None:
    claim = {"metadata": {"name": "cache"}, "spec": {"resources": {"requests": {"storage": "1Gi"}}}}
    mounts = [{"name": "cache", "mountPath": "/cache"}, {"name": "scratch", "mountPath": "/scratch"}]
    runner = {"containers": [{"name": "runner", "volumeMounts": mounts}]}
    pool = one("RunnerSet", runner=runner, volumeClaimTemplates=[claim], **RUNNER)
    assert pool.spec["volumes"]["claims"] == [{"name": "cache", "mountPath": "/cache", "storage": "1Gi"}]
    assert pool.spec["podTemplate"]["spec"]["containers"] == [{"name": "runner", "volumeMounts": [mounts[1]]}]


def test_sizes_come_from_limits_before_requests() -> None:
    resources = {
        "requests": {"cpu": "1", "memory": "2Gi", "ephemeral-storage": "9Gi"},
        "limits": {"cpu": "4", "gpu": 1},
    }
    pool = one(runner=RUNNER | {"resources": resources})
    assert pool.spec["resources"] == {"cpu": "4", "memory": "2Gi", "ephemeralStorage": "9Gi"}
    assert "resources[gpu]" in decisions(pool)


def test_further_containers_and_the_image_of_the_runner_are_decisions() -> None:
    pool = one(runner=RUNNER | {"containers": [{"name": "runner", "image": "a"}, {"name": "proxy", "image": "b"}]})
    assert {"containers[proxy]", "containers[runner].image"} <= set(decisions(pool))


@pytest.mark.parametrize(
    ("objects", "says"),
    [
        ([], "no object of the kinds RunnerDeployment, RunnerReplicaSet, RunnerSet"),
        ([None, "text", {"kind": "Deployment"}], "no object of the kinds"),
        ([{"kind": "RunnerSet", "metadata": {}}], "a RunnerSet has no metadata.name"),
        ([{"kind": "RunnerSet", "metadata": {"name": "a"}, "spec": "text"}], "RunnerSet a does not have the structure"),
        (
            [{"kind": "RunnerSet", "metadata": {"name": "a"}, "spec": {"replicas": "many"}}],
            "RunnerSet a does not have the structure",
        ),
    ],
)
def test_what_is_no_runner_object_is_refused_in_one_line(objects: list[Any], says: str) -> None:
    with pytest.raises(NotConvertible, match=re.escape(says)):
        convert(objects)

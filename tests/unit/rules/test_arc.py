"""Conversion of the runner objects of actions-runner-controller: every field gets a note, and nothing is guessed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from k8s_adapters.pools.pool_reader import DEFAULT_CPU, DEFAULT_EPHEMERAL_STORAGE, DEFAULT_MEMORY, read_pool
from rules.conversion.arc import convert
from rules.conversion.arc_pods import IMAGE, Converted, NotConvertible

PAGE = Path(__file__).parents[3] / "docs" / "operations" / "migrating-from-runner-deployments.md"
RUNNER = {"organization": "acme", "labels": ["builds"]}


def one(kind: str = "RunnerDeployment", runner: Any = None, scaler: Any = None, **spec: Any) -> Converted:
    """Return the pool of one object. `runner` is the spec of its runner, and `scaler` the spec of its autoscaler."""
    template = {"spec": RUNNER if runner is None else runner}
    objects = [{"kind": kind, "metadata": {"name": "builds"}, "spec": {"template": template, **spec}}]
    if scaler is not None:
        target = {"scaleTargetRef": {"kind": kind, "name": "builds"}}
        objects.insert(0, {"kind": "HorizontalRunnerAutoscaler", "spec": target | scaler})
    (pool,) = convert(objects).pools
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
ABSENT = {"dockerEnabled", "image", "resources", "securityContext", "serviceAccountName", "workDir"}
"""Fields whose absence means something else to actions-runner-controller than to Ostler."""
SAFE = {"securityContext"}
"""Those fields whose default in Ostler is stricter. Their note is no decision."""


def runners(kind: str, name: str, owner: tuple[str, str] | None = None, **runner: Any) -> dict[str, Any]:
    """Return an object of actions-runner-controller, with the owner reference that its controller sets."""
    metadata: dict[str, Any] = {"name": name}
    if owner is not None:
        metadata["ownerReferences"] = [{"kind": owner[0], "name": owner[1], "controller": True}]
    return {"kind": kind, "metadata": metadata, "spec": {"template": {"spec": RUNNER | runner}}}


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


def test_fields_beside_the_template_get_a_note_too() -> None:
    made = one(selector={}, minReadySeconds=5)
    notes = {note.field: note.open for note in made.notes}
    assert (notes["selector"], notes["minReadySeconds"]) == (False, True)


def test_ephemeral_runners_of_an_organisation_admit_only_its_repositories() -> None:
    pool = one()
    assert pool.spec == {
        "image": IMAGE,
        "runnerLabels": ["self-hosted", "linux", "x64", "builds"],
        "lifecycle": "ephemeral",
        "allowedRepositories": ["acme/*"],
        "replicas": 1,
    }
    assert set(decisions(pool)) == ABSENT - SAFE


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


OF_OTHERS = {"maxReplicas", "minReplicas", "replicas", "scaleDownDelaySecondsAfterScaleOut", "volumeClaimTemplates"}
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


def test_objects_of_an_owner_become_no_second_pool() -> None:
    made = convert(
        [
            runners("RunnerReplicaSet", "builds-x7k2p", owner=("RunnerDeployment", "builds")),
            runners("RunnerDeployment", "builds"),
            runners("Runner", "builds-x7k2p-9qv4d", owner=("RunnerReplicaSet", "builds-x7k2p")),
        ]
    )
    assert [pool.name for pool in made.pools] == ["builds"]
    assert [(note.field, note.open) for note in made.skipped] == [
        ("RunnerReplicaSet builds-x7k2p", False),
        ("Runner builds-x7k2p-9qv4d", False),
    ]
    assert made.skipped[0].what == "no pool, because RunnerDeployment builds owns it"


def test_object_whose_owner_is_missing_asks_for_the_owner() -> None:
    owned = runners("RunnerReplicaSet", "builds-x7k2p", owner=("RunnerDeployment", "builds"))
    made = convert([owned, runners("RunnerDeployment", "others")])
    assert [(pool.name, note.open) for pool in made.pools for note in made.skipped] == [("others", True)]
    with pytest.raises(NotConvertible, match="RunnerDeployment builds owns it; convert RunnerDeployment builds"):
        convert([owned])


def test_object_of_a_foreign_owner_becomes_a_pool_with_a_decision() -> None:
    (pool,) = convert([runners("RunnerDeployment", "builds", owner=("Fleet", "acme"))]).pools
    assert "metadata.ownerReferences" in decisions(pool)


@pytest.mark.parametrize(
    ("first", "second", "asks"),
    [
        ({}, {}, True),
        ({"labels": ["BUILDS"]}, {}, True),
        ({"labels": ["tests"]}, {}, False),
        ({"repository": "acme/a"}, {}, True),
        ({"organization": "globex"}, {}, False),
        ({"organization": "globex"}, {"ephemeral": False}, False),
        ({"enterprise": "acme", "organization": None}, {}, True),
        ({"repository": "acme/a"}, {"repository": "acme/b"}, False),
        ({"repository": "acme/a"}, {"repository": "acme/a", "ephemeral": False}, True),
    ],
)
def test_pools_with_equal_labels_are_named_when_they_serve_the_same_jobs(first: Any, second: Any, asks: bool) -> None:
    made = convert([runners("RunnerDeployment", "a", **first), runners("RunnerSet", "b", **second)])
    assert ["runnerLabels" in decisions(pool) for pool in made.pools] == [False, asks]


def test_pools_of_the_same_name_are_a_decision() -> None:
    made = convert([runners("RunnerDeployment", "a"), runners("RunnerSet", "a", labels=["tests"])])
    assert ["metadata.name" in decisions(pool) for pool in made.pools] == [False, True]


@pytest.mark.parametrize("field", sorted(ABSENT))
def test_absent_field_with_another_default_is_a_decision_unless_the_default_is_safe(field: str) -> None:
    (note,) = [each for each in one().notes if each.field == field and each.what.startswith("absent, so ")]
    assert note.open is (field not in SAFE)
    given = one(runner=RUNNER | {field: VALUES.get(field, "acme")})
    assert not any(note.what.startswith("absent") for note in given.notes if note.field == field)


@pytest.mark.parametrize(
    "runner", [{"dockerdWithinRunnerContainer": True}, {"containerMode": "kubernetes"}, {"dockerEnabled": False}]
)
def test_runners_without_a_docker_sidecar_need_no_decision_about_it(runner: dict[str, Any]) -> None:
    assert "dockerEnabled" not in decisions(one(runner=RUNNER | runner))


@pytest.mark.parametrize("seconds", [0, 300])
def test_the_delay_of_a_scale_down_becomes_the_delay_of_the_pool(seconds: int) -> None:
    pool = one(scaler={"maxReplicas": 7, "scaleDownDelaySecondsAfterScaleOut": seconds})
    assert pool.spec["autoscaling"]["scaleDownDelay"] == f"{seconds}s"
    seen = read_pool({**pool.pool, "metadata": {"name": "builds", "namespace": "", "uid": ""}})
    assert (seen.problem, seen.scale_down_delay) == (None, float(seconds))


def test_an_autoscaler_without_its_target_is_a_decision() -> None:
    scaler = {
        "kind": "HorizontalRunnerAutoscaler",
        "metadata": {"name": "a"},
        "spec": {"scaleTargetRef": {"name": "a"}},
    }
    (note,) = convert([scaler, runners("RunnerDeployment", "builds")]).skipped
    assert (note.field, note.open) == ("HorizontalRunnerAutoscaler a", True)


def test_all_pages_and_the_command_use_one_version_of_the_runner_image() -> None:
    pages = [*PAGE.parents[1].rglob("*.md"), PAGE.parents[2] / "README.md"]
    images = {
        image for page in pages for image in re.findall(r"ghcr\.io/actions/actions-runner:[\w.]+", page.read_text())
    }
    assert images == {IMAGE}


def test_the_page_lists_the_absent_fields_that_the_command_names() -> None:
    table = PAGE.read_text().partition("| absent field | the old runners | the pool |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == ABSENT
    sizes = f"{DEFAULT_CPU} CPU, {DEFAULT_MEMORY} memory and {DEFAULT_EPHEMERAL_STORAGE} disk"
    assert f"has {sizes}" in table
    assert sizes in decisions(one())["resources"]


@pytest.mark.parametrize(
    ("runner", "field"),
    [
        ({"nodeSelector": {"kubernetes.io/arch": "arm64"}}, "nodeSelector"),
        ({"nodeSelector": {"kubernetes.io/os": "windows"}}, "nodeSelector"),
        (
            {"affinity": {"a": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64", "arm64"]}]}},
            "affinity",
        ),
        ({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}]}, "podTemplate"),
        ({"envFrom": [{"secretRef": {"name": "a"}}]}, "podTemplate"),
        ({"volumes": [{"name": "a", "secret": {"secretName": "a"}}]}, "podTemplate"),
    ],
)
def test_a_template_that_the_pool_might_not_be_able_to_have_is_a_decision(runner: Any, field: str) -> None:
    made = one(runner=RUNNER | runner)
    assert field in decisions(made)
    assert field not in decisions(one(runner=RUNNER | {"nodeSelector": {"kubernetes.io/arch": "amd64"}}))
    if field == "podTemplate":
        assert "it reads the Secret a; " in decisions(made)[field]


def test_annotations_that_ostler_sets_are_dropped_with_a_note() -> None:
    ours = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
    template = {"metadata": {"annotations": ours | {"team": "a"}, "labels": {"ostler.dev/pool": "a"}}, "spec": RUNNER}
    made = one(template=template)
    assert made.spec["podTemplate"] == {"metadata": {"annotations": {"team": "a"}}}
    noted = {note.field for note in made.notes if note.what == "nothing: Ostler sets it itself"}
    assert noted == {
        *(f"template.metadata.annotations[{name}]" for name in ours),
        "template.metadata.labels[ostler.dev/pool]",
    }


def test_labels_of_the_object_stay_and_other_metadata_has_a_note() -> None:
    item = runners("RunnerDeployment", "builds")
    item["metadata"] |= {"labels": {"team": "a", "helm.sh/chart": "b"}, "annotations": {"c": "d"}, "namespace": "e"}
    (made,) = convert([item]).pools
    assert made.pool["metadata"] == {"name": "builds", "labels": {"team": "a"}}
    said = {note.field: note.what for note in made.notes}
    assert "nothing: helm.sh/chart belong" in said["metadata.labels"]
    assert {"metadata.annotations", "metadata.namespace"} <= set(said)


def test_the_note_about_the_image_repeats_the_old_image() -> None:
    assert decisions(one(runner=RUNNER | {"image": "example.com/runner:1"}))["image"].startswith("example.com/runner:1")
    inner = RUNNER | {"containers": [{"name": "runner", "image": "example.com/runner:2"}]}
    assert decisions(one(runner=inner))["containers[runner].image"].startswith("example.com/runner:2")


def test_the_number_of_old_replicas_is_a_decision_because_warm_runners_come_on_top() -> None:
    made = one(scaler={"minReplicas": 2, "maxReplicas": 7})
    assert made.spec["autoscaling"]["minWarm"] == 2
    assert "beside those that are busy" in decisions(made)["HorizontalRunnerAutoscaler.minReplicas"]


def claims(mounts: list[dict[str, Any]], **claim: Any) -> Converted:
    template = {"metadata": {"name": "cache"}, "spec": {"resources": {"requests": {"storage": "1Gi"}}} | claim}
    runner = {"containers": [{"name": "runner", "volumeMounts": [{"name": "cache"} | each for each in mounts]}]}
    return one("RunnerSet", runner=runner, volumeClaimTemplates=[template], **RUNNER)


def test_a_mount_that_a_claim_cannot_have_is_a_decision() -> None:
    made = claims([{"mountPath": "/a", "subPath": "x"}, {"mountPath": "/b"}, {"mountPath": "/var/lib/docker"}])
    asked = decisions(made)
    assert asked["volumeMounts[/a]"].startswith("it has subPath x; ")
    assert asked["volumeMounts[/b]"].startswith("it is a second one; ")
    assert "no Docker daemon" in asked["volumeMounts[/var/lib/docker]"]
    assert "volumeMounts[/a]" not in decisions(claims([{"mountPath": "/a"}]))


def test_a_runner_set_asks_for_kubernetes_and_for_private_repositories() -> None:
    asked = decisions(claims([{"mountPath": "/a"}]))
    assert "Kubernetes 1.35" in asked["kind RunnerSet"]
    assert "private repositories only" in asked["volumeClaimTemplates[cache]"]


def test_an_access_mode_that_ostler_lacks_is_named_as_such() -> None:
    shared = claims([{"mountPath": "/a"}], accessModes=["ReadWriteMany"])
    assert "ReadWriteOnce instead of ReadWriteMany" in decisions(shared)["volumeClaimTemplates[cache].spec.accessModes"]
    assert "accessMode" not in shared.spec["volumes"]["claims"][0]
    alone = claims([{"mountPath": "/a"}], accessModes=["ReadWriteOncePod"])
    assert alone.spec["volumes"]["claims"][0]["accessMode"] == "ReadWriteOncePod"

"""Hook Pods as the lab's kubelet reads them: their recognition, and the meaning of their images and fields."""

from __future__ import annotations

from typing import Any

import pytest

from lab.kubelet.hook_view import Fate, HookContainer, Probe, SecretKey, view_hook
from lab.kubelet.pods import view

METADATA: dict[str, Any] = {"name": "pool-1-workflow", "namespace": "n", "uid": "u"}


def pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    labels = {"ostler.dev/hook-of": "pool-1"}
    return {"metadata": {**METADATA, "labels": labels}, "spec": {"containers": list(containers), **spec}}


def only(**fields: Any) -> HookContainer:
    found = view_hook(pod({"name": "job", "image": "job:1", **fields}))
    assert found is not None
    return found.containers[0]


@pytest.mark.parametrize(
    ("image", "can_be_pulled"),
    [("job:1", True), ("missing:1", False), ("r.example:5000/team/missing-a@sha256:0", False), ("missing/job", True)],
)
def test_name_of_the_image_decides_whether_it_can_be_pulled(image: str, *, can_be_pulled: bool) -> None:
    assert only(image=image).can_be_pulled is can_be_pulled


@pytest.mark.parametrize(
    ("tag", "fate"),
    [
        ("1", Fate()),
        ("exits", Fate(code=0)),
        ("exits-3", Fate(code=3)),
        ("oom", Fate(code=137, reason="OOMKilled")),
        ("unready", Fate(never_ready=True)),
    ],
)
def test_tag_of_the_image_decides_the_fate_of_the_container(tag: str, fate: Fate) -> None:
    assert only(image=f"r.example:5000/job:{tag}").fate == fate


def test_fields_of_a_container_are_read() -> None:
    found = only(
        command=["sh"],
        args=["-c", "kill $$$$"],
        workingDir="/__w",
        env=[
            {"name": "A", "value": "1"},
            {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        ],
        volumeMounts=[{"name": "work", "mountPath": "/__w"}, {"name": "work", "mountPath": "/t", "subPath": "_temp"}],
        readinessProbe={"exec": {"command": ["true"]}, "periodSeconds": 2, "timeoutSeconds": 5, "failureThreshold": 1},
    )

    assert (found.command, found.directory) == (("sh", "-c", "kill $$"), "/__w")
    variables = {"HOSTNAME": "pool-1-workflow", "A": "1", "B": SecretKey(secret="s", key="k"), "C": "u"}
    assert found.environment == variables
    assert found.mounts == {"/__w": ("work", ""), "/t": ("work", "_temp")}
    assert found.probe == Probe(command=("true",), delay=0, period=2, timeout=5, failures=1)


def test_container_without_a_command_has_the_entry_point_of_its_image() -> None:
    assert only(args=["serve"]).command is None


def test_pod_without_the_label_is_no_hook_pod() -> None:
    plain = {"metadata": METADATA, "spec": {"containers": [{"name": "c", "image": "i"}]}}

    assert view(plain).hook is None
    assert view(pod({"name": "c", "image": "i"}, initContainers=[{"name": "i", "image": "j"}])).init_images == {
        "i": "j"
    }

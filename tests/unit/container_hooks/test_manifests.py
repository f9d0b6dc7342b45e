"""Bodies of hook Pods: the Pod Security level `restricted`, and the overlay of the operator."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from container_hooks.containers import plan_job, plan_step, service_names
from container_hooks.failures import HookFailed
from container_hooks.inputs import Container, ContainerStep, Mount, PrepareJob, Service
from container_hooks.manifests import job_pod, step_pod
from container_hooks.overlay import apply_overlay, load_overlay, refusals
from container_hooks.resources import Share

SHARE = Share(1000, 512)


def body(container: dict[str, Any] | None = None, services: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    given = PrepareJob(
        Container(image="node:22", **(container or {})),
        [Service(**each) for each in services or ()],
    )
    plans = plan_job(given)
    return job_pod(plans, shares={plan.name: SHARE for plan in plans}, env_secret=None, pull_secrets=[])


def test_each_container_is_restricted() -> None:
    pod = body(services=[{"context_name": "db", "image": "postgres", "create_options": "--user 70"}])

    spec = pod["spec"]
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 1001,
        "runAsGroup": 1001,
        "fsGroup": 1001,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    for container in spec["containers"]:
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["resources"]["limits"] == container["resources"]["requests"]
        assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"
    assert spec["containers"][1]["securityContext"]["runAsUser"] == 70
    assert spec["automountServiceAccountToken"] is False
    assert spec["restartPolicy"] == "Never"
    assert "serviceAccountName" not in spec
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    assert all(set(volume) == {"name", "emptyDir"} for volume in spec["volumes"])


def test_job_container_waits_and_services_run_their_program() -> None:
    pod = body(
        {"entry_point_args": ["-x"]},
        [{"context_name": "db", "image": "postgres", "entry_point_args": ["-c", '"max_connections=5"']}],
    )
    job, service = pod["spec"]["containers"]
    assert (job["command"], job["args"]) == (["tail"], ["-f", "/dev/null"])
    assert "command" not in service
    assert service["args"] == ["-c", "max_connections=5"]
    assert [each["mountPath"] for each in job["volumeMounts"]] == ["/__w", "/__e", "/github"]
    assert service["volumeMounts"] == []


def kubernetes_expands(text: str) -> str:
    """Return a word as the kubelet passes it on. The container has the variable `HOME`."""
    return re.sub(r"\$(\$|\(HOME\))", lambda match: "$" if match[1] == "$" else "/root", text)


@pytest.mark.parametrize(
    "command", ["test -d /proc/$$", "echo $(HOME) $$(HOME) $HOME", "'; kill 1 #", 'a "b" \\ `c` ${d}', "$", "ü\t"]
)
def test_commands_of_the_workflow_reach_the_container_unchanged(command: str) -> None:
    options = f"--health-cmd {shlex.quote(command)}"
    pod = body(
        services=[
            {
                "context_name": "db",
                "image": "postgres",
                "create_options": options,
                "entry_point": command,
                "entry_point_args": ["sh", "-c", command],
                "environment_variables": {"CI": command},
            }
        ]
    )

    service = pod["spec"]["containers"][1]
    probe = service["readinessProbe"]["exec"]["command"]
    values = {each["name"]: each["value"] for each in service["env"]}
    assert [kubernetes_expands(each) for each in probe] == ["sh", "-c", command]
    assert [kubernetes_expands(each) for each in service["command"]] == [command]
    assert [kubernetes_expands(each) for each in service["args"]] == ["sh", "-c", command]
    assert kubernetes_expands(values["CI"]) == command


def test_health_command_becomes_a_readiness_probe() -> None:
    options = '--health-cmd "redis-cli ping" --health-interval 100ms --health-retries 7'
    pod = body(services=[{"context_name": "r", "image": "redis", "create_options": options}])
    assert pod["spec"]["containers"][1]["readinessProbe"] == {
        "exec": {"command": ["sh", "-c", "redis-cli ping"]},
        "periodSeconds": 1,
        "timeoutSeconds": 30,
        "failureThreshold": 7,
        "successThreshold": 1,
    }


def test_volumes_of_the_workflow_are_empty_folders() -> None:
    mounts = [Mount("name", "/cache"), Mount("/var/run/docker.sock", "/var/run/docker.sock"), Mount("x", "/__w/x")]
    pod = body({"user_mount_volumes": mounts})
    assert {"name": "scratch-0", "emptyDir": {}} in pod["spec"]["volumes"]
    assert pod["spec"]["containers"][0]["volumeMounts"][3:] == [{"name": "scratch-0", "mountPath": "/cache"}]


@pytest.mark.parametrize(
    ("images", "names"),
    [
        (["redis", "a/b/postgres:17"], ["redis", "postgres"]),
        (["redis:1", "redis:2"], ["redis-0", "redis-1"]),
        (["job", "r/x@sha256:abc"], ["job-0", "x"]),
        (["My_Image:1", "///"], ["my-image", "service"]),
        (["a", "a", "a-0"], ["a-0", "a-1", "a-0-0"]),
    ],
)
def test_names_of_services_are_unique(images: list[str], names: list[str]) -> None:
    assert service_names(images) == names


def test_pod_of_a_step_has_no_environment_of_the_step() -> None:
    given = ContainerStep(image="alpine", entry_point="sh", environment_variables={"TOKEN": "x"})
    pod = step_pod(plan_step(given), share=SHARE, pull_secrets=["s"])
    (container,) = pod["spec"]["containers"]
    assert container["env"] == []
    assert (container["name"], container["command"]) == ("job", ["tail"])
    assert pod["spec"]["imagePullSecrets"] == [{"name": "s"}]


OVERLAY = {
    "metadata": {"labels": {"team": "shop"}, "annotations": {"note": "x"}},
    "spec": {
        "nodeSelector": {"disk": "fast"},
        "imagePullSecrets": [{"name": "shared"}],
        "volumes": [{"name": "extra", "emptyDir": {}}],
        "containers": [
            {"name": "$job", "image": "ignored", "env": [{"name": "A", "value": "1"}], "imagePullPolicy": "Always"},
            {"name": "$db", "resources": {"limits": {"cpu": "2"}}},
            {"name": "$unknown", "env": []},
            {"name": "sidecar", "image": "busybox", "securityContext": {"runAsUser": 5}},
        ],
    },
}


def test_overlay_is_merged_as_upstream_documents() -> None:
    pod = body({"environment_variables": {"B": "2"}}, [{"context_name": "db", "image": "postgres"}])

    merged, lines = apply_overlay(pod, OVERLAY, services={"db": "postgres"})

    job, db, sidecar = merged["spec"]["containers"]
    assert (job["name"], job["image"], job["imagePullPolicy"]) == ("job", "node:22", "Always")
    assert {each["name"] for each in job["env"]} == {"A", "B", "CI", "GITHUB_ACTIONS"}
    assert db["resources"] == {"limits": {"cpu": "2"}}
    assert sidecar["securityContext"] == {
        "runAsUser": 5,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert merged["metadata"] == {"labels": {"team": "shop"}, "annotations": {"note": "x"}}
    assert merged["spec"]["nodeSelector"] == {"disk": "fast"}
    assert [each["name"] for each in merged["spec"]["volumes"]] == ["work", "externals", "github", "extra"]
    (line,) = lines
    assert line.startswith("The image of container $job in ACTIONS_RUNNER_CONTAINER_HOOK_TEMPLATE is ignored")
    assert len(pod["spec"]["containers"]) == 2


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"hostNetwork": True}, "spec.hostNetwork must not be set"),
        ({"hostPID": True}, "spec.hostPID must not be set"),
        ({"hostIPC": True}, "spec.hostIPC must not be set"),
        ({"hostUsers": True}, "spec.hostUsers can only be False"),
        ({"serviceAccountName": "x"}, "spec.serviceAccountName must not be set"),
        ({"automountServiceAccountToken": True}, "spec.automountServiceAccountToken must not be set"),
        ({"nodeName": "x"}, "spec.nodeName must not be set"),
        ({"restartPolicy": "Always"}, "spec.restartPolicy can only be Never"),
        ({"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}, "spec.volumes[h].hostPath must not be set"),
        ({"volumes": [{"name": "t", "projected": {}}]}, "spec.volumes[t].projected must not be set"),
        ({"securityContext": {"runAsNonRoot": False}}, "spec.securityContext.runAsNonRoot must not be set"),
        ({"securityContext": {"runAsUser": 0}}, "spec.securityContext.runAsUser must not be 0"),
        (
            {"containers": [{"name": "$job", "securityContext": {"privileged": True}}]},
            "spec.containers[$job].securityContext.privileged must not be set",
        ),
        ({"containers": [{"name": "$job", "stdin": True}]}, "spec.containers[$job].stdin must not be set"),
        ({"containers": [{"name": "job"}]}, "spec.containers[job]: the name is reserved for Ostler"),
        ({"containers": [{}]}, "it does not have the structure of a Pod"),
        ({"containers": "x"}, "it does not have the structure of a Pod"),
    ],
)
def test_dangerous_field_of_an_overlay_is_refused(spec: dict[str, Any], reason: str) -> None:
    assert list(refusals({"spec": spec})) == [reason]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read (no such file or directory)"),
        ("{", "is not YAML"),
        ("- a", "must contain an object"),
        ("spec: {hostNetwork: true}", "spec.hostNetwork must not be set"),
        ("metadata: {labels: {ostler.dev/pool: x}}", "is reserved for Ostler"),
    ],
)
def test_unusable_overlay_file_is_one_line(tmp_path: Path, content: str | None, words: str) -> None:
    path = tmp_path / "overlay.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(HookFailed, match="ACTIONS_RUNNER_CONTAINER_HOOK_TEMPLATE") as caught:
        load_overlay(path)
    assert words in str(caught.value)

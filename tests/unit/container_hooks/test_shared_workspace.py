"""Container jobs in a shared workspace: the containers of a job are ephemeral containers of the runner Pod."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from k8s_adapters.calls.client import Json
from k8s_adapters.names import CLAIM_ANNOTATION
from tests.unit.container_hooks.worlds import POD, Stage, container, step

LOGIN = {"username": "u", "password": "p", "serverUrl": "registry.example"}
SERVICE: Json = {"contextName": "postgres", "image": "postgres:17", "environmentVariables": {"PASSWORD": "words"}}


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    made = Stage(tmp_path / "job")
    made.share()
    return made


def added(stage: Stage) -> dict[str, Json]:
    """Return the ephemeral containers of the runner Pod by name."""
    found = stage.api.objects["pods", POD]["spec"].get("ephemeralContainers") or ()
    return {each["name"]: each for each in found}


def prepare(stage: Stage, *services: Json, **fields: Any) -> int:
    return stage.run("prepare_job", {"container": container(**fields), "services": list(services)})


def run(stage: Stage, text: str, **fields: Any) -> int:
    script = stage.work / "_temp" / "step.sh"
    script.write_text(text)
    return stage.run("run_script_step", step(script, **fields))


def test_files_of_a_step_are_files_of_the_runner(stage: Stage) -> None:
    """A local action after a checkout, and the files that hashFiles() reads."""
    assert prepare(stage) == 0, stage.log.lines

    assert run(stage, "mkdir -p .github/actions/x; echo runs: > .github/actions/x/action.yml; rm README.md") == 0

    shop = stage.work / "shop" / "shop"
    assert (shop / ".github" / "actions" / "x" / "action.yml").read_text() == "runs:\n"
    assert not (shop / "README.md").exists()
    assert "tar" not in {program for _, program in stage.exec.ran}


def test_step_returns_its_exit_code_and_its_file_commands(stage: Stage) -> None:
    assert prepare(stage) == 0
    output = stage.work / "_temp" / "_runner_file_commands" / "set_output_1"
    output.write_text("")
    inside = {"GITHUB_OUTPUT": "/__w/_temp/_runner_file_commands/set_output_1"}

    assert run(stage, 'echo a=1 >> "$GITHUB_OUTPUT"; exit 7', environmentVariables=inside) == 7

    assert output.read_text() == "a=1\n"
    assert not list((stage.work / "_temp").glob("ostler-*"))


def test_containers_mount_the_workspace_and_nothing_of_the_sidecar(stage: Stage) -> None:
    assert prepare(stage, SERVICE) == 0

    found = added(stage)
    assert list(found) == ["job", "job-service-postgres"]
    mounts = {each["mountPath"]: each["name"] for each in found["job"]["volumeMounts"]}
    assert mounts == {"/__w": "ostler-work", "/__e": "ostler-externals", "/github": "ostler-github"}
    assert found["job-service-postgres"]["volumeMounts"] == []
    for each in found.values():
        assert not {"resources", "ports", "readinessProbe", "targetContainerName"} & each.keys()
        assert each["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    [variable] = [each for each in found["job-service-postgres"]["env"] if each["name"] == "PASSWORD"]
    assert variable["valueFrom"]["secretKeyRef"]["name"] == f"{POD}-secret-0"


def test_patch_names_the_uid_and_the_claim_of_the_pod(stage: Stage) -> None:
    """Law L7. The claim changes between the read and the patch, so the patch is repeated for the new claim."""

    def stamp() -> None:
        stage.api.objects["pods", POD]["metadata"]["annotations"][CLAIM_ANNOTATION] = "8.1"

    stage.api.before("PATCH", "pods", stamp)

    assert prepare(stage) == 0, stage.log.lines

    assert [call for call in stage.api.calls if call[0] == "PATCH"] == [("PATCH", "pods", POD)] * 2
    assert list(added(stage)) == ["job"]


def test_replaced_runner_pod_gets_no_container(stage: Stage) -> None:
    stage.api.objects["pods", POD]["metadata"]["uid"] = "other"

    assert prepare(stage) == 1

    assert "was replaced by another Pod" in stage.log.errors[0]
    assert added(stage) == {}


@pytest.mark.parametrize("fault", ["lost", 503, 429])
def test_lost_answer_adds_no_second_container(stage: Stage, fault: int | str) -> None:
    stage.api.fail("PATCH", "pods", fault)

    assert prepare(stage) == 0, stage.log.lines

    assert list(added(stage)) == ["job"]


def test_job_that_was_prepared_with_another_image_is_refused(stage: Stage) -> None:
    assert prepare(stage) == 0

    assert prepare(stage, image="other:1") == 1

    assert "the runner Pod has another container job" in stage.log.errors[0]


def test_logins_of_all_registries_are_in_the_secret_that_the_pod_names(stage: Stage) -> None:
    other = {**LOGIN, "serverUrl": "other.example"}
    assert prepare(stage, {**SERVICE, "registry": other}, registry=LOGIN) == 0

    data = stage.api.objects["secrets", f"{POD}-secret-7"]["data"]
    logins = json.loads(base64.b64decode(data[".dockerconfigjson"]))["auths"]
    assert sorted(logins) == ["other.example", "registry.example"]


def test_docker_action_sees_the_workspace_and_gets_a_container_of_its_own(stage: Stage) -> None:
    assert prepare(stage) == 0
    arguments = {
        "image": "alpine:3",
        "entryPoint": "sh",
        "entryPointArgs": ["-c", '"cat README.md > copied; exit 4"'],
        "workingDirectory": "/github/workspace",
    }

    assert stage.run("run_container_step", arguments, state={"workspace": "shop/shop"}) == 4, stage.log.lines
    assert stage.run("run_container_step", arguments, state={"workspace": "shop/shop"}) == 4

    assert (stage.work / "shop" / "shop" / "copied").read_text() == "read me\n"
    assert list(added(stage)) == ["job", "job-step-0", "job-step-1"]
    assert (stage.inside("/github/.ended-job-step-0", pod=POD)).exists()


def test_docker_action_without_an_entry_point_is_refused(stage: Stage) -> None:
    prepare(stage)

    assert stage.run("run_container_step", {"image": "alpine:3"}, state={"workspace": "shop/shop"}) == 1

    assert "the entry point of the image is not known" in stage.log.errors[0]
    assert not any(name.startswith("job-step-") for name in added(stage))


def test_health_command_delays_the_job(stage: Stage) -> None:
    up = stage.folder / "up"
    command = f"test -f {up} || {{ touch {up}; exit 1; }}"
    options = f"--health-cmd '{command}' --health-interval 1s"

    assert prepare(stage, {**SERVICE, "createOptions": options}) == 0, stage.log.lines
    assert 1.0 in stage.api.clock.slept


def test_service_that_stays_unhealthy_fails_the_job(stage: Stage) -> None:
    options = "--health-cmd false --health-interval 1s --health-timeout 1s --health-retries 2"

    assert prepare(stage, {**SERVICE, "createOptions": options}) == 1

    assert "job-service-postgres did not become healthy within 4 seconds" in stage.log.errors[0]


def test_options_without_effect_are_named(stage: Stage) -> None:
    volume = {"sourceVolumePath": "cache", "targetVolumePath": "/cache"}
    service = {**SERVICE, "contextName": "obscure", "createOptions": "--cpus 1 --memory 1g"}

    assert prepare(stage, service, userMountVolumes=[volume]) == 0

    said = "\n".join(stage.log.lines)
    assert "volume /cache" in said
    assert "--cpus, --memory" in said
    assert "Service obscure is reached at localhost only" in said


def test_user_that_cannot_write_the_workspace_is_refused(stage: Stage) -> None:
    assert prepare(stage, createOptions="--user 70") == 1

    assert "the files of the runner belong to user 1001" in stage.log.errors[0]


def test_cleanup_deletes_the_secrets_and_ends_the_container(stage: Stage) -> None:
    assert prepare(stage, SERVICE, registry=LOGIN) == 0

    assert stage.run("cleanup_job") == 0

    assert stage.api.names("secrets") == []
    assert stage.inside("/github/.ended-job", pod=POD).exists()


def test_failed_preparation_leaves_no_secret(stage: Stage) -> None:
    stage.api.statuses += [{"phase": "Running"}] * 2
    waiting = {"waiting": {"reason": "InvalidImageName", "message": "no"}}
    stage.api.statuses.append({"phase": "Running", "ephemeralContainerStatuses": [{"name": "job", "state": waiting}]})

    assert prepare(stage, SERVICE, registry=LOGIN) == 1

    assert "cannot be pulled (InvalidImageName" in stage.log.errors[0]
    assert stage.api.names("secrets") == []

"""Steps without an entry point: the Pod, the files, the output and the end of the program of an image."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from container_hooks.conversation import CommandCancelled
from container_hooks.pod_state import only, see
from k8s_adapters.calls.client import Json
from tests.unit.container_hooks.api import running, waiting
from tests.unit.container_hooks.test_container_step import STATE, STEP_POD
from tests.unit.container_hooks.worlds import JOB_POD, POD, Stage, container

LOGIN = {"username": "u", "password": "p", "serverUrl": "r"}
VARIABLES = {"TOKEN": "$t", "HOME": "/github/home", "GITHUB_OUTPUT": "/github/file_commands/set_output_1"}


def given(**fields: Any) -> Json:
    """Return a step without an entry point."""
    return {"image": "action:1", "entryPointArgs": [], "environmentVariables": VARIABLES, **fields}


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    made = Stage(tmp_path)
    assert made.run("prepare_job", {"container": container(registry=LOGIN)}) == 0
    made.log.lines.clear()
    (made.work / "_temp" / "_runner_file_commands" / "set_output_1").write_text("")
    ends(made, exitCode=0)
    return made


def ends(stage: Stage, log: bytes = b"", **terminated: Any) -> None:
    """Let the program of the image end at once."""
    stage.api.program = lambda _pod: (log, terminated)


def init_status(status: Json) -> Json:
    """Return the status of a Pod whose containers wait for an init container."""
    return {"phase": "Pending", "containerStatuses": [], "initContainerStatuses": [status]}


def seen_pod(stage: Stage) -> Json:
    """Run a step, and return the Pod that it created."""
    found: list[Json] = []

    def program(pod: str) -> tuple[bytes, Json]:
        found.append(stage.api.objects["pods", pod])
        return b"", {"exitCode": 0}

    stage.api.program = program
    assert stage.run("run_container_step", given(entryPointArgs=["a", "'b c'"], registry=LOGIN), state=STATE) == 0
    return found[0]


def containers(pod: Json) -> Mapping[str, Json]:
    spec = pod["spec"]
    return {each["name"]: each for each in (*spec["initContainers"], *spec["containers"])}


def test_program_is_the_one_of_the_image_and_the_copies_use_the_image_of_the_job(stage: Stage) -> None:
    pod = seen_pod(stage)

    program, before, beside = (containers(pod)[name] for name in ("job", "ostler-files-in", "ostler-files"))
    assert program["image"] == "action:1"
    assert "command" not in program
    assert (program["args"], program["workingDir"]) == (["a", "b c"], "/github/workspace")
    assert before["image"] == beside["image"] == "node:22"
    assert [each["name"] for each in pod["spec"]["containers"]] == ["job", "ostler-files"]
    assert pod["spec"]["imagePullSecrets"] == [{"name": f"{POD}-secret-{n}"} for n in (1, 0)]


def test_environment_is_in_a_secret_that_ends_with_the_step(stage: Stage) -> None:
    program = containers(seen_pod(stage))["job"]

    variables = {each["name"]: each for each in program["env"]}
    for name in VARIABLES:
        source = {"secretKeyRef": {"name": f"{POD}-secret-2", "key": f"job.{name}"}}
        assert variables[name] == {"name": name, "valueFrom": source}
    assert variables["CI"] == {"name": "CI", "value": "true"}
    assert "Ignored" not in " ".join(stage.log.lines)
    assert (stage.api.names(), stage.api.names("secrets")) == ([JOB_POD], [f"{POD}-secret-0"])


@pytest.mark.parametrize(("millicores", "memory"), [(1000, 2048), (100, 64), (8000, 16384), (420, 512)])
def test_limits_together_are_the_size_of_a_hook_pod(stage: Stage, millicores: int, memory: int) -> None:
    stage.settings |= {"vcpu_millicores": millicores, "memory_mib": memory}
    found = containers(seen_pod(stage))

    def size(name: str) -> tuple[int, int]:
        limits = found[name]["resources"]["limits"]
        return int(limits["cpu"].removesuffix("m")), int(limits["memory"].removesuffix("Mi"))

    assert size("ostler-files-in") == (millicores, memory)
    sizes = [size("job"), size("ostler-files")]
    assert (sum(cpu for cpu, _ in sizes), sum(mib for _, mib in sizes)) == (millicores, memory)
    assert size("ostler-files")[1] <= 128
    assert size("job") >= size("ostler-files")


def test_overlay_gives_all_containers_the_user_of_the_program(stage: Stage, tmp_path: Path) -> None:
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text("spec: {containers: [{name: $job, securityContext: {runAsUser: 2000}}]}")
    stage.settings["overlay"] = overlay

    found = containers(seen_pod(stage))

    assert {each["securityContext"]["runAsUser"] for each in found.values()} == {2000}


def test_init_container_of_the_overlay_does_not_replace_the_one_that_begins_the_step(
    stage: Stage, tmp_path: Path
) -> None:
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text("spec: {initContainers: [{name: warm, image: cache:1}]}")
    stage.settings["overlay"] = overlay

    pod = seen_pod(stage)

    assert [each["name"] for each in pod["spec"]["initContainers"]] == ["warm", "ostler-files-in"]


@pytest.mark.parametrize("name", ["ostler-files", "$ostler-files", "ostler-files-in"])
def test_overlay_cannot_change_the_containers_of_the_copies(stage: Stage, tmp_path: Path, name: str) -> None:
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text(f"spec: {{containers: [{{name: {name}, image: x}}]}}")
    stage.settings["overlay"] = overlay

    assert stage.run("run_container_step", given(), state=STATE) == 1

    assert f"spec.containers[{name}]: the name is reserved for Ostler" in stage.log.errors[0]


def test_status_of_the_pod_does_not_repeat_the_output(stage: Stage) -> None:
    assert containers(seen_pod(stage))["job"]["terminationMessagePolicy"] == "File"


def test_container_that_a_pod_lacks_is_never_ready() -> None:
    pod = {"metadata": {}, "spec": {"containers": [{"name": "job"}]}, "status": {"phase": "Pending"}}
    assert not see(only(pod, ["ostler-files-in"], begun=True), images={}).ready


@pytest.mark.parametrize(("log", "output"), [(b"one\ntwo", b"one\ntwo\n"), (b"one\n", b"one\n"), (b"", b"")])
def test_output_ends_with_a_line_feed(stage: Stage, log: bytes, output: bytes) -> None:
    ends(stage, log, exitCode=0)
    assert stage.run("run_container_step", given(), state=STATE) == 0
    assert bytes(stage.log.output) == output


def test_files_are_there_before_the_program_and_come_back_after_it(stage: Stage) -> None:
    def program(pod: str) -> tuple[bytes, Json]:
        inside = stage.inside("/github/workspace", pod=pod)
        assert stage.inside("/github/.ostler-begin", pod=pod).exists()
        assert stage.inside("/__w/shop/shop", pod=pod).readlink() == inside
        (inside / "made").write_text((inside / "README.md").read_text().upper())
        (inside / "README.md").unlink()
        stage.inside("/github/home/.rc", pod=pod).write_text("h")
        stage.inside("/github/file_commands/set_output_1", pod=pod).write_text("a=1\n")
        return b"one\ntwo\n", {"exitCode": 7}

    stage.api.program = program

    assert stage.run("run_container_step", given(), state=STATE) == 7

    assert (stage.log.errors, bytes(stage.log.output)) == ([], b"one\ntwo\n")
    assert stage.inside("/__w/shop/shop/made").read_text() == "READ ME\n"
    assert not stage.inside("/__w/shop/shop/README.md").exists()
    assert stage.inside("/github/home/.rc").read_text() == "h"
    assert (stage.work / "_temp" / "_runner_file_commands" / "set_output_1").read_text() == "a=1\n"


@pytest.mark.parametrize(
    ("terminated", "code", "line"),
    [
        ({"exitCode": 143, "reason": "Error"}, 143, "The step was ended by SIGTERM: container job ended with exit"),
        (
            {"exitCode": 137, "reason": "OOMKilled"},
            137,
            "The step was ended by SIGKILL: container job used more memory",
        ),
        ({"exitCode": 0, "signal": 9}, 137, "The step was ended by SIGKILL"),
    ],
)
def test_program_that_a_signal_ended_is_one_line(stage: Stage, terminated: Json, code: int, line: str) -> None:
    ends(stage, **terminated)
    assert stage.run("run_container_step", given(), state=STATE) == code
    assert sum(each.startswith(line) for each in stage.log.lines) == 1


def test_program_that_cannot_start_is_one_line(stage: Stage) -> None:
    begun = running({"spec": {"containers": [], "initContainers": [{"name": "ostler-files-in"}]}})
    failed = {"exitCode": 128, "reason": "StartError", "message": 'exec: "/none": no such file or directory'}
    at_start = {"phase": "Running", "containerStatuses": [{"name": "job", "state": {"terminated": failed}}]}
    stage.api.statuses = [running({"spec": {"containers": []}}), begun, at_start]

    assert stage.run("run_container_step", given(), state=STATE) == 1

    assert 'container job ended with exit code 128 (StartError: exec: "/none": no such file' in stage.log.errors[0]
    assert stage.api.names() == [JOB_POD]


def test_image_that_cannot_be_pulled_is_one_line(stage: Stage) -> None:
    begun = running({"spec": {"containers": [], "initContainers": [{"name": "ostler-files-in"}]}})
    bad = waiting("job", "InvalidImageName", "bad name")
    stage.api.statuses = [running({"spec": {"containers": []}}), begun, bad]

    assert stage.run("run_container_step", given(), state=STATE) == 1

    assert "image action:1 of container job cannot be pulled (InvalidImageName: bad name)" in stage.log.errors[0]
    assert stage.api.names() == [JOB_POD]


def test_answer_of_the_command_that_begins_the_program_can_be_lost(stage: Stage) -> None:
    number = len(stage.exec.ran) + 3  # after the copies of the workspace (two) and of the file commands
    stage.exec.faults = {number: "lost after", number + 1: "lost before"}
    assert stage.run("run_container_step", given(), state=STATE) == 0
    assert stage.log.errors == []


def test_end_of_the_init_container_may_be_reported_late(stage: Stage) -> None:
    """The container ends under the command that begins the program, and its status is seen a moment later."""
    stage.exec.faults = {len(stage.exec.ran) + 3: 137}

    def late() -> None:
        at_work = {"name": "ostler-files-in", "state": {"running": {}}}
        over = {"name": "ostler-files-in", "state": {"terminated": {"exitCode": 0}}}
        stage.api.statuses += [init_status(each) for each in (at_work, at_work, over)]

    for _ in range(2):  # the reads of the job's Pod, and of the new Pod until it is there
        stage.api.before("GET", "pods", lambda: None)
    stage.api.before("GET", "pods", late)

    assert stage.run("run_container_step", given(), state=STATE) == 0
    assert stage.log.errors == []


def test_files_are_copied_back_when_their_container_runs(stage: Stage) -> None:
    """The image of the second container can be pulled after the program began."""
    job = {"name": "job", "state": {"terminated": {"exitCode": 0}}}
    files = {"name": "ostler-files", "state": {"waiting": {"reason": "ContainerCreating"}}}

    def program(_pod: str) -> tuple[bytes, Json]:
        stage.api.statuses += [{"phase": "Running", "containerStatuses": [job, files]} for _ in range(8)]
        return b"", {"exitCode": 0}

    stage.api.program = program

    assert stage.run("run_container_step", given(), state=STATE) == 0
    assert stage.api.statuses == []


def test_log_that_breaks_off_is_read_again(stage: Stage) -> None:
    ends(stage, b"one\ntwo\n", exitCode=3)
    stage.api.fail("GET", "log", 503, "lost", 500)

    assert stage.run("run_container_step", given(), state=STATE) == 3

    assert bytes(stage.log.output) == b"one\ntwo\n"


def test_log_is_complete_only_if_a_read_after_the_end_brings_nothing_new(stage: Stage) -> None:
    ends(stage, b"one\ntwo\nthree\n", exitCode=0)
    stage.api.log_ends = [5, 40, 70]

    assert stage.run("run_container_step", given(), state=STATE) == 0

    assert bytes(stage.log.output) == b"one\ntwo\nthree\n"


def test_step_whose_log_is_unreadable_fails_after_five_minutes(stage: Stage) -> None:
    stage.api.fail("GET", "log", *[500] * 400)
    began = stage.api.clock.now

    assert stage.run("run_container_step", given(), state=STATE) == 1

    assert "the result of the step is unknown: the log of its container could not be read" in stage.log.errors[0]
    assert 300 <= stage.api.clock.now - began <= 330
    assert stage.api.names() == [JOB_POD]


def test_exit_code_of_a_program_is_kept_if_the_end_of_its_log_is_unreadable(stage: Stage) -> None:
    stage.api.fail("GET", "log", *[500] * 400)
    stage.api.finished[STEP_POD] = b"lost\n", {"exitCode": 5}

    assert stage.run("run_container_step", given(), state=STATE) == 5

    assert "The end of the step's output is missing, because its log could not be read" in stage.log.lines


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda stage: stage.api.objects.pop(("pods", STEP_POD)), f"Pod {STEP_POD} no longer exists"),
        (
            lambda stage: stage.api.objects["pods", STEP_POD]["metadata"].update(deletionTimestamp="now"),
            f"Pod {STEP_POD} is being deleted",
        ),
        (lambda stage: stage.api.objects["pods", STEP_POD]["metadata"].update(uid="x"), "was replaced by another Pod"),
    ],
)
def test_program_without_an_exit_code_has_the_one_of_a_kill(stage: Stage, change: Any, line: str) -> None:
    stage.api.before("GET", "log", lambda: change(stage))
    stage.api.fail("GET", "log", 500)

    assert stage.run("run_container_step", given(), state=STATE) == 137

    assert "the step has no exit code: " in stage.log.errors[0]
    assert line in stage.log.errors[0]


def test_evicted_pod_is_named(stage: Stage) -> None:
    evicted = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
    stage.api.before("GET", "log", lambda: stage.api.statuses.append(evicted))
    stage.api.fail("GET", "log", 500)

    assert stage.run("run_container_step", given(), state=STATE) == 137

    assert f"Pod {STEP_POD} ended (Evicted: The node was low on resource: memory.)" in stage.log.errors[0]


@pytest.mark.parametrize("number", range(9))
def test_pod_and_secrets_are_deleted_after_each_failure(stage: Stage, number: int) -> None:
    stage.exec.faults = {len(stage.exec.ran) + number: 2}
    stage.run("run_container_step", given(registry=LOGIN), state=STATE)
    assert (stage.api.names(), stage.api.names("secrets")) == ([JOB_POD], [f"{POD}-secret-0"])


def test_denied_log_names_the_permission(stage: Stage) -> None:
    stage.api.denied = {"GET log", "get pods/log"}
    assert stage.run("run_container_step", given(), state=STATE) == 1
    assert "the log of the step cannot be read" in stage.log.errors[0]
    assert "(missing: get pods/log" in stage.log.errors[0]


def test_cancelled_command_does_not_follow_the_program(stage: Stage) -> None:
    """The command is cancelled at the moment at which the program begins."""
    stage.exec.faults = {len(stage.exec.ran) + 3: CommandCancelled("cancelled")}
    ended = {"name": "ostler-files-in", "state": {"terminated": {"exitCode": 0}}}
    begun = {"phase": "Running", "initContainerStatuses": [ended]}
    for _ in range(2):  # the reads of the job's Pod, and of the new Pod until it is there
        stage.api.before("GET", "pods", lambda: None)
    stage.api.before("GET", "pods", lambda: stage.api.statuses.append(begun))

    assert stage.run("run_container_step", given(), state=STATE) == 1

    assert ("GET", "log", STEP_POD) not in stage.api.calls
    assert stage.api.names() == [JOB_POD]

"""Command `run_container_step`: the workspace in both directions, the exit code, and the end of the Pod."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.unit.container_hooks.api import waiting
from tests.unit.container_hooks.worlds import JOB_POD, POD, UID, Stage, container

STEP_POD = f"{POD}-step-0"
STATE = {"jobPod": JOB_POD, "workspace": "shop/shop"}


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    made = Stage(tmp_path)
    assert made.run("prepare_job", {"container": container()}) == 0
    made.log.lines.clear()
    (made.work / "_temp" / "_runner_file_commands" / "set_output_1").write_text("")
    return made


def action(script: str, **fields: Any) -> dict[str, Any]:
    return {
        "image": "alpine:3",
        "entryPoint": "sh",
        "entryPointArgs": ["-c", f'"{script}"'],
        "environmentVariables": {},
        "workingDirectory": "/github/workspace",
        **fields,
    }


def test_step_reads_and_changes_the_workspace_of_the_job(stage: Stage) -> None:
    stage.inside("/__w/shop/shop/obsolete").write_text("x")

    code = stage.run("run_container_step", action("cat README.md; rm obsolete; echo made > made"), state=STATE)

    assert (code, stage.log.errors, stage.log.output.decode()) == (0, [], "read me\n")
    assert stage.inside("/__w/shop/shop/made").read_text() == "made\n"
    assert not stage.inside("/__w/shop/shop/obsolete").exists()


def test_step_that_ends_beside_another_leaves_the_files_of_the_other(stage: Stage) -> None:
    stage.alone = False
    stage.inside("/__w/shop/shop/obsolete").write_text("x")
    stage.inside("/__w/shop/shop/sealed").mkdir()
    other = stage.inside("/__w/shop/shop/of-another")
    stage.inside("/__w/shop/shop/sealed").chmod(0o555)

    script = f"rm obsolete; echo meanwhile > {other}; echo made > made; echo new > README.md; touch sealed/of-action"
    assert stage.run("run_container_step", action(f"chmod 755 sealed; {script}"), state=STATE) == 0

    assert stage.log.errors == []
    found = {path.name for path in other.parent.iterdir()}
    assert found == {"README.md", "made", "obsolete", "of-another", "sealed"}
    assert other.read_text() == "meanwhile\n"
    assert stage.inside("/__w/shop/shop/README.md").read_text() == "new\n"
    assert stage.inside("/__w/shop/shop/sealed/of-action").exists()
    assert "Other steps run: files that this step has deleted stay in the workspace of the job" in stage.log.lines


@pytest.mark.parametrize("code", [0, 5])
def test_file_commands_and_home_come_back_with_the_exit_code(stage: Stage, code: int) -> None:
    script = f"echo A=1 > /github/file_commands/set_output_1; echo h > /github/home/.rc; exit {code}"

    assert stage.run("run_container_step", action(script), state=STATE) == code

    assert (stage.work / "_temp" / "_runner_file_commands" / "set_output_1").read_text() == "A=1\n"
    assert stage.inside("/github/home/.rc").read_text() == "h\n"


def test_names_of_variables_may_have_dashes_and_spaces(stage: Stage) -> None:
    variables = {"INPUT_WHO-TO-GREET": "you", "INPUT_A B": "c $d"}

    arguments = {**action(""), "entryPoint": "env", "entryPointArgs": [], "environmentVariables": variables}
    assert stage.run("run_container_step", arguments, state=STATE) == 0

    lines = stage.log.output.decode().splitlines()
    assert {"INPUT_WHO-TO-GREET=you", "INPUT_A B=c $d", "CI=true"} <= set(lines)


def test_folders_without_write_permission_are_copied_again(stage: Stage) -> None:
    make = "mkdir -p mod/a; echo x > mod/a/file; chmod 555 mod/a"
    assert stage.run("run_container_step", action(make), state=STATE) == 0
    assert stage.run("run_container_step", action("cat mod/a/file"), state=STATE) == 0
    assert stage.inside("/__w/shop/shop/mod/a").stat().st_mode & 0o777 == 0o555


def test_pod_of_the_step_is_deleted(stage: Stage) -> None:
    login = {"username": "u", "password": "p", "serverUrl": "r"}
    assert stage.run("run_container_step", action("true", registry=login), state=STATE) == 0
    assert (stage.api.names(), stage.api.names("secrets")) == ([JOB_POD], [])
    assert ("POST", "pods", STEP_POD) in stage.api.calls


@pytest.mark.parametrize("starts", [True, False])
def test_step_of_a_new_process_deletes_only_its_own_secret(stage: Stage, starts: bool) -> None:
    variables = {"TOKEN": "t"}
    assert stage.run("prepare_job", {"container": container(environmentVariables=variables)}) == 0
    stage.restart()
    login = {"username": "u", "password": "p", "serverUrl": "r"}
    stage.api.statuses = [] if starts else [waiting("job", "InvalidImageName", "bad name")]

    code = stage.run("run_container_step", action("true", registry=login), state=STATE)

    assert code == (0 if starts else 1)
    assert (stage.api.names(), stage.api.names("secrets")) == ([JOB_POD], [f"{POD}-secret-0"])


@pytest.mark.parametrize("number", range(7))
def test_pod_of_the_step_is_deleted_after_each_failure(stage: Stage, number: int) -> None:
    stage.exec.faults = {len(stage.exec.ran) + number: 2}
    stage.run("run_container_step", action("true"), state=STATE)
    assert stage.api.names() == [JOB_POD]


def test_image_that_cannot_be_pulled_is_one_line(stage: Stage) -> None:
    stage.api.statuses = [waiting("job", "InvalidImageName", "bad name")]
    assert stage.run("run_container_step", action("true"), state=STATE) == 1
    assert "image alpine:3 of container job cannot be pulled (InvalidImageName: bad name)" in stage.log.errors[0]
    assert stage.api.names() == [JOB_POD]


def test_first_free_name_is_used(stage: Stage) -> None:
    stage.api.put("pods", STEP_POD, owner="the-runner-before")
    stage.api.put("pods", f"{POD}-step-1", owner=UID, terminating=True)

    assert stage.run("run_container_step", action("true"), state=STATE) == 0

    assert ("DELETE", "pods", f"{POD}-step-2") in stage.api.calls
    assert stage.api.names() == [f"{POD}-step-0", f"{POD}-step-1", JOB_POD]


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("./x: file changed as we read it", 0),
        ("./x: File removed before we read it", 0),
        ("./x: File shrank by 7 bytes; padding with zeros", 0),
        ("./x: Cannot open: Permission denied", 1),
    ],
)
def test_files_that_another_process_changes_do_not_fail_a_step(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, said: str, code: int
) -> None:
    """These are the messages of GNU tar when it ends with code 1."""
    (stage.folder / "bin").mkdir()
    tar = stage.folder / "bin" / "tar"
    real = shutil.which("tar")
    tar.write_text(f"#!/bin/sh\n{real} \"$@\" || exit\n[ $1 = -xf ] || {{ echo '{said}' >&2; exit 1; }}\n")
    tar.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tar.parent}:{os.environ['PATH']}")

    assert stage.run("run_container_step", action("true"), state=STATE) == code


def test_no_free_name_is_one_line(stage: Stage) -> None:
    for n in range(32):
        stage.api.put("pods", f"{POD}-step-{n}", owner=UID)
    assert stage.run("run_container_step", action("true"), state=STATE) == 1
    assert "all 32 names of container steps are in use" in stage.log.errors[0]


@pytest.mark.parametrize("workspace", [None, "../..", "/etc", "a/../../b", ".", 3])
def test_workspace_outside_of_the_work_folder_is_refused(stage: Stage, workspace: object) -> None:
    state = {"jobPod": JOB_POD} if workspace is None else {"workspace": workspace}
    assert stage.run("run_container_step", action("true"), state=state) == 1
    assert "the runner named no workspace below /__w" in stage.log.errors[0]
    assert stage.api.names() == [JOB_POD]


def test_mount_of_the_runner_names_the_workspace(stage: Stage) -> None:
    mount = {"sourceVolumePath": str(stage.work / "shop/shop"), "targetVolumePath": "/github/workspace"}
    arguments = action("cat README.md", systemMountVolumes=[mount])
    assert stage.run("run_container_step", arguments, state={}) == 0
    assert stage.log.output == b"read me\n"


def test_paths_of_the_job_lead_to_the_workspace_of_the_step(stage: Stage) -> None:
    arguments = action("pwd; cat /__w/shop/shop/README.md", workingDirectory="/__w/shop/shop")
    assert stage.run("run_container_step", arguments, state=STATE) == 0
    assert stage.log.output.endswith(b"/github/workspace\nread me\n")


@pytest.mark.parametrize("number", [0, 1, 2, 4, 5, 6])
def test_copy_with_a_lost_connection_is_repeated_once(stage: Stage, number: int) -> None:
    stage.exec.faults = {len(stage.exec.ran) + number: "lost after"}
    assert stage.run("run_container_step", action("echo made > made"), state=STATE) == 0
    assert stage.inside("/__w/shop/shop/made").exists()

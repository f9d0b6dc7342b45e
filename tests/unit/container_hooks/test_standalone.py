"""`ostler hook`: one command on standard input, and one line for each problem with its environment."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from container_hooks.failures import HookFailed
from container_hooks.local_files import LocalFiles
from container_hooks.standalone import run_once
from tests.unit.container_hooks.worlds import JOB_POD, NAMESPACE, POD, UID, Stage, container, step


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def environment(stage: Stage, **changed: str) -> dict[str, str]:
    return {
        "ACTIONS_RUNNER_POD_NAME": POD,
        "ACTIONS_RUNNER_KUBERNETES_NAMESPACE": NAMESPACE,
        "OSTLER_HOOKS_POD_UID": UID,
        "RUNNER_WORKSPACE": str(stage.work / "shop"),
        "GITHUB_WORKSPACE": str(stage.work / "shop" / "shop"),
        "RUNNER_TEMP": str(stage.work / "_temp"),
        **changed,
    }


def run(stage: Stage, given: bytes | dict[str, Any], variables: dict[str, str] | None = None) -> tuple[int, str]:
    data = given if isinstance(given, bytes) else json.dumps(given).encode()
    shown = io.BytesIO()
    code = run_once(
        variables or environment(stage),
        given=io.BytesIO(data),
        shown=shown,
        connect=stage.api.client,
        exec_of=lambda _client, _place: stage.exec,
    )
    return code, shown.getvalue().decode()


def test_whole_job_runs_with_one_process_per_command(stage: Stage) -> None:
    response = stage.response_file
    prepare = {"command": "prepare_job", "responseFile": str(response), "state": {}, "args": {"container": container()}}
    assert run(stage, prepare)[0] == 0
    state = json.loads(response.read_text())["state"]
    script = stage.work / "_temp" / "x.sh"
    script.write_text("cat README.md; exit 9")

    assert run(stage, {"command": "run_script_step", "state": state, "args": step(script)}) == (9, "read me\n")
    code, shown = run(stage, {"command": "cleanup_job", "state": state})

    assert (code, shown) == (0, "Deleted Pods and Secrets of the job: 1\n")
    assert stage.api.objects == {}


@pytest.mark.parametrize("name", ["ACTIONS_RUNNER_POD_NAME", "RUNNER_WORKSPACE", "GITHUB_WORKSPACE", "RUNNER_TEMP"])
def test_missing_variable_is_one_line(stage: Stage, name: str) -> None:
    variables = environment(stage)
    del variables[name]
    code, shown = run(stage, {"command": "cleanup_job"}, variables)
    assert (code, shown.count("\n")) == (1, 1)
    assert shown.startswith(f"::error::{name}: it is not set")


def test_uid_of_the_runner_pod_is_read_if_it_is_not_in_the_environment(stage: Stage) -> None:
    uid = stage.api.put("pods", POD, owner=None)
    stage.api.put("pods", JOB_POD, owner=uid)
    assert run(stage, {"command": "cleanup_job"}, environment(stage, OSTLER_HOOKS_POD_UID=""))[0] == 0
    assert stage.api.names() == [POD]


@pytest.mark.parametrize("data", [b"", b"{", b'{"command": "x"}', b"x" * (5 * 1024 * 1024)])
def test_bad_input_is_one_line(stage: Stage, data: bytes) -> None:
    code, shown = run(stage, data)
    assert (code, shown.count("\n")) == (1, 1)
    assert shown.startswith("::error::")


def test_signal_ends_the_command_and_deletes_what_it_created(stage: Stage) -> None:
    given = {"command": "prepare_job", "responseFile": "/r", "state": {}, "args": {"container": container()}}
    stage.api.before("GET", "pods", lambda: os.kill(os.getpid(), signal.SIGTERM))

    with pytest.raises(SystemExit) as caught:
        run(stage, given)

    assert caught.value.code == 128 + signal.SIGTERM
    assert stage.api.objects == {}


def test_command_reads_standard_input_and_prints_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ostler", "hook"], input=b"no json", capture_output=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (1, b"")
    assert done.stdout == b"::error::the input of the hook is not JSON; the runner must write one JSON object\n"


def test_local_files_are_sent_and_received(tmp_path: Path) -> None:
    files = LocalFiles()
    (tmp_path / "a" / "sub").mkdir(parents=True)
    (tmp_path / "a" / "sub" / "x").write_text("x")
    files.receive(str(tmp_path / "b"), files.send(str(tmp_path / "a")))
    files.write(str(tmp_path / "new" / "file"), b"y")
    assert (tmp_path / "b" / "sub" / "x").read_text() == "x"
    assert (tmp_path / "new" / "file").stat().st_mode & 0o777 == 0o644


def test_missing_folder_counts_as_empty(tmp_path: Path) -> None:
    assert b"".join(LocalFiles().send(str(tmp_path / "none"))).strip(b"\0") != b"x"


@pytest.mark.timeout(30)
def test_many_errors_of_tar_do_not_stop_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both directions of a copy end, although the errors are larger than a pipe."""
    names = [f"{number:04}-{'x' * 60}" for number in range(2000)]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(f"file/{name}"))
    (tmp_path / "file").write_text("a file where a folder is expected")

    with pytest.raises(HookFailed, match="cannot be written"):
        LocalFiles().receive(str(tmp_path), [buffer.getvalue()])
    tar = tmp_path / "bin" / "tar"
    tar.parent.mkdir()
    tar.write_text("#!/bin/sh\nhead -c 300000 /dev/zero | tr '\\0' x >&2\nexit 2\n")
    tar.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tar.parent}:{os.environ['PATH']}")
    with pytest.raises(HookFailed, match="cannot be read"):
        b"".join(LocalFiles().send(str(tmp_path)))

"""A whole job through the socket: the real commands, the real `hook.sh`, and folders in place of containers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from container_hooks.commands import execute
from container_hooks.desk import Session
from container_hooks.inputs import parse
from tests.unit.container_hooks.sidecar import SHELLS, Ended, Json, Sidecar, is_installed, serving
from tests.unit.container_hooks.worlds import JOB_POD, Stage, container, step


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "job")


@pytest.fixture(params=sorted(SHELLS))
def shell(request: pytest.FixtureRequest) -> str:
    """Return the name of a shell that this machine has."""
    name: str = request.param
    if not is_installed(name):
        pytest.skip(f"{name} is not installed")
    return name


def commands(stage: Stage) -> Callable[[Json, Session], int]:
    """Return the commands in the world of the stage, but with the files and the log behind the socket."""

    def run(given: Json, session: Session) -> int:
        world = replace(stage.world(), files=session.conversation.files, log=session.conversation.log)
        return execute(parse(orjson.dumps(given)), world=world)

    return run


def ask(sidecar: Sidecar, stage: Stage, command: str, args: Json, state: Json | None = None) -> Ended:
    """Run one command as the runner does."""
    given = {"command": command, "responseFile": str(stage.response_file), "state": state or {}, "args": args}
    return sidecar.run(given)


def test_job_runs_from_prepare_job_to_cleanup_job(stage: Stage, tmp_path: Path, shell: str) -> None:
    (tmp_path / "hooks").mkdir()
    variables = stage.work / "_temp" / "_runner_file_commands" / "set_env_1"
    variables.write_text("")
    script = stage.work / "_temp" / "step.sh"
    script.write_text('cat README.md; echo "COLOR=blue" >> "$GITHUB_ENV"; exit 7\n')
    inside = {"GITHUB_ENV": "/__w/_temp/_runner_file_commands/set_env_1"}

    with serving(tmp_path / "hooks", commands(stage), shell=shell) as sidecar:
        prepared = ask(sidecar, stage, "prepare_job", {"container": container()})
        assert prepared.code == 0, prepared.output
        response = json.loads(stage.response_file.read_text())
        ran = ask(sidecar, stage, "run_script_step", step(script, environmentVariables=inside), response["state"])
        cleaned = ask(sidecar, stage, "cleanup_job", {})

    assert response["state"]["jobPod"] == JOB_POD
    assert stage.inside("/__e/node20/bin/node").stat().st_size == 3000
    assert (ran.code, cleaned.code) == (7, 0), ran.output
    assert "read me" in ran.output
    assert variables.read_text() == "COLOR=blue\n"
    assert ("pods", JOB_POD) not in stage.api.objects


def test_mistake_in_the_workflow_is_one_readable_line(stage: Stage, tmp_path: Path, shell: str) -> None:
    (tmp_path / "hooks").mkdir()
    with serving(tmp_path / "hooks", commands(stage), shell=shell) as sidecar:
        ended = ask(sidecar, stage, "prepare_job", {"container": container(image="")})

    assert ended.code == 1
    (line,) = ended.output.splitlines()
    assert "the job has no container" in line

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


def test_steps_that_run_at_the_same_time_keep_their_own_outputs(stage: Stage, tmp_path: Path) -> None:
    """Each of two steps begins before, and ends after, a part of the other. Both write an output, a file and a line."""
    (tmp_path / "hooks").mkdir()
    commands_of = stage.work / "_temp" / "_runner_file_commands"
    texts = {
        "a": """
            echo A=1 >> $GITHUB_OUTPUT; touch ../../_temp/a-wrote
            until [ -e ../../_temp/b-wrote ]; do sleep 0.1; done
            echo end of a
        """,
        "b": """
            until [ -e ../../_temp/a-wrote ]; do sleep 0.1; done
            echo B=2 >> $GITHUB_OUTPUT; touch ../../_temp/b-wrote
            until [ -e ../../_temp/a-read ]; do sleep 0.1; done
        """,
    }

    with serving(tmp_path / "hooks", commands(stage)) as sidecar:
        assert ask(sidecar, stage, "prepare_job", {"container": container()}).code == 0
        hooks = {}
        for name, text in texts.items():
            (commands_of / f"set_output_{name}").write_text("")
            (stage.work / "_temp" / f"{name}.sh").write_text(text)
            inside = {"GITHUB_OUTPUT": f"/__w/_temp/_runner_file_commands/set_output_{name}"}
            given = step(stage.work / "_temp" / f"{name}.sh", environmentVariables=inside)
            hooks[name] = sidecar.start({"command": "run_script_step", "state": {}, "args": given})
        first = hooks["a"].end()
        assert (commands_of / "set_output_a").read_text() == "A=1\n"
        assert (commands_of / "set_output_b").read_text() == ""
        stage.inside("/__w/_temp/a-read").touch()
        second = hooks["b"].end()

    assert (first.code, first.output, second.code, second.output) == (0, "end of a\n", 0, "")
    assert (commands_of / "set_output_a").read_text() == "A=1\n"
    assert (commands_of / "set_output_b").read_text() == "B=2\n"
    assert not list(stage.inside("/__w/_temp").glob(".ostler-copy*"))

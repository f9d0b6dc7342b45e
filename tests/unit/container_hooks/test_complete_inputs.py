"""One input per command with every field that the runner writes, and the fields of the response."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from container_hooks.commands import execute
from container_hooks.inputs import parse
from tests.unit.container_hooks.worlds import JOB_POD, Stage

LOGIN = {"username": "builder", "password": "words", "serverUrl": "https://registry.example"}
OPTIONS = "--cpus 1"


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    made = Stage(tmp_path)
    made.response_file.touch()  # the runner creates the file before the command
    (made.work / "shop" / "shop" / "greet.sh").write_text('echo "$0 in $PWD greets $WHO"\n')
    return made


def run(stage: Stage, command: str, args: dict[str, Any] | None, *, writes: bool = False, state: Any = None) -> int:
    """Run a command as the runner does. Only `prepare_job` has a response file."""
    given = {
        "command": command,
        "responseFile": str(stage.response_file) if writes else None,
        "state": state or {},
        "args": args if args is not None else {},
    }
    return execute(parse(json.dumps(given).encode()), world=stage.world())


def mount(source: str, target: str, *, read_only: bool = False) -> dict[str, Any]:
    return {"sourceVolumePath": source, "targetVolumePath": target, "readOnly": read_only}


def mounts_of_the_runner(stage: Stage) -> list[dict[str, Any]]:
    temp = f"{stage.work}/_temp"
    return [
        mount("/var/run/docker.sock", "/var/run/docker.sock"),
        mount(str(stage.work), "/__w"),
        mount(str(stage.externals), "/__e", read_only=True),
        mount(temp, "/__w/_temp"),
        mount(f"{stage.work}/_actions", "/__w/_actions"),
        mount(f"{stage.work}/_tool", "/__w/_tool"),
        mount(f"{temp}/_github_home", "/github/home"),
        mount(f"{temp}/_github_workflow", "/github/workflow"),
    ]


def prepare_job(stage: Stage) -> dict[str, Any]:
    return {
        "container": {
            "image": "python:3.13",
            "workingDirectory": "/__w/shop/shop",
            "createOptions": OPTIONS,
            "environmentVariables": {"WHO": "everybody"},
            "userMountVolumes": [mount("packages", "/packages")],
            "systemMountVolumes": mounts_of_the_runner(stage),
            "registry": LOGIN,
            "portMappings": ["8000:80"],
        },
        "services": [
            {
                "contextName": "queue",
                "image": "registry.example/team/rabbitmq:4",
                "createOptions": OPTIONS,
                "entrypoint": None,
                "entryPointArgs": [],
                "environmentVariables": {},
                "userMountVolumes": [mount("/var/run/docker.sock", "/var/run/docker.sock")],
                "portMappings": ["5672:5672", "15000:15672"],
                "registry": LOGIN,
            }
        ],
    }


def container_step(stage: Stage) -> dict[str, Any]:
    return {
        "image": "python:3.13",
        "dockerfile": None,
        "entryPointArgs": ["-e", "greet.sh"],
        "entryPoint": "sh",
        "workingDirectory": "/__w/shop/shop",
        "createOptions": OPTIONS,
        "environmentVariables": {"WHO": "the action"},
        "prependPath": ["/opt/first", "opt/second"],
        "userMountVolumes": [mount("packages", "/packages")],
        "systemMountVolumes": mounts_of_the_runner(stage),
        "registry": None,
        "portMappings": ["8080:8080"],
    }


SCRIPT_STEP: dict[str, Any] = {
    "entryPointArgs": ["-e", "greet.sh"],
    "entryPoint": "sh",
    "environmentVariables": {"WHO": "the step"},
    "prependPath": ["/opt/first", "opt/second"],
    "workingDirectory": "/__w/shop/shop",
}


def prepared(stage: Stage) -> Any:
    """Prepare the job, and return the content of the response file."""
    assert run(stage, "prepare_job", prepare_job(stage), writes=True) == 0, stage.log.errors
    stage.log.lines.clear()
    return json.loads(stage.response_file.read_text())


def test_response_of_a_complete_prepare_job_has_the_fields_of_the_runner(stage: Stage) -> None:
    assert prepared(stage) == {
        "state": {"jobPod": JOB_POD, "workspace": "shop/shop"},
        "context": {
            "container": {"image": "python:3.13", "ports": {"80": "80"}},
            "services": [
                {"image": "registry.example/team/rabbitmq:4", "ports": {"5672": "5672", "15672": "15672"}},
            ],
        },
        "isAlpine": False,
    }


def test_complete_script_step_runs_and_writes_no_response(stage: Stage) -> None:
    state = prepared(stage)["state"]
    stage.response_file.unlink()

    assert run(stage, "run_script_step", SCRIPT_STEP, state=state) == 0

    assert stage.log.output.decode().startswith("greet.sh in ")
    assert stage.log.output.decode().endswith("/shop/shop greets the step\n")
    assert not stage.response_file.exists()


def test_complete_container_step_runs_and_writes_no_response(stage: Stage) -> None:
    state = prepared(stage)["state"]
    stage.response_file.unlink()

    assert run(stage, "run_container_step", container_step(stage), state=state) == 0

    assert stage.log.output.decode().endswith("greets the action\n")
    assert not stage.response_file.exists()


def test_complete_cleanup_job_deletes_everything(stage: Stage) -> None:
    state = prepared(stage)["state"]
    assert stage.api.names("secrets") != []

    assert run(stage, "cleanup_job", None, state=state) == 0

    assert stage.api.objects == {}

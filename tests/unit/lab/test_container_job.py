"""The lab's runner drives the container hooks in the order of actions/runner."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from lab.kubelet.runner.container_job import ContainerJob

Json = dict[str, Any]

HOOK = """\
import json, os, subprocess, sys
work = os.environ["LAB_RUNNER_WORK"]
given = json.load(sys.stdin)
with open(os.path.join(work, "commands"), "a") as file:
    file.write(json.dumps(given) + chr(10))
command, arguments = given["command"], given["args"]
if command == os.environ.get("FAILS"):
    print("the image cannot be pulled")
    sys.exit(1)
if command == "prepare_job":
    services = [{"image": each["image"], "ports": {}} for each in arguments["services"]]
    answer = {"state": {"jobPod": "a-workflow"}, "context": {"services": services}, "isAlpine": False}
    with open(given["responseFile"], "w") as file:
        json.dump(answer, file)
if command == "run_script_step":
    here = lambda text: text.replace("/__w", work)
    variables = {name: here(value) for name, value in arguments["environmentVariables"].items()}
    words = [arguments["entryPoint"], *map(here, arguments["entryPointArgs"])]
    sys.exit(subprocess.run(words, env={**os.environ, **variables}, cwd=here(arguments["workingDirectory"])).returncode)
"""

JOB: Json = {
    "container": {"image": "job:1"},
    "services": {"db": {"image": "postgres:1", "options": "--health-cmd pg_isready"}},
    "steps": [
        {"run": "cat checked-out.txt; echo COLOR=blue >> $GITHUB_ENV"},
        {"run": "test $COLOR = blue"},
        {"image": "action:1", "entrypoint": "/entry.sh", "args": ["a"]},
    ],
}


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the runner's work folder, with a hook program that records its inputs there."""
    (tmp_path / "hook.py").write_text(HOOK)
    (tmp_path / "hook.sh").write_text(f"exec {sys.executable} {tmp_path}/hook.py\n")
    monkeypatch.setenv("ACTIONS_RUNNER_CONTAINER_HOOKS", str(tmp_path / "hook.sh"))
    monkeypatch.setenv("LAB_RUNNER_WORK", str(tmp_path / "_work"))
    return tmp_path / "_work"


def run(job: Json) -> tuple[str, list[Json]]:
    """Run a job, and return its conclusion and its events."""
    events: list[Json] = []
    lost = threading.Event()
    conclusion = ContainerJob(job, say=lambda event, **facts: events.append({"event": event, **facts}), lost=lost).run()
    return conclusion, events


def commands(work: Path) -> list[Json]:
    return [json.loads(line) for line in (work / "commands").read_text().splitlines()]


def test_steps_run_between_prepare_and_cleanup_and_share_variables(work: Path) -> None:
    conclusion, events = run(JOB)

    assert conclusion == "success", events
    assert [each["command"] for each in commands(work)] == [
        "prepare_job",
        "run_script_step",
        "run_script_step",
        "run_container_step",
        "cleanup_job",
    ]
    assert {each["state"].get("jobPod") for each in commands(work)[1:]} == {"a-workflow"}
    assert commands(work)[3]["args"]["environmentVariables"]["COLOR"] == "blue"


@pytest.mark.parametrize("command", ["prepare_job", "run_container_step", "cleanup_job"])
def test_job_fails_with_its_hook_and_is_cleaned_up(work: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("FAILS", command)

    conclusion, events = run(JOB)

    assert conclusion == "failure"
    assert commands(work)[-1]["command"] == "cleanup_job"
    assert "the image cannot be pulled" in events[-1]["what"]


def test_a_failed_step_ends_the_job(work: Path) -> None:
    conclusion, _ = run({**JOB, "steps": [{"run": "exit 3"}, {"run": "true"}]})

    assert conclusion == "failure"
    assert [each["command"] for each in commands(work)] == ["prepare_job", "run_script_step", "cleanup_job"]

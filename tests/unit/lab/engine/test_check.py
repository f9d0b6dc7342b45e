"""Verdict of the compose check: the problems of containers that count, and the values at the start of the project."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from lab.engine.check import failures, main, to_blame
from lab.engine.project import FILE, Container, command_line, parse


def container(name: str = "web", *, state: str = "running", health: str = "", code: int = 0) -> Container:
    return Container(
        name=f"ostler-lab-{name}-1", service=name, state=state, health=health, code=code, status=state.capitalize()
    )


TRAFFIC = container("lab-traffic", state="exited")


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (container(), None),
        (container(health="healthy"), None),
        (container(state="exited"), None),
        (container(state="exited", code=1), "ostler-lab-web-1 ended with 1"),
        (container(health="starting"), "ostler-lab-web-1 is starting"),
        (container(health="unhealthy"), "ostler-lab-web-1 is unhealthy"),
        (container(state="restarting", code=1), "ostler-lab-web-1 is restarting"),
        (container(state="created"), "ostler-lab-web-1 is created"),
    ],
)
def test_container_that_failed_or_is_not_healthy_has_a_problem(found: Container, problem: str | None) -> None:
    assert found.problem == problem


def test_check_passes_only_if_jobs_were_sent_and_nothing_is_wrong() -> None:
    assert failures([container(), TRAFFIC], []) == []
    assert failures([container()], []) == ["no job was sent: the service lab-traffic has no container"]
    assert failures([container()], [], sent_by="") == []
    assert failures([container(state="created"), TRAFFIC], ["late"]) == ["late", "ostler-lab-web-1 is created"]


def test_containers_that_wait_for_a_failed_one_are_not_blamed() -> None:
    failed, waiting = container("migrate", state="exited", code=2), container(state="created")
    starting = container("flower", health="starting")

    assert to_blame([failed, waiting, starting, TRAFFIC]) == [failed]
    assert to_blame([waiting, starting, TRAFFIC]) == [waiting, starting]


def test_user_other_than_root_is_told_what_to_do_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["ostler-lab compose-check"])

    assert main() == 1
    assert capsys.readouterr().err == (
        "ostler-lab compose-check: a Docker engine needs root: run the command with sudo\n"
    )


def test_list_of_compose_is_read_line_by_line_and_sorted() -> None:
    line = {"Name": "b", "Service": "web", "State": "exited", "Health": "", "ExitCode": 3, "Status": "Exited (3)"}
    listed = "\n".join([json.dumps(line), json.dumps(line | {"Name": "a", "ExitCode": 0}), "a warning"])

    found = parse(listed)

    assert [(each.name, each.code) for each in found] == [("a", 0), ("b", 3)]


def test_project_uses_the_compose_file_itself_with_the_profile_of_the_lab(tmp_path: Path) -> None:
    command = command_line(tmp_path / "docker-compose", tmp_path / "lab.env")

    assert f"--file={FILE}" in command
    assert "--profile=lab" in command
    assert f"--env-file={tmp_path / 'lab.env'}" in command
    assert FILE.exists()

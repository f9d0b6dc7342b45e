"""Values of the compose check: variables, the limit of open files, and the environment of Compose."""

from __future__ import annotations

import re
from pathlib import Path
from resource import RLIM_INFINITY

import pytest
import yaml

from lab.engine.project import FILE
from lab.engine.values import (
    NOFILE,
    PASSED_ON,
    environment_of_compose,
    may_raise_limits,
    nofile_limit,
    variables,
    write_env_file,
)

DOCKERFILE = (FILE.parent / "Dockerfile").read_text()


@pytest.mark.parametrize(
    ("hard", "may_raise", "limit"),
    [
        (20_000, False, 20_000),
        (20_000, True, NOFILE),
        (NOFILE, False, NOFILE),
        (1_048_576, False, NOFILE),
        (RLIM_INFINITY, False, NOFILE),
    ],
)
def test_limit_of_open_files_is_lowered_only_to_a_hard_limit_that_stays(hard: int, may_raise: bool, limit: int) -> None:
    assert nofile_limit(hard=hard, may_raise=may_raise) == limit


def test_right_to_raise_limits_is_a_capability_of_the_process() -> None:
    assert may_raise_limits("Name:\tx\nCapEff:\t000001ffffffffff\n")
    assert not may_raise_limits("Name:\tx\nCapEff:\t000001fffeffffff\n")
    assert not may_raise_limits("Name:\tx\n")


def test_default_limit_is_that_of_the_compose_file() -> None:
    web = yaml.safe_load(FILE.read_text())["services"]["web"]
    assert web["ulimits"] == {"nofile": f"${{WEB_NOFILE:-{NOFILE}}}"}
    assert "WEB_NOFILE" not in variables(jobs=20, nofile=NOFILE)
    assert variables(jobs=20, nofile=20_000)["WEB_NOFILE"] == "20000"


def test_values_cover_every_variable_that_the_file_requires() -> None:
    required = set(re.findall(r"\$\{(\w+):\?", FILE.read_text()))
    assert required
    assert required <= variables(jobs=20, nofile=NOFILE).keys()


def test_secrets_of_two_runs_differ() -> None:
    first, second = (variables(jobs=20, nofile=NOFILE) for _ in range(2))
    for name in ("POSTGRES_PASSWORD", "REDIS_PASSWORD", "OSTLER_WEBHOOK_SECRETS", "OSTLER_ENCRYPTION_KEYS"):
        assert first[name] != second[name]


def test_env_file_is_readable_only_by_its_owner(tmp_path: Path) -> None:
    file = tmp_path / "lab.env"
    write_env_file(file, {"A": "1", "B": "x=y"})
    assert file.read_text() == "A=1\nB=x=y\n"
    assert file.stat().st_mode & 0o777 == 0o600


def test_compose_gets_nothing_of_the_caller_but_the_path_and_what_a_build_needs(tmp_path: Path) -> None:
    caller = {
        "PATH": "/bin",
        "POSTGRES_PASSWORD": "theirs",
        "PIP_INDEX_URL": "https://index.example/simple",
        "NO_PROXY": "",
    }
    found = environment_of_compose(caller, home=tmp_path, host="unix:///run/docker.sock")
    assert found == {
        "PATH": "/bin",
        "HOME": str(tmp_path),
        "DOCKER_CONFIG": str(tmp_path / ".docker"),
        "DOCKER_HOST": "unix:///run/docker.sock",
        "DOCKER_BUILDKIT": "1",
        "PIP_INDEX_URL": "https://index.example/simple",
    }


def test_compose_file_passes_on_the_same_variables_and_gives_them_no_value() -> None:
    services = yaml.safe_load(FILE.read_text())["services"]
    for name in ("web", "lab-github"):
        arguments = services[name]["build"]["args"]
        assert [each for each, value in arguments.items() if value is None] == list(PASSED_ON)


def test_dockerfile_declares_the_variables_of_pip_in_the_build_stage_alone() -> None:
    build = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1]
    declared = re.findall(r"^ARG (\w+)$", build, re.MULTILINE)
    assert declared == [name for name in PASSED_ON if name.startswith("PIP_")]
    assert re.findall(r"^ARG (\w+)$", DOCKERFILE, re.MULTILINE) == declared

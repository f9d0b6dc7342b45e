"""First run of the compose file: the values of a newcomer, and the message about missing values."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import yaml

from cli.setup.store import KEYS
from lab.control_plane_access import write_kubeconfig
from lab.engine import first_run
from lab.engine.project import Project
from lab.processes import StartError

SETTINGS = {name: f"{name} of the lab" for name in KEYS} | {"OSTLER_GITHUB_API_URL": "http://10.199.0.1:9"}


def test_example_is_filled_in_and_stays_otherwise_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / ".env"

    first_run.fill_in(file, SETTINGS, first_run.values_of(tmp_path / "kubeconfig"))

    before, after = first_run.EXAMPLE.read_text().splitlines(), file.read_text().splitlines()
    assert [line.partition("=")[0] for line in after] == [line.partition("=")[0] for line in before]
    assert f"KUBECONFIG_FILE={tmp_path / 'kubeconfig'}" in after
    assert "OSTLER_GITHUB_APP_ID='OSTLER_GITHUB_APP_ID of the lab'" in after
    empty = [line for line in after if "=" in line and not line.partition("=")[2]]
    assert empty == ["LAB_APP_PUBLIC_KEY="]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_value_that_the_example_does_not_have_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"example has no line for NO_SUCH_VARIABLE"):
        first_run.fill_in(tmp_path / ".env", SETTINGS, {"NO_SUCH_VARIABLE": "1"})


def test_kubeconfig_of_containers_needs_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.chown", lambda *_: None)
    (tmp_path / "ca.crt").write_text("authority")
    write_kubeconfig(tmp_path / "own", url="https://127.0.0.1:6443", ca_file=tmp_path / "ca.crt", token="t")

    first_run.write_kubeconfig(tmp_path / "theirs", administrator=tmp_path / "own")

    (cluster,) = yaml.safe_load((tmp_path / "theirs").read_text())["clusters"]
    assert cluster["cluster"]["server"] == "https://10.199.0.1:6443"
    assert str(tmp_path) not in (tmp_path / "theirs").read_text()
    assert stat.S_IMODE((tmp_path / "theirs").stat().st_mode) == 0o400


@pytest.mark.parametrize(
    ("said", "status", "passes"),
    [
        ("required variable REDIS_PASSWORD is missing a value: openssl rand -hex 24 makes one", 1, True),
        ("required variable REDIS_PASSWORD is missing a value:", 1, False),
        ("first line\nrequired variable REDIS_PASSWORD is missing a value: make one", 1, False),
        ("", 0, False),
    ],
)
def test_untouched_example_must_end_with_one_line_and_a_remedy(
    tmp_path: Path, said: str, status: int, passes: bool
) -> None:
    compose = tmp_path / "docker-compose"
    compose.write_text(f"#!/bin/sh\ncat >&2 <<END\n{said}\nEND\nexit {status}\n")
    compose.chmod(0o755)
    project = Project(compose, values=first_run.EXAMPLE, environment={}, log=tmp_path / "log", profile="")

    assert (first_run.untouched_problem(project) is None) == passes

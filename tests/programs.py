"""Builds the lab's Go programs before the first test that needs one, with progress on the terminal.

The programs are built once per machine. Inside a test the build would be silent and would count in the time limit of
that test. A run with `-n` does not collect in the process that owns the terminal, so it builds them all unless only
unit tests were named.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from _pytest.capture import CaptureManager

from lab import control_plane_build, foreign, helm, kubectl, toxiproxy
from lab.control_plane_build import ControlPlaneUnavailable, Say
from lab.processes import StartError

_TESTS = Path(__file__).parent
_WITHOUT = (_TESTS / "unit", _TESTS / "chaos")
_WITH = (_TESTS / "contract" / "chart", _TESTS / "e2e", _TESTS / "faults", _TESTS / "integration" / "deploys")
"""Folders whose tests need the control plane, Helm and kubectl though they use no fixture `control_plane`."""

Build = Callable[[Say], object]
_BUILDS: tuple[Build, ...] = (control_plane_build.binaries, helm.build, kubectl.build, foreign.definitions)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Build everything where workers of pytest-xdist will run the tests."""
    if session.config.getoption("numprocesses", None) and "PYTEST_XDIST_WORKER" not in os.environ:
        named = [Path(each.partition("::")[0]).absolute() for each in session.config.args]
        if not all(_is_in(path, _WITHOUT) for path in named):
            _build(session.config, _BUILDS)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what the collected tests need."""
    if "PYTEST_XDIST_WORKER" in os.environ or session.config.getoption("collectonly"):
        return
    builds: list[Build] = []
    if any("control_plane" in getattr(item, "fixturenames", ()) or _is_in(item.path, _WITH) for item in session.items):
        builds += _BUILDS
    if any(_is_in(item.path, (_TESTS / "integration" / "stores",)) for item in session.items):
        builds.append(toxiproxy.build)
    _build(session.config, builds)


def _is_in(path: Path, folders: Iterable[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


def _build(config: pytest.Config, builds: Iterable[Build]) -> None:
    """Build programs; one that cannot be built is left to the tests that need it, which fail with the cause."""
    capture: CaptureManager | None = config.pluginmanager.getplugin("capturemanager")

    def say(line: str) -> None:
        if capture is None:
            print(line, flush=True)  # noqa: T201  progress
        else:
            with capture.global_and_fixture_disabled():
                print(line, flush=True)  # noqa: T201  progress

    for build in builds:
        try:
            build(say)
        except (ControlPlaneUnavailable, StartError) as error:
            say(str(error))

"""Builds the lab's Go programs before the first test that needs one, with progress on the terminal.

The programs are built once per machine, and only for `--cluster real`. Inside a test the build would be silent and
would count in the time limit of that test.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from _pytest.capture import CaptureManager

from lab import control_plane_build, foreign, helm, kubectl, prometheus, toxiproxy
from lab.control_plane_build import ControlPlaneUnavailable, Say
from lab.processes import StartError

Build = Callable[[Say], object]
_BUILDS: tuple[Build, ...] = (
    control_plane_build.binaries,
    helm.build,
    kubectl.build,
    foreign.definitions,
    prometheus.build,
    toxiproxy.build,
)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Build the programs for a run with a real control plane, before workers of pytest-xdist collect its tests."""
    if session.config.getoption("cluster") == "real" and "PYTEST_XDIST_WORKER" not in os.environ:
        _build(session.config)


def _build(config: pytest.Config) -> None:
    """Build programs. If a build fails, the tests that need the program fail with the cause."""
    capture: CaptureManager | None = config.pluginmanager.getplugin("capturemanager")

    def say(line: str) -> None:
        if capture is None:
            print(line, flush=True)  # noqa: T201  progress
        else:
            with capture.global_and_fixture_disabled():
                print(line, flush=True)  # noqa: T201  progress

    for build in _BUILDS:
        try:
            build(say)
        except (ControlPlaneUnavailable, StartError) as error:
            say(str(error))

"""Children of the lab and of tests, even if their parent ignores signals."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
TEST = "tests/unit/container_hooks/test_socket.py::test_signal_to_the_script_cancels_its_command"


def _ignore() -> None:
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)


def test_suite_passes_when_its_parent_ignores_signals() -> None:
    """`nohup make test &` starts the tests in this way. A shell cannot trap a signal that was ignored at its start."""
    options = ["-q", "-p", "no:cacheprovider", "-k", "dash or runner", "--timeout=60"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, TEST],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        preexec_fn=_ignore,
    )
    assert done.returncode == 0, done.stdout

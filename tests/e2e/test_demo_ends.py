"""Ctrl-C ends the demo, during its start and later, and leaves no process and no file.

A kill leaves no process, and the next demo removes the files.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.demo.folder import remove_killed
from lab.processes import default_signals


@contextmanager
def demo(folder: Path, cluster: str = "embedded", *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A demo without an end that keeps its files in `folder`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "lab", "demo", "--cluster", cluster, *arguments],
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=default_signals,  # noqa: PLW1509  it calls one function of libc
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_until(process: subprocess.Popen[str], words: str) -> None:
    """Read the output of the demo until it contains `words`."""
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if words in line:
            return
    raise AssertionError("".join(said))


def left_behind(folder: Path) -> list[str]:
    """Return the command lines of the processes with `folder` in their environment, also of the scripts in Pods."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if str(folder).encode() in environ.read_bytes():
                found.append((environ.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # it ended meanwhile
            continue
    return found


@pytest.fixture
def folder() -> Iterator[Path]:
    """The demo's TMPDIR. It is outside pytest's folder, because another user can run the demo's Postgres."""
    with tempfile.TemporaryDirectory(prefix="ostler-demo-ends-") as name:
        yield Path(name)


@pytest.mark.parametrize(
    ("words", "status"), [("starting web", 130), ("sending jobs", 0)], ids=["while it starts", "while it runs"]
)
def test_ctrl_c_leaves_nothing_behind(folder: Path, words: str, status: int) -> None:
    with demo(folder) as process:
        read_until(process, words)
        time.sleep(1)
        assert left_behind(folder)

        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=120)

    assert process.returncode == status, said
    assert left_behind(folder) == []
    assert list(folder.iterdir()) == []


def test_a_kill_leaves_no_process_and_the_next_demo_removes_the_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with demo(folder) as process:
        read_until(process, "sending jobs")
        process.kill()
        process.wait()

    end = time.monotonic() + 60
    while left := left_behind(folder):
        assert time.monotonic() < end, left
        time.sleep(0.1)
    assert list(folder.iterdir())
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    assert remove_killed() == 1
    assert list(folder.iterdir()) == []

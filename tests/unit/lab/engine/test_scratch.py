"""Folder of an engine's run: removed at the end, after a SIGKILL, and by the next run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from lab.engine.scratch import PREFIX, remove_abandoned, scratch_folder
from lab.node.cgroups import start_time
from tests.waiting import eventually

HOLD = """
import sys, time
from pathlib import Path
from lab.engine.scratch import scratch_folder
with scratch_folder(Path(sys.argv[1])) as folder:
    (folder / "data").write_text("x")
    print(folder, flush=True)
    time.sleep(600)
"""


def test_folder_is_private_and_removed_at_the_end(tmp_path: Path) -> None:
    with scratch_folder(tmp_path) as folder:
        (folder / "data").write_text("x")
        assert folder.stat().st_mode & 0o777 == 0o700

    assert list(tmp_path.iterdir()) == []


def test_folder_is_removed_when_the_run_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert (folder / "data").exists()

        process.send_signal(signal.SIGKILL)
        process.wait()

    eventually(lambda: not folder.exists(), within=60)


def test_only_folders_whose_process_is_gone_are_removed(tmp_path: Path) -> None:
    running = tmp_path / f"{PREFIX}{os.getpid()}-{start_time(os.getpid())}"
    gone = tmp_path / f"{PREFIX}{os.getpid()}-1"
    strange = tmp_path / f"{PREFIX}someone-else"
    for each in (running, gone, strange):
        each.mkdir()

    assert remove_abandoned(tmp_path) == [gone]
    assert sorted(tmp_path.iterdir()) == sorted([running, strange])

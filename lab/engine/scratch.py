"""Folder of one run of a Docker engine, removed at its end by a process of its own, also if the run is killed.

The engine's data cannot be on a file system that the kernel removes with the namespaces, because a small machine has
too little memory for it. A second process, the remover, therefore reads from a pipe that only the run's processes hold
open. The remover deletes the folder and the control groups when the last of these processes is gone. If the remover is
killed too, the next run removes the folder: its name has the id and the start time of the process that made it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.node.cgroups import is_used, remove_killed, start_time

PREFIX = "ostler-engine-"
_ATTEMPTS = 100  # some processes of the namespaces end a moment after the process that held the pipe
_PAUSE = 0.2  # seconds between two attempts


@contextmanager
def scratch_folder(parent: Path | None = None) -> Iterator[Path]:
    """Make a folder for this run in `parent` (default: the folder for temporary files), and remove it at the end."""
    where = parent or Path(tempfile.gettempdir())
    remove_abandoned(where)
    folder = where / f"{PREFIX}{os.getpid()}-{start_time(os.getpid())}"
    folder.mkdir(mode=0o700)
    command = [sys.executable, "-m", __name__, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as remover:
        try:
            yield folder
        finally:
            if remover.stdin is not None:
                remover.stdin.close()
            remover.wait()


def remove_abandoned(parent: Path) -> list[Path]:
    """Remove the folders of runs whose process is gone, and return them."""
    found = []
    for folder in parent.glob(f"{PREFIX}*-*"):
        ours = not folder.is_symlink() and folder.stat().st_uid == os.geteuid()
        if ours and not is_used(folder, prefix=PREFIX):
            shutil.rmtree(folder, ignore_errors=True)
            found.append(folder)
    return found


def remove(folder: Path) -> None:
    """Remove a folder, with further attempts for some seconds while a process still writes to it."""
    for _ in range(_ATTEMPTS):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(_PAUSE)


def main() -> None:
    """Wait until the pipe of the standard input is closed, then remove the folder and control groups of the run."""
    sys.stdin.buffer.read()
    remove(Path(sys.argv[1]))
    remove_killed()


if __name__ == "__main__":
    main()

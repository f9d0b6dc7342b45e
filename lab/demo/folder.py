"""The folder of a demo's run, and the removal of folders that killed demos left behind.

A run holds a lock on a file in its folder, and deletes the file when it ends. If the file exists and no process holds
the lock, the run was killed, and the next demo removes the folder. A run that ended has no such file, so the logs that
it kept are not removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ostler.errors import ConfigurationError

PREFIX = "ostler-demo-"
_MARK = "running"
_STORES = "ostler-pg-"


def folder_of_run(logs: Path | None) -> Path:
    """Return the folder of this run. Raises `ConfigurationError` if the folder `logs` exists and is not empty."""
    if logs is None:
        return Path(tempfile.mkdtemp(prefix=PREFIX))
    if logs.exists() and any(logs.iterdir()):
        raise ConfigurationError(f"--logs: {logs} is not empty; name a new folder")
    return logs


@contextlib.contextmanager
def running_in(folder: Path, *, store: Path) -> Iterator[None]:
    """Mark the run in `folder` as running while the context is open.

    `store` is the folder of its Postgres, which is removed too if the run is killed.
    """
    made = folder / f"{_MARK}.new"
    with made.open("w") as mark:
        fcntl.flock(mark, fcntl.LOCK_EX)
        mark.write(str(store))
        mark.flush()
        made.rename(folder / _MARK)  # the file appears only after it is locked
        try:
            yield
        finally:
            (folder / _MARK).unlink(missing_ok=True)


def remove_killed() -> int:
    """Remove the folders of this user's killed runs. Return their number."""
    return sum(_remove_if_killed(path) for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"))


def _remove_if_killed(folder: Path) -> bool:
    try:
        if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
            return False
        with (folder / _MARK).open() as mark:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            store = Path(mark.read())
    except OSError:  # the run is active, has ended, or is being removed
        return False
    if store.name.startswith(_STORES):
        shutil.rmtree(store, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    return True

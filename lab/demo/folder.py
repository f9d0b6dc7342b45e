"""Folder of a demo's run, and the cleanup after a demo that was killed.

A run holds a lock on a file in its folder. If the file exists and no process holds the lock, the run was killed, and
the next demo removes its folder. A run that ended has no such file, so its logs stay.
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
    """Return the folder of this run. Raises `ConfigurationError` if `logs` names a folder that is not empty."""
    if logs is None:
        return Path(tempfile.mkdtemp(prefix=PREFIX))
    if logs.exists() and any(logs.iterdir()):
        raise ConfigurationError(f"--logs: {logs} is not empty; name a new folder")
    return logs


@contextlib.contextmanager
def running_in(folder: Path, *, store: Path) -> Iterator[None]:
    """Mark the run in `folder` as running while this process lives. `store` is the folder of its Postgres."""
    made = folder / f"{_MARK}.new"
    with made.open("w") as mark:
        fcntl.flock(mark, fcntl.LOCK_EX)
        mark.write(str(store))
        mark.flush()
        made.rename(folder / _MARK)  # the file never exists without the lock
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
    except OSError:  # it runs, it ended, or it is ending
        return False
    if store.name.startswith(_STORES):
        shutil.rmtree(store, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    return True

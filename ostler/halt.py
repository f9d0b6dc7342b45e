"""Halting points: lines at which a fault test can stop a real process and then kill it.

`OSTLER_HALT_DIR` names a folder. To arm a point, a test creates the file `armed/<point>` in that folder. The first
process that reaches the point renames the file atomically to `halted/<point>.<pid>` and stops itself with SIGSTOP. The
test then kills the process. If the variable is not set, a halting point costs only one comparison.

`models.db.engine` derives the points of the claim path from `rules.claims.machines`. This module has no list of points.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

_DIRECTORY = os.environ.get("OSTLER_HALT_DIR")


def halt(point: str) -> None:
    """Stop this process if a test has armed `point`."""
    if _DIRECTORY is None:
        return
    halted = Path(_DIRECTORY, "halted")
    try:
        Path(_DIRECTORY, "armed", point).rename(halted / f"{point}.{os.getpid()}")
    except FileNotFoundError:
        return
    # The signal goes to this thread. A signal to the process might stop another thread first, and this thread would
    # continue to its commit.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

"""Halting points: where a fault test stops a real process so that it can be killed there.

`OSTLER_HALT_DIR` names a folder. A file `armed/<point>` in it makes the first process that
reaches `<point>` take the file (an atomic rename to `halted/<point>.<pid>`) and stop itself with
SIGSTOP; the test then kills it. Without the variable this costs one comparison.
The points of the claim path are made from `rules.claims.machines` by `models.db.engine`; nothing is listed here.
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
    # To this thread: a signal to the process may stop another one first, while this one goes on to its commit.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

"""A sidecar in a process of its own, whose commands wait until a file appears. Arguments: the folder of the socket."""

from __future__ import annotations

import sys
from pathlib import Path

from container_hooks.desk import Session
from container_hooks.serve import HookServer
from tests.unit.container_hooks.sidecar import QUICK, Json


def execute(given: Json, session: Session) -> int:
    """Wait until the file in the arguments exists, and return 0."""
    session.conversation.log.line(f"{given['command']} began")
    while not Path(given["args"]["until"]).exists():
        session.conversation.timing.sleep(0.05)
    return 0


if __name__ == "__main__":
    HookServer(Path(sys.argv[1]) / "hooks.sock", execute, limits=QUICK).serve()

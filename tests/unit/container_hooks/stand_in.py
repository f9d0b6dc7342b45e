"""A sidecar in a process of its own. Arguments: the folder of the socket.

Commands wait until the file in their arguments appears. A `cleanup_job` without arguments makes the file `cleaned-up`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from container_hooks.desk import Session
from container_hooks.serve import HookServer
from container_hooks.sidecar import end_by_signals
from tests.unit.container_hooks.sidecar import QUICK, Json, parsed


def execute(given: Json, session: Session) -> int:
    """Wait until the file in the arguments exists, and return 0."""
    if "args" not in given:
        Path(sys.argv[1], "cleaned-up").touch()
        return 0
    session.conversation.log.line(f"{given['command']} began")
    while not Path(given["args"]["until"]).exists():
        session.conversation.timing.sleep(0.05)
    return 0


if __name__ == "__main__":
    server = HookServer(Path(sys.argv[1]) / "hooks.sock", parsed(execute), limits=QUICK)
    end_by_signals(server.desk, within=10)
    server.serve()

"""A sidecar with a stand-in for the commands, and `hook.sh` as the runner starts it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from container_hooks.conversation import Limits
from container_hooks.desk import Session
from container_hooks.serve import HookServer
from lab.processes import default_signals

Json = dict[str, Any]
QUICK = Limits(silent=1.5, silent_when_wanted=0.5, poll=0.3, busy=1, cleanup=0.5, stuck=5, request=1, stall=10)

SHELLS = {
    "dash": ["dash"],
    "busybox": [os.environ.get("BUSYBOX", "busybox"), "sh"],
    "runner": ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail"],
}
"""Shells that start `hook.sh`. The third one is what actions/runner uses."""


@dataclass(frozen=True)
class Ended:
    """Result of `hook.sh`."""

    code: int
    output: str


@dataclass(frozen=True)
class Hook:
    """A started `hook.sh`, in a process group of its own."""

    process: subprocess.Popen[str]

    def end(self) -> Ended:
        """Wait for the end of the script."""
        with self.process:
            output, _ = self.process.communicate(timeout=60)
        return Ended(self.process.returncode, output)

    def kill_group(self) -> None:
        """Kill the script and its curl, as the runner kills a tree of processes."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.end()


@dataclass(frozen=True)
class Sidecar:
    """A served socket. `server` is None if a process of its own serves the socket."""

    folder: Path
    shell: list[str]
    server: HookServer | None = None

    @property
    def socket(self) -> Path:
        """Return the path of the socket."""
        return self.folder / "hooks.sock"

    def start(self, given: Json | str, **environment: str) -> Hook:
        """Start `hook.sh` with one command. A text is sent unchanged."""
        process = subprocess.Popen(
            [*self.shell, str(self.folder / "hook.sh")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=default_signals,  # noqa: PLW1509  it calls one function of libc
            env={
                "PATH": os.environ["PATH"],
                "OSTLER_HOOKS_SOCKET": str(self.socket),
                "RUNNER_TEMP": "/home/runner/_work/_temp",
                **environment,
            },
        )
        assert process.stdin is not None
        process.stdin.write(given if isinstance(given, str) else json.dumps(given))
        process.stdin.close()
        process.stdin = None
        return Hook(process)

    def run(self, given: Json | str, **environment: str) -> Ended:
        """Run `hook.sh` to its end."""
        return self.start(given, **environment).end()

    def ask(self, path: str, *options: str) -> str:
        """Send one request to the socket, as code of a job can, and return the answer."""
        words = ["curl", "--silent", "--max-time", "20", "--unix-socket", str(self.socket), *options]
        return subprocess.run(
            [*words, f"http://hooks{path}"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        ).stdout


def parsed(execute: Callable[[Json, Session], int]) -> Callable[[bytes, Session], int]:
    """Return a stand-in for the commands that gets the parsed JSON of the runner."""
    return lambda content, session: execute(json.loads(content), session)


@contextmanager
def serving(
    folder: Path,
    execute: Callable[[Json, Session], int],
    *,
    shell: str = "dash",
    limits: Limits = QUICK,
    restart: Callable[[], None] | None = None,
) -> Iterator[Sidecar]:
    """Serve a socket in this process until the end of the block."""
    server = HookServer(folder / "hooks.sock", parsed(execute), limits=limits, restart=restart)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield Sidecar(folder, SHELLS[shell], server)
    finally:
        server.stop()
        thread.join(10)


def is_installed(shell: str) -> bool:
    """Return whether this machine has a shell."""
    return shutil.which(SHELLS[shell][0]) is not None

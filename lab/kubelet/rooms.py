"""Rooms: the place of one container of a hook Pod on this machine, and the processes in it.

A room has a folder of its own as root, in which it sees the machine's programs (`lab.kubelet.enter`). The volumes of
the Pod are mounted where the container asks for them, so that `/__w` is at the same path as in a real container. The
limits: no image is pulled, every room has the programs of this machine, and its processes are not isolated otherwise.
Users, resources, capabilities and the network of the Pod are ignored.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lab.kubelet.enter import NOT_STARTED, SYSTEM
from lab.processes import die_with_parent

_ENTER = Path(__file__).with_name("enter.py")
_OWN_FOLDERS = ("home", "root", "run", "tmp", "var")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LONGEST_REASON = 4096
_SIGNALS = 128
_KILL_SECONDS = 0.02

__all__ = ["NOT_STARTED", "SYSTEM", "NotStarted", "Room"]


class NotStarted(Exception):
    """The command could not be started. The text is the reason."""


@dataclass(frozen=True, kw_only=True)
class Room:
    """One container. `mounts` has the folder of the machine for each path in the container."""

    root: Path
    mounts: Mapping[str, Path]
    directory: str
    environment: Mapping[str, str]
    _processes: set[asyncio.subprocess.Process] = field(default_factory=set)

    def make(self) -> None:
        """Create the folders."""
        for name in _OWN_FOLDERS:
            (self.root / name).mkdir(parents=True, exist_ok=True)
        (self.root / "tmp").chmod(0o1777)
        for folder in self.mounts.values():
            folder.mkdir(parents=True, exist_ok=True)

    async def start(
        self, command: Sequence[str], *, stdin: int, stdout: int, stderr: int
    ) -> asyncio.subprocess.Process:
        """Start a command in this room. The three streams are as for `subprocess.Popen`. Raises `NotStarted`."""
        heard, told = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(_ENTER), self._described(told), *command),
                env={},
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=(told,),
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        except BaseException:
            os.close(heard)
            raise
        finally:
            os.close(told)
        self._processes.add(process)
        with os.fdopen(heard, "rb") as reasons:
            # The pipe ends when the command starts, because the command does not inherit it.
            reason = await asyncio.to_thread(reasons.read, _LONGEST_REASON)
        if reason:
            await self.wait(process)
            raise NotStarted(reason.decode(errors="replace"))
        return process

    async def wait(self, process: asyncio.subprocess.Process) -> int:
        """Return the exit code of a process. After signal n, the exit code is 128 + n."""
        code = await process.wait()
        self._processes.discard(process)
        return _SIGNALS - code if code < 0 else code

    async def run(self, command: Sequence[str], *, seconds: float, output: Path | None = None) -> int:
        """Run a command without input, and return its exit code. Raises `NotStarted`, or TimeoutError after a kill."""
        with (output or Path(os.devnull)).open("ab") as log:
            process = await self.start(
                command, stdin=asyncio.subprocess.DEVNULL, stdout=log.fileno(), stderr=log.fileno()
            )
        try:
            async with asyncio.timeout(seconds):
                return await self.wait(process)
        finally:
            _signal(process, signal.SIGKILL)

    async def end(self, *, grace: float) -> None:
        """Send SIGTERM to the commands, and SIGKILL after `grace` seconds to every process that is left in the room.

        A command might have left processes behind when it ended. These processes are found by their root folder.
        """
        commands = [asyncio.ensure_future(each.wait()) for each in self._processes]
        for each in self._processes:
            _signal(each, signal.SIGTERM)
        if commands:
            await asyncio.wait(commands, timeout=grace)
        while left := await asyncio.to_thread(self._left):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(_KILL_SECONDS)
        if commands:
            await asyncio.wait(commands)

    def _left(self) -> list[int]:
        """Return the processes whose root is this room. A process that has ended but is not reaped has no root."""
        root, found = str(self.root.resolve()), []
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
                if folder.name.isdigit() and str((folder / "root").readlink()) == root:
                    found.append(int(folder.name))
        return found

    def _described(self, told: int) -> str:
        description = {
            "root": str(self.root),
            "mounts": {path: str(folder) for path, folder in sorted(self.mounts.items())},
            "directory": self.directory,
            "environment": {"PATH": _PATH, "HOME": "/root", **self.environment},
            "told": told,
        }
        return json.dumps(description)


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send a signal to a process and its children. A process that has ended is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)

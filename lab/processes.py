"""Child processes of the lab. They log to a file, die with their parent, and can be killed and restarted."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Ask Linux to kill the calling process when its parent's thread ends.

    A child calls this function between fork and exec.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def default_signals() -> None:
    """Restore the default action of the signals that end a program.

    A child calls this function between fork and exec. Under `nohup`, or in the background of a script, the parent
    ignores SIGHUP or SIGINT. Its children would ignore them too, and a shell cannot trap such a signal.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def _prepare() -> None:
    default_signals()
    die_with_parent()


def free_ports(count: int) -> list[int]:
    """Return TCP ports of the loopback interface that stay reserved for the lab until this process ends.

    Each port is bound here, without listening. The kernel therefore gives the port to no other program, and refuses
    connections to it. A server that sets SO_REUSEADDR, as nearly every server does, can still listen on the port, end,
    and listen again.
    """
    return [_reserve() for _ in range(count)]


def free_port() -> int:
    """Return one reserved port, as `free_ports` does."""
    return _reserve()


def _reserve() -> int:
    probe = socket.socket()
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    probe.bind(("127.0.0.1", 0))
    port = int(probe.getsockname()[1])
    probe.detach()  # the socket stays open until this process ends
    return port


class StartError(RuntimeError):
    """A part of the lab could not be built or started, or did not reach a state in time.

    If a program of the lab failed, the message ends with the last lines of its log.
    """


class Child:
    """One child process. Its output is appended to `log`, so that the log of a restarted process is complete."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log = log
        self.env = dict(env) if env is not None else None
        self.user = user
        self.cwd = cwd
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id. Raises RuntimeError if the process was never started."""
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process.pid

    def running(self) -> bool:
        """Return whether the process is alive. A process that is stopped by SIGSTOP is alive."""
        return self._process is not None and self._process.poll() is None

    @property
    def status(self) -> int | None:
        """The exit status of an ended process, which is negative if a signal ended it.

        None if it runs or never started.
        """
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Start the program. Its output is appended to the log."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.env,
                user=self.user,
                cwd=self.cwd,
                start_new_session=True,
                preexec_fn=_prepare,  # noqa: PLW1509  it calls functions of libc alone
            )

    def send(self, number: signal.Signals) -> None:
        """Send the process a signal. SIGSTOP freezes the process and SIGCONT resumes it."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL to the process group and wait for the end of the process."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self, *, timeout: float = 35, how: signal.Signals = signal.SIGTERM) -> int:
        """Send the signal `how` to the process, kill it after `timeout` seconds, and return its exit status."""
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self._process.send_signal(how)
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
        return self._process.wait()

    def wait(self, *, timeout: float) -> int:
        """Wait for a process that ends by itself, and return its exit status.

        Raises `StartError`, after killing the process, if it does not end within `timeout` seconds.
        """
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise StartError(f"{self.name} did not end within {timeout:.0f} s:\n{self.tail()}") from None

    def tail(self, lines: int = 15) -> str:
        """Return the last lines of the log."""
        with contextlib.suppress(FileNotFoundError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return ""

    def wait_until(self, ready: Callable[[], bool], *, timeout: float, every: float = 0.05) -> None:
        """Call `ready()` until it returns true, with a pause of `every` seconds between two calls.

        Raises `StartError` if the process ends first or if `timeout` seconds pass.
        """
        end = time.monotonic() + timeout
        while not ready():
            if not self.running():
                raise StartError(f"{self.name} ended at its start:\n{self.tail()}")
            if time.monotonic() > end:
                raise StartError(f"{self.name} was not ready within {timeout:.0f} s:\n{self.tail()}")
            time.sleep(every)

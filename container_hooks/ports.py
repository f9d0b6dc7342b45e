"""Interfaces between the hook commands and the world: files of the runner, processes in hook Pods, the job's log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol


class Files(Protocol):
    """Files of the runner's container."""

    def send(self, folder: str, *, only: Sequence[str] = ()) -> Iterator[bytes]:
        """Yield a tar archive of the content of a folder, or of the named entries only."""
        ...

    def receive(self, folder: str, chunks: Iterable[bytes]) -> None:
        """Unpack a tar archive into a folder."""
        ...

    def write(self, path: str, content: bytes) -> None:
        """Write one file."""
        ...


class Exec(Protocol):
    """Processes in containers of hook Pods."""

    def run(
        self,
        pod: str,
        container: str,
        command: Sequence[str],
        *,
        stdin: Iterable[bytes] | None = None,
        stdout: Callable[[bytes], None],
        stderr: Callable[[bytes], None],
        deadline: float | None = None,
    ) -> int:
        """Run a command and return its exit code. A command that might have begun is never repeated.

        `deadline` is the number of seconds for the whole call, or None. Raises `ExecLost` if the connection broke, and
        `Gone`, `Forbidden` or `Retryable` if the command was not started.
        """
        ...


class Log(Protocol):
    """Log of the job, as its users see it at GitHub."""

    def line(self, text: str) -> None:
        """Print one line."""
        ...

    def raw(self, data: bytes) -> None:
        """Print output of a step as it is."""
        ...

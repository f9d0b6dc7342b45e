"""Protocols between the commands of container jobs and the world: files of the runner, processes in Pods, the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol


class Files(Protocol):
    """Files of the container `runner`. The user of this protocol has no access to the file system of the container."""

    def send(self, folder: str, *, only: Sequence[str] = ()) -> Iterator[bytes]:
        """Yield the chunks of a tar archive of the content of `folder`.

        If `only` is given, the archive contains only these paths, which are relative to `folder`.
        """
        ...

    def receive(self, folder: str, chunks: Iterable[bytes]) -> None:
        """Unpack a tar archive into `folder`. Missing folders are created."""
        ...

    def write(self, path: str, content: bytes) -> None:
        """Write one file with mode 0644. An existing file is replaced."""
        ...


class Exec(Protocol):
    """Processes in the containers of hook Pods."""

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
        """Run a command in a container, and return its exit code.

        `deadline` is in seconds. A command that might have begun is never repeated. Raises `ExecLost` if the connection
        ends without an exit code, and `Gone`, `Forbidden` or `Retryable` if the API server refuses the connection.
        """
        ...


class Log(Protocol):
    """The log of the job, as the runner shows it."""

    def line(self, text: str) -> None:
        """Write one line."""
        ...

    def raw(self, data: bytes) -> None:
        """Write the output of a process, unchanged."""
        ...

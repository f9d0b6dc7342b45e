"""Files of the runner on the disk of this process, for `ostler hook`. `tar` packs and unpacks them."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from container_hooks.archives import is_whole
from container_hooks.failures import HookFailed, one_line

_CHUNK = 256 * 1024
_MODE = 0o644
_LONGEST_STDERR = 2000


class LocalFiles:
    """Implements `Files` with the disk of this process. A folder that does not exist counts as empty."""

    def send(self, folder: str) -> Iterator[bytes]:
        """Yield the chunks of a tar archive of the content of `folder`."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        command = ["tar", "-cf", "-", "-C", folder, "--", "."]
        # A pipe for the errors could be full, and `tar` would then wait forever.
        with (
            tempfile.TemporaryFile() as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as process,
        ):
            assert process.stdout is not None  # noqa: S101  it is a pipe
            try:
                while chunk := process.stdout.read(_CHUNK):
                    yield chunk
                process.wait()
                said = _end_of(errors)
                if not is_whole(process.returncode, said):
                    raise _failed(f"{folder} of the runner cannot be read", said)
            finally:
                process.kill()

    def receive(self, folder: str, chunks: Iterable[bytes]) -> None:
        """Unpack a tar archive into `folder`."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        command = ["tar", "-xf", "-", "-C", folder]
        with (
            tempfile.TemporaryFile() as errors,
            subprocess.Popen(command, stdin=subprocess.PIPE, stderr=errors) as process,
        ):
            assert process.stdin is not None  # noqa: S101  it is a pipe
            try:
                for chunk in chunks:
                    process.stdin.write(chunk)
                process.stdin.close()
            except BrokenPipeError:
                pass
            except BaseException:
                process.kill()
                raise
            if process.wait() != 0:
                raise _failed(f"files cannot be written into {folder} of the runner", _end_of(errors))

    def write(self, path: str, content: bytes) -> None:
        """Write one file with mode 0644, and make its folder."""
        file = Path(path)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            file.chmod(_MODE)
        except OSError as error:
            raise HookFailed(f"{path} of the runner cannot be written ({error.strerror})") from error


def _end_of(errors: IO[bytes]) -> bytes:
    """Return the last bytes that a process wrote into a file."""
    errors.seek(max(errors.seek(0, os.SEEK_END) - _LONGEST_STDERR, 0))
    return errors.read()


def _failed(what: str, said: bytes) -> HookFailed:
    detail = one_line(said.decode("utf-8", "replace"), longest=300)
    return HookFailed(f"{what}: {detail}; check its permissions and the free disk space")

"""Log of one container, in the format of the container runtime interface (CRI): `TIME stdout F|P CONTENT`.

An entry with `P` has a part of a line, and an entry with `F` the end of a line. As with containerd, a part has at most
16 KiB, and a last line without a line feed is a part. A part that is left out takes the time of its line with it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path

_LONGEST_PART = 16 * 1024
_CHECK_SECONDS = 0.05
_NANOSECONDS = 10**9


class LogWriter:
    """Writes the output of a container into its log. `pipe` is the end of a pipe for the container."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._heard, self.pipe = os.pipe()
        self._latest = 0

    async def copy(self) -> None:
        """Copy until every writer has closed the pipe. The caller must close its own end."""
        heard = asyncio.StreamReader()
        with os.fdopen(self._heard, "rb", buffering=0) as pipe, self._path.open("ab", buffering=0) as log:
            loop = asyncio.get_running_loop()
            await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(heard), pipe)
            rest = b""
            while piece := await heard.read(64 * 1024):
                *lines, rest = (rest + piece).split(b"\n")
                log.write(b"".join(map(self._entries, lines)))
                while len(rest) >= _LONGEST_PART:
                    log.write(self._entry(b"P", rest[:_LONGEST_PART]))
                    rest = rest[_LONGEST_PART:]
            if rest:
                log.write(self._entry(b"P", rest))

    def _entries(self, line: bytes) -> bytes:
        parts = [line[n : n + _LONGEST_PART] for n in range(0, len(line), _LONGEST_PART)] or [b""]
        return b"".join(self._entry(b"F" if part is parts[-1] else b"P", part) for part in parts)

    def _entry(self, tag: bytes, content: bytes) -> bytes:
        self._latest = max(time.time_ns(), self._latest + 1)
        return b"%s stdout %s %s\n" % (_formatted(self._latest), tag, content)


async def read_log(
    path: Path, *, times: bool, since: str | None, follow: Callable[[], bool] | None
) -> AsyncIterator[bytes]:
    """Yield the lines of a log. If `follow` is given, wait for more of them while it returns True."""
    first = None if since is None else datetime.fromisoformat(since).timestamp() * _NANOSECONDS
    begins = True
    with path.open("rb") as log:
        while True:
            lives = follow is not None and follow()  # before the read: what is written later is read in the next round
            while (entry := log.readline()).endswith(b"\n"):
                at, _stream, tag, content = entry[:-1].split(b" ", 3)
                prefix = at + b" " if times and begins else b""
                begins = tag == b"F"
                if first is not None and datetime.fromisoformat(at.decode()).timestamp() * _NANOSECONDS < first:
                    continue
                yield prefix + content + (b"\n" if begins else b"")
            log.seek(-len(entry), os.SEEK_CUR)
            if not lives:
                return
            await asyncio.sleep(_CHECK_SECONDS)


def _formatted(nanoseconds: int) -> bytes:
    second, rest = divmod(nanoseconds, _NANOSECONDS)
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09}Z".encode()

"""Bounded pipes of bytes between the thread of a command and the threads of the socket."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

from ostler.errors import OstlerError


class PipeBroken(OstlerError):
    """The other end of a pipe is gone, or it moved no bytes for too long."""


class Pipe:
    """Passes chunks from one thread to another. A full pipe makes the writer wait.

    `most` is the number of bytes that a pipe holds before its writer waits. `stall` is the number of seconds without
    progress after which both ends raise `PipeBroken`. None means no limit.
    """

    def __init__(self, *, most: int, stall: float | None) -> None:
        self._most = most
        self._stall = stall
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._ended = False
        self._broken: str | None = None
        self._changed = threading.Condition()

    def put(self, chunk: bytes) -> None:
        """Write a chunk. Raises `PipeBroken` if the pipe was aborted, or if it is full for `stall` seconds."""
        with self._changed:
            moved = self._changed.wait_for(lambda: self._broken is not None or self._size < self._most, self._stall)
            if self._broken is not None:
                raise PipeBroken(self._broken)
            if not moved:
                raise PipeBroken(f"no bytes were read for {self._stall:g} s")
            self._chunks.append(chunk)
            self._size += len(chunk)
            self._changed.notify_all()

    def end(self) -> None:
        """End the pipe. The reader receives the remaining chunks, and then the end."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def abort(self, why: str) -> None:
        """Discard the remaining chunks. Both ends raise `PipeBroken` from now on."""
        with self._changed:
            self._broken = self._broken or why
            self._chunks.clear()
            self._changed.notify_all()

    def chunks(self, *, every: float | None = None) -> Iterator[bytes]:
        """Yield the chunks until the end. Raises `PipeBroken` if the pipe was aborted or stalls.

        If `every` is given, the pipe does not stall. After `every` seconds without a chunk, an empty chunk is yielded,
        so that the caller can check whether its client is still connected.
        """
        while (chunk := self._next(every)) is not None:
            yield chunk

    def _next(self, every: float | None) -> bytes | None:
        within = self._stall if every is None else every
        with self._changed:
            moved = self._changed.wait_for(lambda: self._broken is not None or self._chunks or self._ended, within)
            if self._broken is not None:
                raise PipeBroken(self._broken)
            if not moved and every is not None:
                return b""
            if not moved:
                raise PipeBroken(f"no bytes arrived for {within:g} s")
            if not self._chunks:
                return None
            # Small chunks are joined, so that frequent small outputs of a process need few packets.
            found = b"".join(self._chunks)
            self._chunks.clear()
            self._size = 0
            self._changed.notify_all()
            return found

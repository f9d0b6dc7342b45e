"""HTTP/1.1 as bytes: enough parsing to forward messages unchanged and to find the end of each message."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Self

READ_SIZE = 65_536
LARGEST_HEAD = 262_144
_NO_BODY = {204, 304}


class ClosedError(ConnectionError):
    """The peer closed the connection before or in the middle of a message."""


class MalformedError(ConnectionError):
    """The received bytes are not HTTP/1.1."""


@dataclass(frozen=True)
class Head:
    """Start line and headers of a message, as received."""

    start: str
    headers: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """Return the head in `raw`, which ends with an empty line. Raises `MalformedError`."""
        lines = raw.decode("latin-1").split("\r\n")
        headers = []
        for line in lines[1:]:
            if not line:
                break
            name, colon, value = line.partition(":")
            if not colon:
                raise MalformedError("a header has no colon")
            headers.append((name, value.strip()))
        return cls(lines[0], tuple(headers))

    def get(self, name: str) -> str | None:
        """Return the first value of the header `name`, which is in lower case, or None."""
        return next((value for key, value in self.headers if key.lower() == name), None)

    def having(self, name: str, value: str) -> Head:
        """Return a copy in which the header `name` has exactly this value."""
        kept = tuple((key, old) for key, old in self.headers if key.lower() != name.lower())
        return Head(self.start, (*kept, (name, value)))

    def render(self) -> bytes:
        """Return the bytes to send."""
        lines = [self.start, *(f"{name}: {value}" for name, value in self.headers), "", ""]
        return "\r\n".join(lines).encode("latin-1")

    @property
    def words(self) -> list[str]:
        """The words of the start line. A request has method, target, version; an answer has version, status, reason.

        Raises `MalformedError` if the line has fewer than two words.
        """
        words = self.start.split(" ", 2)
        if len(words) < 2:  # noqa: PLR2004 - see the docstring
            raise MalformedError("the start line has fewer than two words")
        return words

    @property
    def status(self) -> int:
        """The status of an answer. Raises `MalformedError` if it is not a number."""
        if not self.words[1].isdigit():
            raise MalformedError("the status is not a number")
        return int(self.words[1])

    @property
    def keeps_alive(self) -> bool:
        """Whether the connection stays open after this message."""
        return (self.get("connection") or "").lower() != "close" and "HTTP/1.0" not in self.start


class Wire:
    """One connection with its own buffer, so that no byte is lost while the end of the connection is awaited."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._buffer = bytearray()

    async def fill(self) -> bool:
        """Wait for more bytes. Return False at the end of the stream. Cancelling this call loses no bytes."""
        data = await self._reader.read(READ_SIZE)
        self._buffer += data
        return bool(data)

    async def ended(self) -> None:
        """Return when the peer has closed the connection. Bytes that arrive before stay in the buffer."""
        with contextlib.suppress(ConnectionError):
            while await self.fill():
                if len(self._buffer) > LARGEST_HEAD:
                    await asyncio.Event().wait()  # the peer pipelines requests: stop reading until they are served

    async def head(self) -> Head:
        """Read one head. Raises `ClosedError` if the stream ends first."""
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if len(self._buffer) > LARGEST_HEAD:
                raise MalformedError(f"the headers have more than {LARGEST_HEAD} bytes")
            if not await self.fill():
                raise ClosedError("the connection was closed before the headers")
        return Head.parse(self._take(end + 4))

    async def body(self, head: Head, *, of_answer_to: str | None = None) -> AsyncIterator[bytes]:
        """Yield the body of a message with its framing, as received.

        For an answer, `of_answer_to` is the method of its request; None means that the message is a request.
        """
        if of_answer_to is not None and (of_answer_to == "HEAD" or head.status in _NO_BODY):
            return
        if "chunked" in (head.get("transfer-encoding") or "").lower():
            async for piece in self._chunks():
                yield piece
        elif (length := head.get("content-length")) is not None:
            if not length.isdigit():
                raise MalformedError("Content-Length is not a number")
            left = int(length)
            while left:
                piece = await self._some(left)
                left -= len(piece)
                yield piece
        elif of_answer_to is not None:
            async for piece in self.rest():
                yield piece

    async def rest(self) -> AsyncIterator[bytes]:
        """Yield everything until the end of the stream."""
        while self._buffer or await self.fill():
            yield self._take(len(self._buffer))

    async def _chunks(self) -> AsyncIterator[bytes]:
        while True:
            line = await self._line()
            try:
                left = int(line.split(b";")[0], 16)
            except ValueError as error:
                raise MalformedError("a chunk has no size") from error
            if left == 0:
                yield line
                while (trailer := await self._line()) != b"\r\n":
                    yield trailer
                yield trailer
                return
            yield line
            left += 2  # the line end after the chunk
            while left:
                piece = await self._some(left)
                left -= len(piece)
                yield piece

    async def _line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            if not await self.fill():
                raise ClosedError("the connection was closed inside a body")
        return self._take(end + 2)

    async def _some(self, most: int) -> bytes:
        if not self._buffer and not await self.fill():
            raise ClosedError("the connection was closed inside a body")
        return self._take(min(most, len(self._buffer)))

    def _take(self, count: int) -> bytes:
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    async def send(self, data: bytes) -> None:
        """Send bytes. Raises ConnectionError if the peer has closed the connection."""
        self.writer.write(data)
        await self.writer.drain()

    @property
    def stale(self) -> bool:
        """Whether the peer is known to have closed the connection."""
        return self._reader.at_eof() or self.writer.is_closing()

    def reset(self) -> None:
        """End the connection with a TCP reset, and discard bytes that are not sent yet."""
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def close(self) -> None:
        """Close the connection with a normal TCP shutdown."""
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

"""Limits on the memory and the time that a client can use before it is authenticated.

httptools, unlike h11, limits neither sizes nor times, and it reports a header field only when the field has ended. This
protocol therefore counts the bytes that came since the parser last reported anything.

The protocol answers one request of a connection at a time. If it answers before a request has arrived completely, it
closes the connection after the answer. It also limits the time in which a client must send a request and read an
answer.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping
from typing import Any

import httptools
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ostler.logging import get_logger
from web.edge.connections import Connections
from web.edge.refused_log import RefusedLog

LARGEST_HEAD = 32 * 1024
"""Most bytes of the request line and the headers together. A token may use 8 KiB of them.

Each header counts as `FIELD` bytes more than its name and value.
"""

FIELD = 32
"""Bytes that are counted for each header beside its name and value. Even an empty header costs memory and time."""

HEAD_WITHIN = 10.0
"""Seconds within which all headers must arrive, from the connection or from the first byte of a later request."""

BODY_WITHIN = 10.0
"""Seconds within which a handler must have read the body. GitHub itself gives up after ten seconds."""

MESSAGE_WITHIN = 15.0
"""Seconds from the headers to the end of the body and trailers. Handlers that read a body answer 408 earlier."""

READ_WITHIN = 30.0
"""Seconds within which a client must read an answer that waits in the write buffer."""

LINGER = 2.0
"""Seconds during which the rest of a request is discarded, so that the client can read an early answer."""

MOST_DISCARDED = 1024 * 1024
"""Most bytes of one request that are discarded. A client that sends more is dropped."""

PIECES = 1024
"""Number of pieces of a body that may have any size. Further pieces must have `PIECE` bytes on average."""

PIECE = 64

_CONNECTION = "ostler.connection"
PORT = "ostler.port"
"""Key in an ASGI scope. Its value is the local port of the connection."""

log = get_logger(__name__)
_malformed = RefusedLog(log, "http.malformed")


class _Stopped(Exception):
    """Stops the parser in the middle of a read, because the remaining bytes must not be parsed."""


class BoundedProtocol(HttpToolsProtocol):
    """Uvicorn's protocol, extended to drop clients that send too much, hold too much memory or are too slow.

    `caps` maps a local port to the cap of its listener. A port that is missing from `caps` has no cap.
    """

    def __init__(self, *arguments: Any, caps: Mapping[int, Connections] | None = None, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._caps = caps if caps is not None else {}
        self._connections = Connections(1)
        self._timer: asyncio.TimerHandle | None = None
        self._reader: asyncio.TimerHandle | None = None
        self._head = 0
        self._pieces = 0
        self._body = 0
        self._unreported = 0
        self._discarded = 0
        self._reported = False
        self._in_message = False
        self._in_body = False
        self._discards = False
        self._dropped = False
        self._early: _Early | None = None

    # Connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer for the first headers."""
        super().connection_made(transport)
        self._connections = self._caps.get(self._port, self._connections)
        self._expect(HEAD_WITHIN)
        self._connections.waits(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers of the connection and break its reference cycles."""
        self._connections.forget(self)
        self._expect(None)
        self._expect_reader(None)
        super().connection_lost(exc)
        if self._early is not None:
            self._early.release()
            self._early = None

    def proven(self) -> None:
        """Remove the connection from the cap until its request is answered."""
        self._connections.forget(self)

    def drop(self) -> None:
        """Abort the connection."""
        self._dropped = True
        self._expect(None)
        self.transport.abort()

    def shutdown(self) -> None:
        """Close the connection when its request is answered. Without a request, close it at once."""
        if self._early is not None:
            self._early.keep_alive = False
        super().shutdown()

    # Incoming bytes

    def data_received(self, data: bytes) -> None:
        """Parse the bytes. Drop the client if it exceeds a limit of this protocol."""
        if self._dropped:
            return
        if self._discards:
            self._discarded += len(data)
            if self._discarded > MOST_DISCARDED:
                self.drop()
            return
        self._unset_keepalive_if_required()
        if not self._in_message and self._timer is None and not self._answering:
            self._expect(HEAD_WITHIN)
        self._reported = False
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # The remaining bytes are of a protocol that Ostler does not speak, or a body that no header announced.
            self._answer_and_close()
        except httptools.HttpParserError:
            if not self._dropped and not self._discards:
                self._refuse()
        else:
            self._measure(len(data))

    def on_message_begin(self) -> None:
        """Start to count the head of a request."""
        if self.cycle is not None and not self.cycle.response_complete:
            # A second request came while the first is being answered. The client must send it again on another
            # connection.
            self._answer_and_close()
            raise _Stopped
        super().on_message_begin()
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]
        # The protocol refers to the scope. A strong reference back would be a cycle and keep a closed connection in
        # memory for minutes.
        scope[_CONNECTION] = weakref.ref(self)
        scope[PORT] = self._port
        self._in_message = True
        self._reported = True
        self._head = self._pieces = self._body = 0
        if self._timer is None:
            self._expect(HEAD_WITHIN)

    def on_url(self, url: bytes) -> None:
        """Count the bytes of the request line."""
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count the bytes of a header or a trailer."""
        self._count(len(name) + len(value) + FIELD)
        if not self._in_body:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start to answer the request, whose headers arrived in time."""
        self._reported = True
        if self.parser.should_upgrade() and _has_body(self.headers):
            # The parser would parse the body as the next request.
            self._refuse()
            raise _Stopped
        self._expect(None)
        self._in_body = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Count one piece of the body. Drop the client if its pieces are too many and too small."""
        self._reported = True
        self._pieces += 1
        self._body += len(body)
        if self._pieces > PIECES + self._body // PIECE:
            self._stop()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Record that the whole request has arrived, so that Ostler must answer next."""
        self._reported = True
        self._in_message = self._in_body = False
        self._expect(None)
        if self._early is not None:
            self._early.came_whole()
            self._early = None
        super().on_message_complete()
        if not self.cycle.response_complete:
            self._connections.works(self)

    def _measure(self, size: int) -> None:
        """Drop a client whose header field does not end.

        Start the timer for the rest of a request whose headers are complete.
        """
        if self._reported:
            self._unreported = 0
        else:
            self._unreported += size
            if self._unreported > LARGEST_HEAD:
                self.drop()
                return
        if self._in_body and self._early is None:
            self._early = _Early(self)
            self._expect(MESSAGE_WITHIN)

    def _count(self, size: int) -> None:
        self._reported = True
        self._head += size
        if self._head > LARGEST_HEAD:
            self._stop()

    def _stop(self) -> None:
        self.drop()
        raise _Stopped

    def _refuse(self) -> None:
        """Answer 400 to bytes that are not HTTP, and close the connection."""
        self._discards = True
        self._expect(READ_WITHIN)
        _malformed.add(client=self.client[0] if self.client else None)
        self.send_400_response("Invalid HTTP request received.")

    def _answer_and_close(self) -> None:
        """Discard all further bytes, and close the connection once the current request is answered."""
        self._discards = True
        if self._answering:
            self._expect(None)  # the answer might be that of a held poll
            self.cycle.keep_alive = False
        else:
            self.transport.close()

    # Outgoing bytes

    def on_response_complete(self) -> None:
        """Record that the connection waits for its client again.

        If the connection is closing, limit the time in which the client must read the answer.
        """
        super().on_response_complete()
        if not self._dropped:
            self._connections.waits(self)
            if self.transport.is_closing():
                self._expect(READ_WITHIN)

    def linger(self) -> None:
        """Close after an early answer: end the write side, and give the client `LINGER` seconds to read the answer."""
        if self._discards or self.transport.is_closing():
            return
        self._discards = True
        self._expect(LINGER)
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def pause_writing(self) -> None:
        """Start the timer within which the client must read the bytes in the write buffer."""
        super().pause_writing()
        self._expect_reader(READ_WITHIN)

    def resume_writing(self) -> None:
        """Stop the timer of `pause_writing`, because the client reads again."""
        self._expect_reader(None)
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection. Abort it if the client has not even read the last answer."""
        if self.transport.get_write_buffer_size():
            self.drop()
        else:
            super().timeout_keep_alive_handler()

    # Timers

    @property
    def _answering(self) -> bool:
        """Return whether a request still needs its answer."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _port(self) -> int:
        return (self.server[1] if self.server is not None else None) or 0

    def _expect(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self.drop)

    def _expect_reader(self, seconds: float | None) -> None:
        if self._reader is not None:
            self._reader.cancel()
        self._reader = None if seconds is None else self.loop.call_later(seconds, self.drop)


class _Early:
    """Transport of a request that has not arrived completely.

    After an early answer, it closes the connection by `linger`.
    """

    __slots__ = ("_cycle", "_protocol", "keep_alive")

    def __init__(self, protocol: BoundedProtocol) -> None:
        self._protocol = protocol
        self._cycle = protocol.cycle
        self.keep_alive = self._cycle.keep_alive
        self._cycle.keep_alive = False
        self._cycle.transport = self  # type: ignore[assignment]

    def release(self) -> None:
        """Give the real transport back to the request."""
        self._cycle.transport = self._protocol.transport

    def came_whole(self) -> None:
        """Give the real transport back, because the request has arrived completely.

        The client may then send another request.
        """
        self.release()
        if not self._cycle.response_started:  # if the answer has started, it has announced the close
            self._cycle.keep_alive = self.keep_alive

    def write(self, data: bytes) -> None:
        """Send a part of the answer."""
        self._protocol.transport.write(data)

    def close(self) -> None:
        """End the connection after the answer."""
        self._protocol.linger()

    def is_closing(self) -> bool:
        """Return whether the connection is ending."""
        return self._protocol.transport.is_closing()


def proven(scope: Scope) -> None:
    """Remove the connection of a request from the cap. Call it for a poll or a webhook after authentication."""
    reference = scope.get(_CONNECTION)
    connection = None if reference is None else reference()
    if isinstance(connection, BoundedProtocol):
        connection.proven()


def _has_body(headers: list[tuple[bytes, bytes]]) -> bool:
    for name, value in headers:
        if name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0 \t")):
            return True
    return False

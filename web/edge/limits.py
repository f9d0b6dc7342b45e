"""Limits on the memory and the time that a client can use before Ostler has authenticated the client.

The parser httptools limits neither sizes nor times. It reports a header field only when the field has ended. The
protocol in this module therefore counts the bytes that have arrived since the last report of the parser.

The protocol answers one request of a connection at a time. If the answer is sent before the request has arrived
completely, the protocol closes the connection after the answer. The protocol also limits the time that a client has for
sending a request and for reading an answer.
"""

from __future__ import annotations

import asyncio
import socket
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
"""Maximum number of bytes of the request line and the headers together. A token may use 8 KiB of them.

For each header, `FIELD` bytes are added to the length of its name and value.
"""

FIELD = 32
"""Bytes that are counted for each header in addition to its name and value.

Even an empty header costs memory and time.
"""

HEAD_WITHIN = 10.0
"""Seconds within which all headers of a request must arrive.

The time of the first request starts with the connection. The time of a later request starts with its first byte.
"""

BODY_WITHIN = 10.0
"""Seconds within which a handler must have read the body. After this time, the handler answers 408.

A longer time is of no use for a webhook, because GitHub waits at most ten seconds for an answer.
"""

MESSAGE_WITHIN = 15.0
"""Seconds within which the body and the trailers must arrive after the headers.

After this time, the connection is dropped. A handler that reads the body answers 408 earlier, because `BODY_WITHIN` is
shorter. This limit therefore affects only requests whose handler does not read the body.
"""

READ_WITHIN = 30.0
"""Seconds within which a client must read an answer that waits in the write buffer of the connection."""

STREAM_BUFFER = 64 * 1024
"""Bytes of a stream that the kernel buffers for a client that does not read."""

LINGER = 2.0
"""Seconds for which Ostler reads and discards the rest of a request that it has already answered.

During this time the client can read the answer.
"""

MOST_DISCARDED = 1024 * 1024
"""Maximum number of discarded bytes of one request. If a client sends more, its connection is dropped."""

PIECES = 1024
"""Number of pieces of a body that may be of any size.

All further pieces must have at least `PIECE` bytes on average.
"""

PIECE = 64

_CONNECTION = "ostler.connection"
PORT = "ostler.port"
"""Key in an ASGI scope. Its value is the local port of the connection."""

log = get_logger(__name__)
_malformed = RefusedLog(log, "http.malformed_request_refused")


class _Stopped(Exception):
    """Raised to stop the parser in the middle of a read, because the remaining bytes must not be parsed."""


class BoundedProtocol(HttpToolsProtocol):
    """Uvicorn's protocol with limits. It drops clients that send too much, use too much memory or are too slow.

    `caps` maps a local port to the connection cap of its listener. The connections of a port that is missing in `caps`
    have no cap.
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
        """Start the timer for the headers of the first request."""
        super().connection_made(transport)
        self._connections = self._caps.get(self._port, self._connections)
        self._expect(HEAD_WITHIN)
        self._connections.waits(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers of the connection and break the reference cycles of the connection."""
        self._connections.remove(self)
        self._expect(None)
        self._expect_reader(None)
        super().connection_lost(exc)
        if self._early is not None:
            self._early.release()
            self._early = None

    def proven(self) -> None:
        """Remove the connection from the cap until the present request is answered."""
        self._connections.remove(self)

    def drop(self) -> None:
        """Abort the connection."""
        self._dropped = True
        self._expect(None)
        self.transport.abort()

    def shutdown(self) -> None:
        """Close the connection once the present request is answered.

        If there is no request, close the connection at once.
        """
        if self._early is not None:
            self._early.keep_alive = False
        super().shutdown()

    # Incoming bytes

    def data_received(self, data: bytes) -> None:
        """Parse bytes from the client. Drop the client if it exceeds a limit of this protocol."""
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
            # The remaining bytes are of a protocol that Ostler does not support, or a body that no header announced.
            self._answer_and_close()
        except httptools.HttpParserError:
            if not self._dropped and not self._discards:
                self._refuse()
        else:
            self._measure(len(data))

    def on_message_begin(self) -> None:
        """Start to count the bytes of the head of a request."""
        if self.cycle is not None and not self.cycle.response_complete:
            # A second request arrived before the first one was answered. The client must send the second request again
            # on another connection.
            self._answer_and_close()
            raise _Stopped
        super().on_message_begin()
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]
        # The protocol has a reference to the scope. A strong reference from the scope would make a cycle, which would
        # keep a closed connection in memory for minutes.
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
        """Stop the timer for the headers, and start to answer the request."""
        self._reported = True
        if self.parser.should_upgrade() and _has_body(self.headers):
            # The parser would parse the body as the next request.
            self._refuse()
            raise _Stopped
        self._expect(None)
        self._in_body = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Count one piece of the body. Drop the client if the body has too many pieces that are too small."""
        self._reported = True
        self._pieces += 1
        self._body += len(body)
        if self._pieces > PIECES + self._body // PIECE:
            self._stop()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Record that the whole request has arrived. Ostler must answer the request next."""
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
        """Drop the client if it has sent more than `LARGEST_HEAD` bytes since the last report of the parser.

        A client exceeds this limit if it sends a header field without an end. If the headers are complete and the rest
        of the request is missing, start the timer for the rest of the request.
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
        """Answer 400 to bytes that are not valid HTTP, and close the connection."""
        self._discards = True
        self._expect(READ_WITHIN)
        _malformed.add(client=self.client[0] if self.client else None)
        self.send_400_response("Invalid HTTP request received.")

    def _answer_and_close(self) -> None:
        """Discard all further bytes, and close the connection once the present request is answered."""
        self._discards = True
        if self._answering:
            self._expect(None)  # the request might be a held poll, which is answered later
            self.cycle.keep_alive = False
        else:
            self.transport.close()

    # Outgoing bytes

    def on_response_complete(self) -> None:
        """Record that Ostler has answered, so that the connection waits for its client again.

        If the connection is closing, limit the time in which the client must read the answer.
        """
        super().on_response_complete()
        if not self._dropped:
            self._connections.waits(self)
            if self.transport.is_closing():
                self._expect(READ_WITHIN)

    def linger(self) -> None:
        """Close the connection after an answer that was sent before the whole request had arrived.

        End the write side at once. Give the client `LINGER` seconds to read the answer before the connection is
        dropped.
        """
        if self._discards or self.transport.is_closing():
            return
        self._discards = True
        self._expect(LINGER)
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def pause_writing(self) -> None:
        """Start the timer of the write buffer. Before it expires, the client must read the bytes in this buffer."""
        super().pause_writing()
        self._expect_reader(READ_WITHIN)

    def resume_writing(self) -> None:
        """Stop the timer of `pause_writing`, because the client reads again."""
        self._expect_reader(None)
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection.

        If the client has not even read the last answer, abort the connection.
        """
        if self.transport.get_write_buffer_size():
            self.drop()
        else:
            super().timeout_keep_alive_handler()

    # Timers

    @property
    def _answering(self) -> bool:
        """Return True while a request has no complete answer; False if every request has been answered."""
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
    """Replaces the transport of a request until the request has arrived completely.

    If the answer is complete before the request has arrived, `linger` closes the connection.
    """

    __slots__ = ("_cycle", "_protocol", "keep_alive")

    def __init__(self, protocol: BoundedProtocol) -> None:
        self._protocol = protocol
        self._cycle = protocol.cycle
        self.keep_alive = self._cycle.keep_alive
        self._cycle.keep_alive = False
        self._cycle.transport = self  # type: ignore[assignment]

    def release(self) -> None:
        """Let the request use the real transport again."""
        self._cycle.transport = self._protocol.transport

    def came_whole(self) -> None:
        """Let the request use the real transport again, because the request has arrived completely.

        After the answer, the client may send another request on the connection.
        """
        self.release()
        if not self._cycle.response_started:  # an answer that has started has announced the close already
            self._cycle.keep_alive = self.keep_alive

    def write(self, data: bytes) -> None:
        """Send a part of the answer."""
        self._protocol.transport.write(data)

    def close(self) -> None:
        """Close the connection with `linger`, because the answer is complete."""
        self._protocol.linger()

    def is_closing(self) -> bool:
        """Return whether the real transport is closing."""
        return self._protocol.transport.is_closing()


def proven(scope: Scope) -> None:
    """Remove the connection of a request from the cap.

    Call this function for a poll after its token was verified, and for a webhook after its signature was verified.
    """
    reference = scope.get(_CONNECTION)
    connection = None if reference is None else reference()
    if isinstance(connection, BoundedProtocol):
        connection.proven()


def streams(scope: Scope) -> None:
    """Remove the connection of a stream from the cap, and limit the bytes that the kernel buffers for its client.

    Call this function for a stream after its session was verified. Without the limit, the kernel would take megabytes
    for a client that does not read, and `READ_WITHIN` would count only after that. The client might already be gone.
    """
    proven(scope)
    reference = scope.get(_CONNECTION)
    connection = None if reference is None else reference()
    if isinstance(connection, BoundedProtocol) and not connection.transport.is_closing():
        connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, STREAM_BUFFER)


def _has_body(headers: list[tuple[bytes, bytes]]) -> bool:
    for name, value in headers:
        if name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0 \t")):
            return True
    return False

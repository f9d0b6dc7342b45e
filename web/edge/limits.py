"""Bounds on the memory and the time that a client can take before it has proven anything.

httptools, unlike h11, bounds neither sizes nor times, and it reports a header field only when the field has ended.
So this protocol counts the bytes that came since the parser last reported anything. It answers one request of a
connection at a time, closes after an answer that was given before its request had come whole, and limits how long a
client may take to send a request or to read an answer.
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
"""Bytes of request line and headers, each header counted as `FIELD` more; a token may have 8 KiB of them."""

FIELD = 32
"""Bytes that a header counts for beside its name and value: it costs memory and time when it is empty."""

HEAD_WITHIN = 10.0
"""Seconds from the connection, or from the first byte of a later request, to the end of its headers."""

BODY_WITHIN = 10.0
"""Seconds in which a body must have come: GitHub itself gives up after ten."""

MESSAGE_WITHIN = 15.0
"""Seconds from the headers to the end of body and trailers; what reads a body answers 408 before."""

READ_WITHIN = 30.0
"""Seconds that a client may take to read an answer that waits to be sent."""

LINGER = 2.0
"""Seconds for which the rest of a request is thrown away, so that its client can read the early answer."""

MOST_DISCARDED = 1024 * 1024
"""Bytes that are thrown away of one request."""

PIECES = 1024
"""Pieces of a body that may be small; above this a piece must have `PIECE` bytes on average."""

PIECE = 64

_CONNECTION = "ostler.connection"
PORT = "ostler.port"
"""Key of a scope: the local port that the connection came to."""

log = get_logger(__name__)
_malformed = RefusedLog(log, "http.malformed")


class _Stopped(Exception):
    """Ends the parser in the middle of a read: the rest of it is not to be parsed."""


class BoundedProtocol(HttpToolsProtocol):
    """Uvicorn's protocol, which drops clients that send or hold too much, or take too long.

    `caps` has the cap of each listener by its local port; a port without one has no cap.
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

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time in which the first headers must come."""
        super().connection_made(transport)
        self._connections = self._caps.get(self._port, self._connections)
        self._expect(HEAD_WITHIN)
        self._connections.waits(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers of the connection, and end its reference cycles."""
        self._connections.forget(self)
        self._expect(None)
        self._expect_reader(None)
        super().connection_lost(exc)
        if self._early is not None:
            self._early.release()
            self._early = None

    def proven(self) -> None:
        """Take the connection out of the cap until its request is answered."""
        self._connections.forget(self)

    def drop(self) -> None:
        """Abort the connection."""
        self._dropped = True
        self._expect(None)
        self.transport.abort()

    def shutdown(self) -> None:
        """Close when the request is answered, at once when there is none."""
        if self._early is not None:
            self._early.keep_alive = False
        super().shutdown()

    # What comes

    def data_received(self, data: bytes) -> None:
        """Parse the bytes, and drop the client when they exceed a bound of this protocol."""
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
            # What follows is of a protocol that nobody here speaks, or the body of a request that has none.
            self._answer_and_close()
        except httptools.HttpParserError:
            if not self._dropped and not self._discards:
                self._refuse()
        else:
            self._measure(len(data))

    def on_message_begin(self) -> None:
        """Count a request's head from here."""
        if self.cycle is not None and not self.cycle.response_complete:
            # A second request while the first is being answered: its client sends it again on another connection.
            self._answer_and_close()
            raise _Stopped
        super().on_message_begin()
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]
        # The protocol has the scope: a strong reference would be a cycle, which keeps a closed connection for minutes.
        scope[_CONNECTION] = weakref.ref(self)
        scope[PORT] = self._port
        self._in_message = True
        self._reported = True
        self._head = self._pieces = self._body = 0
        if self._timer is None:
            self._expect(HEAD_WITHIN)

    def on_url(self, url: bytes) -> None:
        """Count the request line."""
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header or a trailer."""
        self._count(len(name) + len(value) + FIELD)
        if not self._in_body:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Have the request answered; its head came in time."""
        self._reported = True
        if self.parser.should_upgrade() and _has_body(self.headers):
            # The parser would take the body for the next request.
            self._refuse()
            raise _Stopped
        self._expect(None)
        self._in_body = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Count a piece of the body."""
        self._reported = True
        self._pieces += 1
        self._body += len(body)
        if self._pieces > PIECES + self._body // PIECE:
            self._stop()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request came whole: the next step is ours."""
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
        """Drop a client whose field does not end, and start the time for the rest of a request."""
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
        """Answer 400 to bytes that are not HTTP, and close."""
        self._discards = True
        self._expect(READ_WITHIN)
        _malformed.add(client=self.client[0] if self.client else None)
        self.send_400_response("Invalid HTTP request received.")

    def _answer_and_close(self) -> None:
        """Throw away what comes from now on, and close once the current request is answered."""
        self._discards = True
        if self._answering:
            self._expect(None)  # the answer may be a held poll's
            self.cycle.keep_alive = False
        else:
            self.transport.close()

    # What goes

    def on_response_complete(self) -> None:
        """Wait for the client again, a limited time when an answer has still to be read."""
        super().on_response_complete()
        if not self._dropped:
            self._connections.waits(self)
            if self.transport.is_closing():
                self._expect(READ_WITHIN)

    def linger(self) -> None:
        """Close after an early answer: say so, and give the client a moment to read it."""
        if self._discards or self.transport.is_closing():
            return
        self._discards = True
        self._expect(LINGER)
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def pause_writing(self) -> None:
        """Start the time in which the client must read what waits to be sent."""
        super().pause_writing()
        self._expect_reader(READ_WITHIN)

    def resume_writing(self) -> None:
        """The client reads."""
        self._expect_reader(None)
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, at once when its client did not even read the last answer."""
        if self.transport.get_write_buffer_size():
            self.drop()
        else:
            super().timeout_keep_alive_handler()

    # Timers

    @property
    def _answering(self) -> bool:
        """Whether a request is still to be answered."""
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
    """The transport of a request that has not come whole: an answer to it ends the connection, and lingers."""

    __slots__ = ("_cycle", "_protocol", "keep_alive")

    def __init__(self, protocol: BoundedProtocol) -> None:
        self._protocol = protocol
        self._cycle = protocol.cycle
        self.keep_alive = self._cycle.keep_alive
        self._cycle.keep_alive = False
        self._cycle.transport = self  # type: ignore[assignment]

    def release(self) -> None:
        """Give the connection back to its request."""
        self._cycle.transport = self._protocol.transport

    def came_whole(self) -> None:
        """Give the connection back to its request, whose client may send another one."""
        self.release()
        if not self._cycle.response_started:  # else its answer said that the connection ends
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
    """Take the connection of a request out of the cap: its token was verified, and it is held."""
    reference = scope.get(_CONNECTION)
    connection = None if reference is None else reference()
    if isinstance(connection, BoundedProtocol):
        connection.proven()


def _has_body(headers: list[tuple[bytes, bytes]]) -> bool:
    for name, value in headers:
        if name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0 \t")):
            return True
    return False

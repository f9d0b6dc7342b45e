"""Bounds on what a client may make us hold before it has proven anything.

httptools, unlike h11, bounds neither the size of headers nor the time in which they come.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LARGEST_HEAD = 32 * 1024
"""Bytes of request line and headers; a token may have 8 KiB of them."""

HEAD_WITHIN = 10.0
"""Seconds from the connection, or from the first byte of a later request, to the end of its headers."""

BODY_WITHIN = 10.0
"""Seconds in which a body must have come: GitHub itself gives up after ten."""


class BoundedProtocol(HttpToolsProtocol):
    """Uvicorn's protocol, which drops clients whose headers are too large or too slow."""

    _head = 0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time in which the first headers must come."""
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timer with the connection."""
        self._head_is_over()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Start to count a request's head."""
        super().on_message_begin()
        self._head = 0
        if self._timer is None:
            self._expect_head()

    def on_url(self, url: bytes) -> None:
        """Count the request line."""
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header."""
        super().on_header(name, value)
        self._count(len(name) + len(value))

    def on_headers_complete(self) -> None:
        """The head came in time."""
        self._head_is_over()
        super().on_headers_complete()

    def _expect_head(self) -> None:
        self._timer = self.loop.call_later(HEAD_WITHIN, self._drop)

    def _head_is_over(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _count(self, size: int) -> None:
        self._head += size
        if self._head > LARGEST_HEAD:
            self._drop()

    def _drop(self) -> None:
        self._timer = None
        self.transport.abort()

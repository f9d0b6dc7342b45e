"""Raw bytes in arbitrary pieces: no input raises an error, and nothing is stored forever."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from tests.security.serving import App
from web.edge import limits
from web.edge.connections import Connections
from web.edge.limits import BoundedProtocol

READ = 65_536
LONGEST = 200.0
"""Seconds after which no connection of a silent client is open: longer than each of the limits."""

PARTS = (
    b"GET / HTTP/1.1\r\n",
    b"POST /read HTTP/1.1\r\n",
    b"POST / HTTP/1.0\r\n",
    b"HEAD / HTTP/1.1\r\n",
    b"CONNECT x:1 HTTP/1.1\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\n",
    b"Host: x\r\n",
    b"Content-Length: 0\r\n",
    b"Content-Length: 5\r\n",
    b"Content-Length: 5, 5\r\n",
    b"Content-Length: -1\r\n",
    b"Content-Length: 99999999999999999999\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: gzip\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n",
    b"Connection: close\r\n",
    b"Connection: keep-alive\r\n",
    b"Connection: Upgrade\r\n",
    b"Upgrade: websocket\r\n",
    b"Upgrade: h2c\r\n",
    b"Expect: 100-continue\r\n",
    b"X-A: ",
    b"\r\n",
    b"\n",
    b"\r",
    b"\0",
    b"0\r\n",
    b"5\r\nhello\r\n",
    b"1;a=b\r\n",
    b"ffffffffffffffff\r\n",
    b"hello",
    b"\r\n\r\n",
    b" ",
    b":",
    b"\xff" * 10,
    b"a" * 1000,
    b"a" * limits.LARGEST_HEAD,
    b"x:\r\n" * 300,
    b"GET / HTTP/1.1\r\n\r\n",
    b"POST /read HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
)


class Clock(asyncio.SelectorEventLoop):
    """An event loop whose time the test sets."""

    now = 0.0

    def time(self) -> float:
        """Return the time of the test."""
        return self.now

    def spin(self) -> None:
        """Run all callbacks that are due."""
        for _ in range(12):
            self.call_soon(self.stop)
            self.run_forever()


@dataclass
class Wire(asyncio.Transport):
    """The server's end of a connection."""

    loop: Clock
    protocol: Any = None
    written: bytearray = field(default_factory=bytearray)
    ended: bool = False
    paused: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the addresses."""
        return {"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 8080)}.get(name, default)

    def write(self, data: Any) -> None:
        """Store the sent data."""
        self.written += data

    def write_eof(self) -> None:
        """Record that nothing more will be sent."""

    def can_write_eof(self) -> bool:
        """Return True: the connection can be half closed."""
        return True

    def get_write_buffer_size(self) -> int:
        """Return 0: everything was sent."""
        return 0

    def is_closing(self) -> bool:
        """Return whether the connection has ended."""
        return self.ended

    def close(self) -> None:
        """End the connection."""
        if not self.ended:
            self.ended = True
            self.loop.call_soon(self.protocol.connection_lost, None)

    def abort(self) -> None:
        """End the connection at once."""
        self.close()

    def pause_reading(self) -> None:
        """Pause the input."""
        self.paused = True

    def resume_reading(self) -> None:
        """Resume the input."""
        self.paused = False


def talk(pieces: Sequence[bytes]) -> tuple[list[str], bytes]:
    """Send pieces over one connection. Return the requests that the application saw, and the answers."""
    loop = Clock()
    errors: list[Any] = []
    loop.set_exception_handler(lambda _loop, context: errors.append(context))
    app, cap = App(), Connections(5)
    state = ServerState()
    config = uvicorn.Config(app, http=BoundedProtocol, ws="none", log_config=None, lifespan="off")
    config.load()
    protocol = BoundedProtocol(config, state, {}, loop, caps={8080: cap})
    wire = Wire(loop, protocol)
    protocol.connection_made(wire)
    try:
        for piece in pieces:
            if wire.ended or wire.paused:
                break
            protocol.data_received(piece)
            loop.spin()
        loop.spin()
        while not wire.ended and loop.now < LONGEST:
            loop.now += 5.0
            loop.spin()
        assert wire.ended, "the connection is open for ever"
        loop.spin()
        assert not state.tasks, "a request is answered for ever"
        assert not state.connections
        assert len(cap) == 0
        assert not errors
    finally:
        loop.close()
    return app.seen, bytes(wire.written)


def in_pieces(data: bytes, size: Callable[[], int]) -> list[bytes]:
    pieces, at = [], 0
    while at < len(data):
        many = max(1, size())
        pieces.append(data[at : at + many])
        at += many
    return pieces


@settings(max_examples=150, deadline=None)
@given(
    data=st.lists(st.one_of(st.sampled_from(PARTS), st.binary(max_size=40)), max_size=25).map(b"".join),
    sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=20),
)
def test_arbitrary_bytes_end_the_connection_however_they_are_split(data: bytes, sizes: list[int]) -> None:
    whole, _ = talk(in_pieces(data, lambda: READ))
    turn = iter(sizes * (len(data) + 1))
    split, _ = talk(in_pieces(data, lambda: next(turn)))
    # A request that comes beside the answer to another one is left out, so fewer may be answered of a whole read.
    assert split[: len(whole)] == whole


@pytest.mark.slow
def test_ten_million_bytes_end_every_connection() -> None:
    chance = random.Random(20_260)  # noqa: S311  a story that can be told again
    sent = 0
    while sent < 10_000_000:
        data = b"".join(
            chance.choice(PARTS) if chance.random() < 0.9 else chance.randbytes(chance.randrange(2000))
            for _ in range(chance.randrange(1, 40))
        )
        largest = chance.choice((3, 100, 3000, READ))
        whole, _ = talk(in_pieces(data, lambda: READ))
        split, _ = talk(in_pieces(data, lambda largest=largest: chance.randint(1, largest)))  # type: ignore[misc]
        assert split[: len(whole)] == whole, data
        sent += len(data)

"""Limits of the memory that an unauthenticated client can make the web process hold."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from web.edge import limits
from web.edge.limits import BoundedProtocol


async def _hello(_request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[int]:
    """A server on a free port."""
    app = Starlette(routes=[Route("/", _hello)])
    server = uvicorn.Server(uvicorn.Config(app, http=BoundedProtocol, log_config=None, lifespan="off"))
    listener = socket.create_server(("127.0.0.1", 0))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await task
        listener.close()


async def exchange(port: int, data: bytes) -> bytes:
    """Send bytes, and return the data until the server closes the connection, or the first answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        return await asyncio.wait_for(reader.read(1000), 10)
    except ConnectionError:
        return b""
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def test_an_ordinary_request_is_answered_twice_on_one_connection() -> None:
    async def story() -> None:
        async with served() as port:
            one = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(2):
                writer.write(one)
                answer = await asyncio.wait_for(reader.readuntil(b"hello"), 10)
                assert answer.startswith(b"HTTP/1.1 200")
            writer.close()
            await writer.wait_closed()

    asyncio.run(story())


def test_headers_beyond_the_limit_cut_the_connection() -> None:
    async def story() -> bytes:
        async with served() as port:
            return await exchange(port, b"GET / HTTP/1.1\r\n" + b"a: " + b"b" * limits.LARGEST_HEAD + b"\r\n\r\n")

    assert b"200" not in asyncio.run(story())


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nHost:"], ids=["nothing", "half a head"])
def test_headers_that_do_not_come_cut_the_connection(begun: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEAD_WITHIN", 0.2)

    async def story() -> bytes:
        async with served() as port:
            return await exchange(port, begun)

    assert asyncio.run(story()) == b""

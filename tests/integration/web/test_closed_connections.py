"""A closed connection leaves nothing in a web process that waits for the garbage collector.

A connection with TLS has a buffer of 256 KiB and OpenSSL's state. Full collections are rare in a web process, so a
reference cycle keeps all of that for minutes, and each poll is a new connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from lab.processes import free_port
from tests.certificates import Authority
from tests.integration.web.polls.stage import Pod, Stage, WebProcess
from tests.waiting import eventually
from web.edge.ports import Audience
from web.runners.polls import LARGEST_BODY

CLIENTS = 20
MOST_WAIT = 30.0
"""Seconds until a closed connection must be gone. Its shutdown may take five."""

KINDS = ("SSLProtocol", "_SSLProtocolTransport", "TCPTransport", "BoundedProtocol", "RequestResponseCycle")
"""Types of the objects of a connection, in uvloop, uvicorn and web."""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    authority = Authority()
    authority.sign().write(tmp_path)
    return authority


@contextlib.contextmanager
def only_reference_counts() -> Iterator[None]:
    """Free nothing by collections, and leave the objects that exist already out of `gc.get_objects()`."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def start(stage: Stage, folder: Path, **changes: object) -> WebProcess:
    ports = ("web_port", "web_polls_port", "web_private_port", "web_polls_tls_port")
    given = {"web_polls_tls_cert": str(folder / "tls.crt"), "web_polls_tls_key": str(folder / "tls.key")}
    return stage.start_web(**{name: free_port() for name in ports} | given | changes)


def alive() -> Counter[str]:
    """Return the number of objects of each kind, without the test's own clients, whose loop is asyncio's."""
    return Counter(
        type(each).__name__
        for each in gc.get_objects()
        if type(each).__name__ in KINDS and not type(each).__module__.startswith("asyncio")
    )


def request(pod: Pod, *, more: str = "Connection: close\r\n", length: int = 0, token: str | None = None) -> bytes:
    head = f"POST /runners/v1/dispatch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token or pod.token}\r\n"
    return f"{head}{more}Content-Length: {length}\r\n\r\n".encode()


async def whole_poll(pod: Pod, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(request(pod))
    assert (await reader.read(-1)).startswith(b"HTTP/1.1 204")


async def two_polls(pod: Pod, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    for _ in range(2):
        writer.write(request(pod, more=""))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204")


async def client_that_leaves(pod: Pod, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    del reader
    writer.write(request(pod))
    await asyncio.sleep(0.1)


async def refused_token(pod: Pod, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(request(pod, token="unknown"))
    assert (await reader.read(-1)).startswith(b"HTTP/1.1 401")


async def early_answer(pod: Pod, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(request(pod, more="", length=10 * LARGEST_BODY) + b"x" * (LARGEST_BODY + 1))
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 413")


async def half_a_request(pod: Pod, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    del reader
    writer.write(request(pod, more="", length=10) + b"half")
    await asyncio.sleep(0.1)


async def no_http(pod: Pod, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    del pod
    writer.write(b"\x01\x02\r\n\r\n")
    assert (await reader.read(-1)).startswith(b"HTTP/1.1 400")


async def nothing(pod: Pod, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    del pod, reader, writer


Story = Callable[[Pod, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
STORIES: tuple[Story, ...] = (
    whole_poll,
    two_polls,
    client_that_leaves,
    refused_token,
    early_answer,
    half_a_request,
    no_http,
    nothing,
)


async def clients(pods: list[Pod], story: Story, port: int, context: ssl.SSLContext | None, *, abort: bool) -> None:
    async def one(pod: Pod) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        await story(pod, reader, writer)
        if abort:
            writer.transport.abort()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async with asyncio.timeout(90):
        await asyncio.gather(*map(one, pods))


@pytest.mark.parametrize("by_tls", [True, False], ids=["tls", "plain"])
def test_closed_connections_leave_nothing_to_the_garbage_collector(
    stage: Stage, authority: Authority, tmp_path: Path, by_tls: bool
) -> None:
    pool = stage.pool()
    pods = [stage.pod(pool) for _ in range(CLIENTS)]
    web = start(stage, tmp_path, poll_hold_min=0.2, poll_hold_max=0.3)
    context = ssl.create_default_context(cadata=authority.certificate.decode()) if by_tls else None
    port = web._server.ports.tls if by_tls else web.port_of(Audience.POLLS)
    assert port is not None
    with only_reference_counts():
        for story in STORIES:
            for abort in (False, True):
                asyncio.run(clients(pods, story, port, context, abort=abort))
                try:
                    eventually(lambda: not alive(), within=MOST_WAIT)
                except AssertionError:
                    pytest.fail(f"{story.__name__}, abort={abort}: {dict(alive())} are left")

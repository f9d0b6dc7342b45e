"""One field that never ends: httptools reports it only at its end, and copies it with each read until then."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.security.serving import Served, is_stopped, served, status
from web.edge import limits

CHUNKED = b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
READ = b"POST /read HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
ENDLESS = {
    "value": b"GET / HTTP/1.1\r\nX-A: ",
    "name": b"GET / HTTP/1.1\r\n",
    "path": b"GET /",
    "method": b"",
    "trailer": READ + b"0\r\nX-A: ",
    "trailer name": READ + b"0\r\n",
    "trailer of an answered request": CHUNKED + b"0\r\nX-A: ",
    "chunk extension": READ + b"1;",
    "chunk extension of an answered request": CHUNKED + b"1;",
    "chunk size": READ + b"0" * 8,
}
FAR_MORE_THAN_BUFFERS = 24 * 1024 * 1024


@pytest.fixture(scope="module")
def web() -> Iterator[Served]:
    """A server without timers, so that only sizes can stop a client."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HEAD_WITHIN", "BODY_WITHIN", "MESSAGE_WITHIN", "LINGER"):
            patch.setattr(limits, name, 3600.0)
        with served() as found:
            yield found


@pytest.fixture(autouse=True)
def _fresh(web: Served) -> None:
    web.app.bodies.clear()


@pytest.mark.parametrize("begun", ENDLESS.values(), ids=ENDLESS.keys())
def test_field_that_never_ends_is_cut_off(web: Served, begun: bytes) -> None:
    with web.connect(begun) as connection:
        assert is_stopped(connection, b"a" * 65536, most=FAR_MORE_THAN_BUFFERS)
        assert status(web.ask(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")) == 200


def test_large_body_passes(web: Served) -> None:
    body = b"a" * (2 * 1024 * 1024)
    head = b"POST /read HTTP/1.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    assert status(web.ask(head + body)) == 200
    assert web.app.bodies == [body]


def test_large_body_in_chunks_with_a_trailer_passes(web: Served) -> None:
    chunk = b"1000\r\n" + b"a" * 4096 + b"\r\n"
    head = b"POST /read HTTP/1.1\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert status(web.ask(head + chunk * 500 + b"0\r\nX-Sum: 1\r\n\r\n")) == 200
    assert web.app.bodies == [b"a" * 4096 * 500]


def test_body_in_tiny_chunks_is_cut_off(web: Served) -> None:
    with web.connect(READ) as connection:
        assert is_stopped(connection, b"1\r\na\r\n" * 10_000, most=FAR_MORE_THAN_BUFFERS)


def test_headers_that_are_empty_count(web: Served) -> None:
    assert web.ask(b"GET / HTTP/1.1\r\nConnection: close\r\n" + b"a:\r\n" * 4096 + b"\r\n") == b""

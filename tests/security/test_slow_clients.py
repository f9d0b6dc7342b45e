"""Slow clients: each has a limited time, whatever it sends or does not read."""

from __future__ import annotations

import time

import pytest

from tests.security.serving import App, Served, served, status, until_cut
from tests.waiting import eventually
from web.edge import limits

SOON = 0.3
GET = b"GET / HTTP/1.1\r\nHost: x\r\n"
READ = b"POST /read HTTP/1.1\r\nHost: x\r\n"
PROMISED = {
    "body": READ + b"Content-Length: 1000\r\n\r\na",
    "chunk": READ + b"Transfer-Encoding: chunked\r\n\r\n3e8\r\na",
    "trailer": READ + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX-A: a",
    "body of an answered request": GET + b"Content-Length: 1000000\r\n\r\na",
    "chunk of an answered request": GET + b"Transfer-Encoding: chunked\r\n\r\n3e8\r\na",
    "trailer of an answered request": GET + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX-A: a",
    "head of a second request": GET + b"\r\n" + GET,
    "line ends before a request": b"\r\n",
    "line ends after a request": GET + b"\r\n\r\n",
}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEAD_WITHIN", "MESSAGE_WITHIN", "LINGER", "READ_WITHIN"):
        monkeypatch.setattr(limits, name, SOON, raising=False)


@pytest.mark.parametrize("promised", PROMISED.values(), ids=PROMISED.keys())
def test_dribbling_client_is_cut_off(promised: bytes) -> None:
    with served() as web, web.connect(promised) as connection:
        dribble(web, connection, b"\r\n" if promised.endswith(b"\r\n") and b"line" not in promised else b"a")


def dribble(web: Served, connection: object, piece: bytes) -> None:
    """Send a piece at intervals until the server has no connection any more."""
    deadline = time.monotonic() + 20
    eventually(lambda: web.connections == 1 or bool(web.app.seen))
    while web.connections:
        assert time.monotonic() < deadline, "the connection is still open"
        try:
            connection.sendall(piece)  # type: ignore[attr-defined]
        except ConnectionError:
            return
        time.sleep(0.02)


def test_answer_that_came_early_is_read_and_says_that_it_is_the_last() -> None:
    with served() as web, web.connect(GET + b"Content-Length: 1000000\r\n\r\n" + b"a" * 200_000) as connection:
        answer = until_cut(connection)
    assert status(answer) == 200
    assert b"connection: close" in answer
    assert answer.endswith(b"hello")


def test_body_that_comes_whole_after_its_head_keeps_the_connection() -> None:
    with served() as web, web.connect(READ + b"Content-Length: 2\r\n\r\n") as connection:
        eventually(lambda: web.app.seen == ["POST /read"])
        connection.sendall(b"ab")
        assert b"connection: close" not in connection.recv(1000)
        connection.sendall(READ + b"Content-Length: 2\r\n\r\ncd")
        eventually(lambda: web.app.bodies == [b"ab", b"cd"])


def test_client_that_does_not_read_its_answer_is_cut_off() -> None:
    app = App(answer=b"a" * (32 * 1024 * 1024))
    with served(app) as web, web.connect(GET + b"\r\n"):
        eventually(lambda: app.seen == ["GET /"])
        eventually(lambda: web.connections == 0)


def test_client_that_does_not_read_its_last_answer_is_cut_off() -> None:
    app = App(answer=b"a" * (32 * 1024 * 1024))
    with served(app) as web, web.connect(GET + b"Connection: close\r\n\r\n"):
        eventually(lambda: app.seen == ["GET /"])
        eventually(lambda: web.connections == 0)

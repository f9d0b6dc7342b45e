"""One request at a time on a connection: no second request runs beside it, and no body is parsed as a request."""

from __future__ import annotations

import pytest

from tests.security.serving import served, status, until_cut
from tests.waiting import eventually
from web.edge.limits import BoundedProtocol

GET = b"GET / HTTP/1.1\r\nHost: x\r\n"
HIDDEN = GET.replace(b"GET /", b"GET /hidden") + b"\r\n"


@pytest.mark.parametrize("upgrade", [b"websocket", b"h2c", b"anything"])
@pytest.mark.parametrize("length", [b"Content-Length: %d\r\n" % len(HIDDEN), b"Transfer-Encoding: chunked\r\n"])
def test_body_of_a_request_that_wants_an_upgrade_is_no_request(upgrade: bytes, length: bytes) -> None:
    with served() as web:
        head = b"POST /read HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: %s\r\n%s\r\n" % (upgrade, length)
        with web.connect(head) as connection:
            eventually(lambda: bool(web.app.seen) or not web.connections)
            connection.sendall(HIDDEN)
            connection.settimeout(3)
            try:
                until_cut(connection, within=3)
            except TimeoutError:
                pytest.fail("the connection stays open")
        assert "GET /hidden" not in web.app.seen


def test_request_without_a_body_that_offers_an_upgrade_is_answered_and_is_the_last() -> None:
    with served() as web:
        answer = web.ask(GET + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n")
        assert status(answer) == 200
        assert b"connection: close" in answer


def test_second_request_beside_a_first_is_not_answered() -> None:
    with served() as web, web.connect(b"GET /hold HTTP/1.1\r\nHost: x\r\n\r\n" + (GET + b"\r\n") * 1000):
        eventually(lambda: bool(web.app.seen))
        eventually(lambda: web.server.server_state.tasks != set())
        assert not any(getattr(each, "pipeline") for each in web.server.server_state.connections)  # noqa: B009
    assert web.app.seen == ["GET /hold"]


def test_client_that_leaves_a_held_request_is_noticed_when_it_sent_another() -> None:
    with served() as web:
        with web.connect(b"GET /hold HTTP/1.1\r\nHost: x\r\n\r\n"):
            eventually(lambda: bool(web.app.seen))
        eventually(lambda: web.app.left == 1)
        with web.connect(b"GET /hold HTTP/1.1\r\nHost: x\r\n\r\n" + GET + b"\r\n"):
            eventually(lambda: len(web.app.seen) == 2)
        eventually(lambda: web.app.left == 2)


@pytest.mark.parametrize("behind", [b"\r\n", GET + b"\r\n", GET[:20]])
def test_what_comes_behind_a_held_request_does_not_limit_its_time(behind: bytes) -> None:
    with served() as web, web.connect(b"GET /hold HTTP/1.1\r\nHost: x\r\n\r\n") as connection:
        eventually(lambda: bool(web.app.seen))
        (protocol,) = web.server.server_state.connections
        assert isinstance(protocol, BoundedProtocol)
        connection.sendall(behind)
        eventually(lambda: protocol._discards or protocol._unreported >= len(behind))
        assert protocol._timer is None
        assert web.app.left == 0

"""Floods of connections: unproven ones share a cap, and a client that sends its request at once is served."""

from __future__ import annotations

import contextlib

from tests.security.serving import App, Served, served, status
from tests.waiting import eventually
from web.edge.connections import Connections

GET = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
HOLD = b"GET /hold HTTP/1.1\r\nHost: x\r\n\r\n"
MOST = 20


class _Anywhere(dict[int, Connections]):
    """One cap for every port of the test's server."""

    def __init__(self, cap: Connections) -> None:
        super().__init__()
        self.cap = cap

    def get(self, _port: int, _default: object = None) -> Connections:
        return self.cap


def flood(web: Served, stack: contextlib.ExitStack, begun: bytes, *, many: int = 5 * MOST) -> None:
    """Open connections, and keep them open."""
    for _ in range(many):
        stack.enter_context(web.connect(begun))


def test_idle_connections_are_capped_and_others_are_served() -> None:
    cap = Connections(MOST)
    for begun in (b"", b"GET / HTTP/1.1\r\nX-A: ", b"POST /read HTTP/1.1\r\nContent-Length: 10\r\n\r\na"):
        with served(caps=_Anywhere(cap)) as web, contextlib.ExitStack() as stack:
            flood(web, stack, begun)
            assert status(web.ask(GET)) == 200
            eventually(lambda web=web: web.connections <= MOST)  # type: ignore[misc]
    eventually(lambda: len(cap) == 0)
    assert cap.dropped >= 3 * 4 * MOST - MOST


def test_request_that_is_being_answered_is_not_dropped_for_a_newer_connection() -> None:
    with served(caps=_Anywhere(Connections(MOST))) as web, contextlib.ExitStack() as stack:
        held = stack.enter_context(web.connect(HOLD))
        eventually(lambda: web.app.seen == ["GET /hold"])
        flood(web, stack, b"")
        assert status(web.ask(GET)) == 200
        assert web.app.left == 0
        held.close()
        eventually(lambda: web.app.left == 1)


def test_newest_is_dropped_when_all_are_being_answered() -> None:
    app = App()
    with served(app, caps=_Anywhere(Connections(MOST))) as web, contextlib.ExitStack() as stack:
        flood(web, stack, HOLD, many=MOST)
        eventually(lambda: len(app.seen) == MOST)
        assert web.ask(GET) == b""
        assert app.left == 0

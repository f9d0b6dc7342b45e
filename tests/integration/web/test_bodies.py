"""Bodies that arrive late, never, or all at once, over sockets to the real server."""

from __future__ import annotations

import contextlib
import socket
from urllib.parse import urlsplit

import pytest

from tests.integration.web.polls.stage import Stage, WebProcess
from tests.waiting import eventually
from web.intake import webhooks
from web.runners import polls

WEBHOOK, POLL = "/webhooks/github", "/runners/v1/dispatch"
BODY = 1000


def begin(web: WebProcess, path: str, *, sent: bytes, promised: int, token: str = "") -> socket.socket:
    """Send the head of a request and part of its body."""
    address = urlsplit(web.url)
    connection = socket.create_connection((str(address.hostname), address.port or 80), timeout=90)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Length: {promised}\r\n\r\n"
    )
    connection.sendall(head.encode() + sent)
    return connection


def status(connection: socket.socket) -> int:
    """Return the status of the answer, and close the connection."""
    with connection, contextlib.closing(connection.makefile("rb")) as answer:
        return int(answer.readline().split()[1])


@pytest.mark.parametrize(("path", "module"), [(WEBHOOK, webhooks), (POLL, polls)], ids=["webhook", "poll"])
def test_a_body_that_does_not_come_in_time_is_408(
    stage: Stage, path: str, module: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BODY_WITHIN", 0.2)
    pod = stage.pod(stage.pool())
    web = stage.start_web()
    assert status(begin(web, path, sent=b"{", promised=100, token=pod.token)) == 408
    assert web.web.intake._reading == 0
    assert web.web.polls.held == 0
    assert not stage.is_offered(pod)


def test_bodies_that_are_read_at_once_have_one_budget_and_give_it_back(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "MOST_UNPROVEN", BODY)
    web = stage.start_web(webhook_max_bytes=1024)
    slow = [begin(web, WEBHOOK, sent=b"x" * BODY, promised=BODY + 1) for _ in range(2)]
    eventually(lambda: web.web.intake._reading == 2 * BODY)

    assert status(begin(web, WEBHOOK, sent=b"x" * BODY, promised=BODY)) == 503

    assert web.web.intake._reading == 2 * BODY
    slow[0].sendall(b"x")
    assert status(slow[0]) == 401  # read whole, and signed by nobody
    slow[1].close()
    eventually(lambda: web.web.intake._reading == 0)
    assert status(begin(web, WEBHOOK, sent=b"x" * BODY, promised=BODY)) == 401


def test_one_body_of_the_largest_kind_fits_whatever_else_is_read(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "MOST_UNPROVEN", BODY)
    web = stage.start_web(webhook_max_bytes=2048)
    slow = begin(web, WEBHOOK, sent=b"x" * BODY, promised=BODY + 1)
    eventually(lambda: web.web.intake._reading == BODY)
    assert status(begin(web, WEBHOOK, sent=b"x" * 2048, promised=2048)) == 401
    slow.close()

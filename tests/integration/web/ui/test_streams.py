"""Streams of open pages: what they send, how many there are, and what ends them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
import uvicorn

from ostler.clock import utcnow
from rules.token_scopes import TokenScope
from tests.integration.web.api.conftest import make_token
from tests.integration.web.polls.stage import Stage
from tests.integration.web.ui.conftest import Dashboard
from tests.waiting import eventually
from web.api.usage import Usages
from web.edge import limits
from web.edge.limits import BoundedProtocol
from web.server import _GRACE
from web.ui import app, pages, streams
from web.ui.sessions import Session, holder_of
from web.ui.streams import Content, changes

STREAM = {"Accept": "text/event-stream"}


class Reader:
    """A reader of a stream, in a thread. `events` has the names and the data of the events so far."""

    def __init__(self, url: str, path: str, cookie: str) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.status: int | None = None
        self.ended = threading.Event()
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self._read, args=(url + path, cookie), daemon=True)
        self._thread.start()

    def _read(self, url: str, cookie: str) -> None:
        headers = {**STREAM, "Cookie": f"ostler_session={cookie}"}
        try:
            with httpx.stream("GET", url, headers=headers, timeout=30) as answer:
                self.status = answer.status_code
                name = ""
                for line in answer.iter_lines():
                    kind, _, value = line.partition(": ")
                    if kind == "event":
                        name = value
                    elif kind == "data":
                        self._heard(name, json.loads(value))
        except httpx.TransportError:
            pass  # the server closed the connection
        finally:
            self.ended.set()

    def _heard(self, name: str, data: dict[str, Any]) -> None:
        if name == "page":
            self.lines = data["lines"]
        for first, count, added in data.get("changes", ()):
            self.lines[first : first + count] = added
        self.events.append((name, data))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.events]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


@pytest.fixture
def url(dashboard: Dashboard) -> Iterator[str]:
    """The dashboard on a port, behind the limits of the product's server."""
    config = uvicorn.Config(dashboard.app, port=0, log_level="critical", http=BoundedProtocol)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        eventually(lambda: server.started, "the server does not start", within=30)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        dashboard.streams.end_all()
        server.should_exit = True
        thread.join(30)


def opened(url: str, dashboard: Dashboard, path: str = "/ui/jobs", *, cookie: str | None = None) -> Reader:
    """Return a reader that has the page."""
    reader = Reader(url, path, cookie or dashboard.cookie)
    eventually(lambda: "page" in reader.names, "the stream does not bring the page", within=10)
    return reader


def address(url: str) -> tuple[str, int]:
    """Return host and port of a URL."""
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


def request(path: str, cookie: str) -> bytes:
    """Return the request for a stream, for a client that is a bare socket."""
    head = (f"GET {path} HTTP/1.1", "Host: x", "Accept: text/event-stream", f"Cookie: ostler_session={cookie}")
    return ("\r\n".join(head) + "\r\n\r\n").encode()


def test_stream_sends_only_what_changed(dashboard: Dashboard, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "WAITS_SHARED_FOR", timedelta(minutes=1))  # the age of the queue changes each minute
    dashboard.account()
    dashboard.job(100)
    first, second = (opened(url, dashboard, "/ui/") for _ in range(2))
    reads = dashboard.streams._pages[None, "/ui/"]
    seen = reads.at
    eventually(lambda: reads.at > seen + 2, "the page is not read", within=10)
    assert [first.names, second.names] == [["page"], ["page"]]
    dashboard.job(101)
    eventually(lambda: "changes" in first.names and "changes" in second.names, "no change is sent", within=10)
    for each in (first, second):
        assert sum(len(added) for _, _, added in each.events[1][1]["changes"]) < len(each.lines) / 4
        assert each.text == opened(url, dashboard, "/ui/").text
        assert "reader" not in each.text


def test_streams_are_shared_only_by_readers_of_the_same_accounts(dashboard: Dashboard, url: str) -> None:
    dashboard.account(7, "acme")
    dashboard.account(8, "globex")
    dashboard.job(100)
    dashboard.job(101, account_id=8, repository="globex/app")
    cookies = [
        dashboard.log_in(dashboard.token(TokenScope.READ, accounts=[each], name=f"token-{each}")) for each in (7, 8, 7)
    ]
    mine, other, also_mine = (opened(url, dashboard, cookie=each) for each in cookies)
    assert (mine.text, "globex" in mine.text) == (also_mine.text, False)
    assert "/ui/jobs/100" not in other.text
    assert len(dashboard.streams._pages) == 2


def test_page_loads_again_by_itself_if_there_is_no_room_for_its_stream(
    dashboard: Dashboard, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MOST", 2)
    readers = [opened(url, dashboard) for _ in range(2)]
    refused = Reader(url, "/ui/jobs", dashboard.cookie)
    assert refused.ended.wait(10)
    shown = dashboard.see("/ui/jobs").text
    assert (refused.status, "data-stream" in shown, 'data-again="10"' in shown) == (503, False, True)
    assert "Too many pages are open for live updates, so this page loads again every 10 seconds." in shown
    dashboard.execute("UPDATE api_tokens SET revoked_at = now()")
    assert all(each.ended.wait(10) for each in readers)
    eventually(lambda: len(dashboard.streams) == 0, "an ended stream still counts", within=5)


def test_one_token_does_not_take_the_streams_of_other_readers(
    dashboard: Dashboard, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MOST_OF_TOKEN", 2)
    for number in range(2):
        opened(url, dashboard, f"/ui/?{number}")
    refused = Reader(url, "/ui/?3", dashboard.cookie)
    assert (refused.ended.wait(10), refused.status) == (True, 503)
    assert 'data-again="10"' in dashboard.see("/ui/jobs").text
    opened(url, dashboard, cookie=dashboard.log_in(dashboard.token(TokenScope.READ, name="other")))


def test_page_that_never_changes_is_not_read_for_a_stream(
    dashboard: Dashboard, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = Mock()
    monkeypatch.setattr(Usages, "read", reads)
    reader = Reader(url, "/ui/usage?month=2026-01", dashboard.cookie)
    assert (reader.ended.wait(10), reader.lines, reads.called) == (True, [], False)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE api_tokens SET revoked_at = now()",
        "UPDATE api_tokens SET expires_at = now() - interval '1 second'",
        "UPDATE api_tokens SET accounts = '{7}'",
    ],
)
def test_stream_ends_when_its_token_changes(dashboard: Dashboard, url: str, change: str) -> None:
    kept = opened(url, dashboard, cookie=dashboard.log_in(dashboard.token(TokenScope.READ, name="other")))
    reader = opened(url, dashboard)
    dashboard.execute(f"{change} WHERE name = 'reader'")
    assert reader.ended.wait(10)
    assert reader.names[-1] == "reload"
    assert not kept.ended.is_set()


def test_stream_ends_with_its_session(dashboard: Dashboard, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = opened(url, dashboard)
    monkeypatch.setattr(streams, "utcnow", lambda: utcnow() + timedelta(hours=13))
    assert reader.ended.wait(10)


@pytest.mark.parametrize("error", [TimeoutError, RuntimeError])
def test_stream_whose_session_cannot_be_checked_ends(
    dashboard: Dashboard, url: str, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    reader = opened(url, dashboard)

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(streams, "still_valid", fail)
    assert reader.ended.wait(10)
    assert set(reader.names) <= {"page", "alive"}


def test_streams_hold_no_connection_of_postgres(dashboard: Dashboard, url: str) -> None:
    dashboard.account()
    dashboard.job(100)
    readers = [opened(url, dashboard, path) for path in ("/ui/", "/ui/jobs", "/ui/jobs/100", "/ui/sweeps") * 3]
    held: set[int] = set()
    for _ in range(200):
        held.add(dashboard.engine.pool.checkedout())  # type: ignore[attr-defined]
        threading.Event().wait(0.01)
    assert min(held) == 0
    assert max(held) <= 2, "one page is read at a time, beside a check of the sessions"
    assert not any(each.ended.is_set() for each in readers)


def test_page_that_cannot_change_any_more_ends_its_stream(dashboard: Dashboard, url: str) -> None:
    dashboard.account()
    dashboard.job(100)
    reader = opened(url, dashboard, "/ui/jobs/100")
    dashboard.execute("UPDATE jobs SET state = 'completed', conclusion = 'success', completed_at = now()")
    assert reader.ended.wait(10)
    assert reader.names == ["page", "changes", "over"]


def test_page_whose_read_fails_is_loaded_again(dashboard: Dashboard, url: str) -> None:
    reader = Reader(url, "/ui/jobs/1", dashboard.cookie)
    assert reader.ended.wait(10)
    assert reader.names == ["reload"]


def test_page_whose_read_failed_is_read_again_for_new_streams(dashboard: Dashboard) -> None:
    there = Session("0a1b2c3d4e5f6a7b", "", utcnow() + timedelta(hours=1))

    async def fail() -> Content:
        raise LookupError

    async def story() -> None:
        was_read = asyncio.Event()

        async def read() -> Content:
            was_read.set()
            return Content("there", utcnow(), live=True)

        slow = dashboard.streams.open("page", there, read=fail)
        assert slow.page.task is not None
        await asyncio.wait([slow.page.task])
        fresh = dashboard.streams.open("page", there, read=read)
        async with asyncio.timeout(10):
            await was_read.wait()
        assert len(dashboard.streams) == 2, "the stream that has not ended yet still counts"
        for each in (slow, fresh):
            dashboard.streams.close("page", each)
        assert len(dashboard.streams) == 0

    asyncio.run(story())


def test_change_is_sent_to_a_few_streams_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "TOGETHER", 2)
    woken = Mock()

    async def story() -> None:
        page = streams._Page(Mock())
        page.streams = {Mock(wake=woken) for _ in range(5)}
        task = asyncio.create_task(page.show(Content("there", utcnow(), live=True)))
        await asyncio.sleep(0)
        assert woken.call_count == 2
        await task

    asyncio.run(story())
    assert woken.call_count == 5


def test_reader_that_leaves_before_its_stream_begins_takes_no_place(
    dashboard: Dashboard, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, left, opens = threading.Event(), threading.Event(), Mock(wraps=dashboard.streams.open)
    monkeypatch.setattr(dashboard.streams, "open", opens)

    def verify(*given: Any, **how: Any) -> object:
        asked.set()
        assert left.wait(10)
        return holder_of(*given, **how)

    monkeypatch.setattr(app, "holder_of", verify)
    reader = socket.create_connection(address(url))
    reader.sendall(request("/ui/jobs", dashboard.cookie))
    assert asked.wait(10)
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    reader.close()
    assert httpx.get(f"{url}/ui/static/ui.css").status_code == 200, "the server has seen the end of the connection"
    left.set()
    eventually(lambda: opens.called, "the stream does not open", within=10)
    eventually(lambda: len(dashboard.streams) == 0, "a stream that nobody reads still counts", within=5)


def test_idle_stream_sends_the_time_of_its_read(
    dashboard: Dashboard, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "ALIVE_EVERY", 0.2)
    reader = opened(url, dashboard)
    eventually(lambda: "alive" in reader.names, "an idle stream sends nothing", within=10)
    times = [data["at"] for _, data in reader.events]
    assert times == sorted(set(times))


def test_stream_ends_after_its_longest_time(dashboard: Dashboard, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("LONGEST", 0.5), ("ALIVE_EVERY", 0.2)):
        monkeypatch.setattr(streams, name, seconds)
    assert opened(url, dashboard).ended.wait(10)


def test_reader_of_one_byte_a_second_is_dropped(
    dashboard: Dashboard, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "READ_WITHIN", 1.0)
    dashboard.account()
    for number in range(60):
        dashboard.job(100 + number, name=f"job {number} " + "x" * 100)
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    reader.connect(address(url))
    reader.sendall(request("/ui/jobs", dashboard.cookie))
    eventually(lambda: len(dashboard.streams) == 1, "the stream does not open", within=10)

    def change_and_read() -> bool:
        dashboard.execute("UPDATE jobs SET name = md5(random()::text) || repeat('y', 90)")
        with contextlib.suppress(ConnectionError):
            reader.recv(1)
        return len(dashboard.streams) == 0

    eventually(change_and_read, "the reader is not dropped", within=60)
    reader.close()


def test_end_of_the_process_ends_every_stream(dashboard: Dashboard, url: str) -> None:
    readers = [opened(url, dashboard, path) for path in ("/ui/", "/ui/jobs")]
    dashboard.streams.end_all()
    assert all(each.ended.wait(2) for each in readers)
    late = Reader(url, "/ui/", dashboard.cookie)
    assert (late.ended.wait(5), late.status) == (True, 503)


def test_stopping_process_does_not_wait_for_streams(stage: Stage) -> None:
    process = stage.start_web()
    token = make_token(stage.engine, TokenScope.READ)
    answer = httpx.post(f"{process.url}/ui/login", data={"token": token}, headers={"Origin": process.url})
    reader = Reader(process.url, "/ui/", answer.headers["set-cookie"].split(";")[0].partition("=")[2])
    eventually(lambda: "page" in reader.names, "the stream does not bring the page", within=30)
    stopping = threading.Thread(target=stage.stop_web, args=(process,))
    stopping.start()
    assert reader.ended.wait(_GRACE / 2), "the stream stays open until Uvicorn gives up"
    stopping.join(60)
    assert not stopping.is_alive()


@pytest.mark.parametrize("old", ["", "a", "abc", "abcd"])
@pytest.mark.parametrize("new", ["", "b", "abc", "xbz", "abxc", "abab"])
def test_changes_lead_from_the_old_to_the_new_lines(old: str, new: str) -> None:
    lines = list(old)
    for first, count, added in changes(list(old), list(new)):
        lines[first : first + count] = added
    assert lines == list(new)

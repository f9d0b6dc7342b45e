"""Streams of server-sent events, which keep open pages new.

Each page that somebody watches has one task, which reads and renders the page for all readers with the same rights. One
page is read at a time, so all streams of a process together use at most one connection of Postgres, and a stream itself
uses none (law L15). A page is read only while somebody watches it. No NOTIFY announces changes, because it would be one
more statement on the claim path.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from http import HTTPStatus
from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from ostler.clock import utcnow
from ostler.logging import get_logger
from ostler.reasons import cause_of
from web.api.database import Database
from web.api.problems import Refusal, database_failed
from web.edge import limits
from web.edge.refused_log import RefusedLog
from web.ui.sessions import Session, still_valid

MOST = 200
"""Maximum number of streams of one process."""

MOST_OF_TOKEN = 20
"""Maximum number of streams of one token in one process, so that no reader takes the streams of all others."""

EVERY = 1.0
"""Minimum number of seconds between two reads of one page."""

PAUSE = 2
"""Pause between two reads of a page, as a multiple of the last read's duration. Slow pages are thus read less often."""

TOGETHER = 5
"""Number of streams that get a change at once. Other requests, for example webhooks, are served before the next ones.

A change for all streams at once would take the event loop for some 20 milliseconds.
"""

APART = 0.005
"""Pause in seconds before the next `TOGETHER` streams get a change."""

ALIVE_EVERY = 5.0
"""Seconds after which a stream without news sends a few bytes, so that no proxy closes it as idle."""

CHECK_EVERY = 2.0
"""Pause in seconds between two checks of the sessions."""

CHECK_WITHIN = 1.5
"""Maximum duration of a check in seconds."""

CHECKED_WITHIN = 5.0
"""Maximum age in seconds of the last successful check of a session when a check fails. An older stream is ended.

A stream thus ends within 10 seconds after its token was revoked, even while Postgres answers late.
"""

LONGEST = 300.0
"""Seconds after which a stream ends. The page then opens another one, with the cookie that the browser has by then."""

MEDIA_TYPE = "text/event-stream"

log = get_logger(__name__)
_unchecked = RefusedLog(log, "ui.sessions_not_checked")


def event(name: str, **data: Any) -> bytes:
    """Return one event in the format of a stream."""
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


RELOAD = event("reload")
"""The event after which the browser loads the page again, for example to show the login."""

OVER = event("over")
"""The event after which the browser opens no further stream, because the page cannot change any more."""


@dataclass(frozen=True, slots=True)
class Content:
    """One read of a page: its live part, the time of the read, and whether the page can change later."""

    html: str
    at: datetime
    live: bool


def changes(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int, Sequence[str]]]:
    """Return the changes that lead from old to new lines: the first line, the number of old lines, and the new lines.

    Lines are compared one by one if their number is the same. Otherwise the result is one change, from the first to the
    last line that differs.
    """
    if len(old) == len(new):
        return [(index, 1, (there,)) for index, (here, there) in enumerate(zip(old, new, strict=True)) if here != there]
    least = min(len(old), len(new))
    first = next((index for index in range(least) if old[index] != new[index]), least)
    last = next((index for index in range(least - first) if old[-1 - index] != new[-1 - index]), least - first)
    return [(first, len(old) - last - first, new[first : len(new) - last])]


class _Page:
    """A page that somebody watches. `version` counts its changes, and `at` is the time of its last read."""

    def __init__(self, read: Callable[[], Awaitable[Content]]) -> None:
        self.read = read
        self.streams: set[Stream] = set()
        self.task: asyncio.Task[None] | None = None
        self.version = 0
        self.at = 0.0
        self.live = True
        self._lines: Sequence[str] = ()
        self._changes = b""

    async def show(self, content: Content) -> None:
        """Store one read, and wake the streams one after the other if the page has changed."""
        lines = content.html.split("\n")
        self.at, self.live = content.at.timestamp(), content.live
        if lines != self._lines:
            self._changes = event("changes", at=self.at, changes=changes(self._lines, lines))
            self._lines = lines
            self.version += 1
        elif self.live:
            return
        for number, stream in enumerate(list(self.streams), start=1):
            stream.wake()
            if number % TOGETHER == 0:
                await asyncio.sleep(APART)

    def since(self, version: int) -> bytes:
        """Return the event that leads from a version to the present one."""
        if version and version == self.version - 1:
            return self._changes
        return event("page", at=self.at, lines=self._lines)


class Stream(StreamingResponse):
    """The answer with the events of one page to one reader. A slow reader gets the newest version only."""

    def __init__(self, streams: Streams, key: Hashable, page: _Page, session: Session) -> None:
        super().__init__(self._events(), media_type=MEDIA_TYPE, headers={"X-Accel-Buffering": "no"})
        self.session = session
        self.checked_at = asyncio.get_running_loop().time()
        self.page = page
        self._key = key
        self._streams = streams
        self._changed = asyncio.Event()
        self._last: bytes | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the stream ends or the reader goes away."""
        try:
            limits.streams(scope)
            await super().__call__(scope, receive, send)
        finally:
            self._streams.close(self._key, self)

    def wake(self) -> None:
        """Let the stream send what is new."""
        self._changed.set()

    def end(self, last: bytes = b"") -> None:
        """Send `last`, and end the stream."""
        self._last = last
        self.wake()

    async def _events(self) -> AsyncIterator[bytes]:
        loop, page, sent, told_at = asyncio.get_running_loop(), self.page, 0, 0.0
        ends = loop.time() + LONGEST
        # The browsers come back at different times, after this process has ended.
        yield f"retry: {random.randrange(1000, 4000)}\n\n".encode()  # noqa: S311
        while self._last is None and loop.time() < ends:
            self._changed.clear()
            if sent != page.version:
                news, sent, told_at = page.since(sent), page.version, page.at
                yield news
                continue
            if sent and not page.live:
                yield OVER
                return
            try:
                async with asyncio.timeout(ALIVE_EVERY):
                    await self._changed.wait()
            except TimeoutError:
                yield event("alive", at=page.at) if told_at != page.at else b":\n\n"
                told_at = page.at
        yield self._last or b":\n\n"


class Streams:
    """All streams of one process. The tasks of this class run only while a stream is open."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._open: set[Stream] = set()
        self._pages: dict[Hashable, _Page] = {}
        self._turn = asyncio.Semaphore(1)
        self._checks: asyncio.Task[None] | None = None
        self._ending = False

    def __len__(self) -> int:
        """Return the number of open streams."""
        return len(self._open)

    def is_full(self, session: Session) -> bool:
        """Return True if this session can open no further stream; False if it can."""
        of_token = sum(each.session.key_id == session.key_id for each in self._open)
        return self._ending or len(self) >= MOST or of_token >= MOST_OF_TOKEN

    def open(self, key: Hashable, session: Session, *, read: Callable[[], Awaitable[Content]]) -> Stream:
        """Return a stream of the page `key`, which `read` reads. All readers of `key` must have the same rights.

        The caller must check `is_full` before, and must have verified the session.
        """
        page = self._pages.get(key)
        if page is None:
            page = self._pages[key] = _Page(read)
            page.task = asyncio.create_task(self._keep(key, page))
        stream = Stream(self, key, page, session)
        page.streams.add(stream)
        self._open.add(stream)
        if self._checks is None:
            self._checks = asyncio.create_task(self._check())
        return stream

    def close(self, key: Hashable, stream: Stream) -> None:
        """Remove a stream that has ended, and stop reading its page if nobody else watches the page."""
        page = stream.page
        page.streams.discard(stream)
        self._open.discard(stream)
        if not page.streams:
            self._forget(key, page)
            if page.task is not None:
                page.task.cancel()
        if not self._open and self._checks is not None:
            self._checks.cancel()
            self._checks = None

    def end_all(self) -> None:
        """End every stream, and open no further one. A stopping process calls this method first."""
        self._ending = True
        for stream in self._open:
            stream.end()

    def _forget(self, key: Hashable, page: _Page) -> None:
        """Let the next stream of `key` begin a new page."""
        if self._pages.get(key) is page:
            del self._pages[key]

    async def _keep(self, key: Hashable, page: _Page) -> None:
        """Read a page until nobody watches it or a read fails. New streams never join a page that is not read."""
        try:
            await self._read(page)
        finally:
            self._forget(key, page)
            for stream in page.streams:
                stream.end(RELOAD)

    async def _read(self, page: _Page) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                async with self._turn:
                    content = await page.read()
                await page.show(content)
            except Exception as error:  # noqa: BLE001  every error is logged, or shown by the page that is loaded again
                if not _is_passing(error):
                    return
            await asyncio.sleep(max(EVERY, PAUSE * (loop.time() - began)))

    async def _check(self) -> None:
        """End the streams whose sessions have ended, or could not be checked for too long."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(CHECK_EVERY)
            began, sessions = loop.time(), {stream.session for stream in self._open}
            valid: frozenset[Session] | None = None
            try:
                async with asyncio.timeout(CHECK_WITHIN):
                    valid = await self._database.run(partial(still_valid, sessions=sessions, now=utcnow()))
            except Exception as error:  # noqa: BLE001  streams that cannot be checked must end, whatever the error is
                _unchecked.add(error=cause_of(error))
            for stream in self._open:
                if valid is not None and stream.session in valid:
                    stream.checked_at = began
                elif stream.session in sessions and (valid is not None or began - stream.checked_at > CHECKED_WITHIN):
                    stream.end(RELOAD if valid is not None else b"")


def _is_passing(error: Exception) -> bool:
    """Return True if the next read might succeed; False if the page must be loaded again, which shows the error."""
    if isinstance(error, DBAPIError | PoolTimeout):
        error = database_failed(error)
    if isinstance(error, Refusal):
        return error.status is HTTPStatus.SERVICE_UNAVAILABLE
    log.error("ui.stream_failed", error=cause_of(error), exc_info=error)
    return False

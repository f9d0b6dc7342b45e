"""The dashboard over a database, called without a socket, and readers with a session."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from ostler.settings import Settings
from rules.token_scopes import TokenScope
from tests.database import Database
from tests.integration.web.api.conftest import Client, Stage, make_settings, make_token
from tests.outbox import PublisherOutbox
from web.api.database import Database as ApiDatabase
from web.ui import pages
from web.ui.app import mount_ui
from web.ui.streams import Streams

OWN = {"Origin": "http://ostler"}


@dataclass
class Dashboard(Stage):
    """The dashboard, its settings, and the cookie of a reader of the whole fleet."""

    settings: Settings
    streams: Streams
    cookie: str = ""

    def call(self, method: str, path: str, *, cookie: str | None = None, **how: Any) -> httpx.Response:
        """Send a request with the cookie of a session. With an empty cookie, the request has no session."""
        value = self.cookie if cookie is None else cookie
        self.client._client.cookies.clear()  # each story says itself which cookie it sends
        headers = {"Cookie": f"ostler_session={value}"} if value else {}
        return self.client.call(method, path, headers=headers | how.pop("headers", {}), **how)

    def see(self, path: str = "/ui/", **how: Any) -> httpx.Response:
        return self.call("GET", path, **how)

    def send_login(self, token: str, **how: Any) -> httpx.Response:
        return self.call(
            "POST",
            "/ui/login",
            cookie="",
            headers=how.pop("headers", OWN),
            data={"token": token, **how.pop("data", {})},
        )

    def log_in(self, token: str) -> str:
        """Return the cookie of a new session."""
        answer = self.send_login(token)
        assert answer.status_code == 303, answer.text
        return answer.headers["set-cookie"].split(";")[0].partition("=")[2]


@pytest.fixture
def dashboard(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dashboard]:
    for each in ("SHARED_FOR", "WAITS_SHARED_FOR"):
        monkeypatch.setattr(pages, each, timedelta())
    pool, app, settings = ApiDatabase(database.engine), FastAPI(), make_settings(database)
    streams = Streams(pool)
    outbox = PublisherOutbox()
    mount_ui(app, settings, database=lambda: pool, streams=lambda: streams, publisher=lambda: outbox)
    client = Client(app)
    found = Dashboard(
        engine=database.engine,
        app=app,
        client=client,
        outbox=outbox,
        reader=make_token(database.engine, TokenScope.READ, name="reader"),
        writer=make_token(database.engine, TokenScope.WRITE, name="writer"),
        settings=settings,
        streams=streams,
    )
    found.cookie = found.log_in(found.reader)
    yield found
    client.close()
    pool.stop()

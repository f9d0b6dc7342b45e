"""One web application with its API, called without a socket. Each test inserts its rows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from cryptography.fernet import Fernet
from fastapi import FastAPI
from sqlalchemy import Engine

from models import api_tokens
from models.db.engine import transaction
from ostler.secrets import Secret
from ostler.settings import Settings
from rules.token_scopes import TokenScope
from tests.database import Database
from tests.outbox import PublisherOutbox
from tests.rows import author, insert_account, insert_job, insert_pool, run_sql
from web.api.app import build_api, mount_api
from web.api.database import Database as ApiDatabase


class Client:
    """A synchronous client of the ASGI application, with its own event loop."""

    def __init__(self, app: FastAPI) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app, raise_app_exceptions=False), base_url="http://ostler"
        )

    def call(self, method: str, path: str, *, token: str | None = None, **how: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        headers |= how.pop("headers", {})
        return self._loop.run_until_complete(self._client.request(method, path, headers=headers, **how))

    def close(self) -> None:
        self._loop.run_until_complete(self._client.aclose())
        self._loop.close()


@dataclass
class Stage:
    """The API over a database, and its tokens."""

    engine: Engine
    app: FastAPI
    client: Client
    outbox: PublisherOutbox
    reader: str
    writer: str

    def get(self, path: str, **query: Any) -> httpx.Response:
        return self.client.call("GET", f"/api/v1{path}", token=self.reader, params=query)

    def put(self, path: str, body: Any) -> httpx.Response:
        return self.client.call("PUT", f"/api/v1{path}", token=self.writer, json=body)

    def token(self, *scopes: TokenScope, **how: Any) -> str:
        return make_token(self.engine, *scopes, **how)

    def execute(self, statement: str, **values: Any) -> Any:
        return run_sql(self.engine, statement, **values)

    def account(self, account_id: int = 7, login: str = "acme", *, count: int = 10) -> None:
        insert_account(self.engine, account_id, login, count=count)

    def pool(self, name: str = "small", *, labels: tuple[str, ...] = ("linux", "small")) -> int:
        return insert_pool(self.engine, name, labels=list(labels), vcpu=2000, memory=4096, replicas=3)

    def job(self, job_id: int, **columns: Any) -> None:
        insert_job(self.engine, job_id, **columns)


def make_token(engine: Engine, *scopes: TokenScope, name: str = "test", **how: Any) -> str:
    by = author()
    _, token = transaction(
        engine,
        lambda db: api_tokens.create(db, name=name, scopes=scopes, by=by, **{"expires_at": None, **how}),
    )
    return token.reveal()


def make_settings(database: Database) -> Settings:
    return Settings(
        database_url=database.url,
        redis_url=Secret("redis://unused"),
        github_app_id="1",
        github_private_key=Secret("unused"),
        new_accounts="serve",
        webhook_secrets=(Secret("of-these-tests-alone"),),
        encryption_keys=(Secret(Fernet.generate_key().decode()),),
    )


@contextmanager
def serving(database: Database) -> Iterator[Stage]:
    """Yield the API over a database."""
    outbox = PublisherOutbox()
    pool = ApiDatabase(database.engine)
    app = FastAPI()
    mount_api(app, build_api(make_settings(database), database=lambda: pool, publisher=lambda: outbox))
    client = Client(app)
    yield Stage(
        engine=database.engine,
        app=app,
        client=client,
        outbox=outbox,
        reader=make_token(database.engine, TokenScope.READ, name="reader"),
        writer=make_token(database.engine, TokenScope.WRITE, name="writer"),
    )
    client.close()
    pool.stop()


@pytest.fixture
def stage(database: Database) -> Iterator[Stage]:
    with serving(database) as stage:
        yield stage

"""Fixtures: one Postgres and one Redis per run, a new migrated database per test."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event

from lab.postgres import Postgres
from lab.redis import Redis
from models.db import client_waits, epochs, migrate
from models.db.engine import make_engine
from ostler.clock import utcnow
from ostler.secrets import Secret

_numbers = itertools.count()
_TEMPLATE = "ostler_template"


@dataclass(frozen=True, slots=True)
class Database:
    """The migrated database of a test."""

    engine: Engine
    url: Secret


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """A real server with a migrated template database."""
    server = Postgres(tmp_path_factory.mktemp("postgres"), fsync=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_waits, "CONNECT", 60.0)  # a busy machine is slow to fork; what 5 s do is a test of its own
        server.start()
        server.create_database(_TEMPLATE)
        engine = make_engine(Secret(server.url(_TEMPLATE)), pool_size=2, application="migrations")
        migrate.upgrade(engine)
        engine.dispose()
        yield server
        server.stop()


def _wait_for_locks(connection: Any, _record: Any) -> None:
    """Let a connection wait for locks for longer than the 5 s of a real process, because the machine might be busy."""
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '60s'")
    connection.commit()


@pytest.fixture
def database(postgres: Postgres) -> Iterator[Database]:
    """A new copy of the template, with an engine of 20 connections that wait for locks as long as a test may take."""
    name = f"test_{os.getpid()}_{next(_numbers)}"
    postgres.create_database(name, template=_TEMPLATE)
    url = Secret(postgres.url(name))
    engine = make_engine(url, pool_size=20, application="test")
    event.listen(engine, "connect", _wait_for_locks)
    with engine.begin() as db:  # what the comparison with a cluster does is a test of its own
        now = utcnow()
        epochs.confirm(db, epochs.read(db, now=now).epoch, trusted_for=timedelta(days=365), now=now)
    engine.dispose()
    yield Database(engine, url)
    engine.dispose()
    postgres.drop_database(name)  # each has 12 MB: thousands of tests would fill a small disk


@pytest.fixture(scope="session")
def redis_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    """A real Redis for the run."""
    server = Redis(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def redis_server(redis_session: Redis) -> Redis:
    """The Redis of the run, without any key."""
    redis_session.flush()
    return redis_session

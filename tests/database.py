"""Fixtures: one Postgres and one Redis per run, a fresh migrated database per test."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import Engine

from lab.postgres import Postgres
from lab.redis import Redis
from models import migrate
from models.engine import make_engine
from ostler.secrets import Secret

_numbers = itertools.count()
_TEMPLATE = "ostler_template"


@dataclass(frozen=True, slots=True)
class Database:
    """One migrated database of a test."""

    engine: Engine
    url: Secret


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A real server with a migrated template database."""
    # Not below pytest's own folder: another run sets that to 0700, and Postgres may run as another user.
    folder = Path(tempfile.mkdtemp(prefix="ostler-test-"))
    server = Postgres(folder, fsync=False)
    server.start()
    server.create_database(_TEMPLATE)
    engine = make_engine(Secret(server.url(_TEMPLATE)), pool_size=2, application="migrations")
    migrate.upgrade(engine)
    engine.dispose()
    yield server
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def database(postgres: Postgres) -> Iterator[Database]:
    """A fresh copy of the template, with an engine of 20 connections."""
    name = f"test_{os.getpid()}_{next(_numbers)}"
    postgres.create_database(name, template=_TEMPLATE)
    url = Secret(postgres.url(name))
    engine = make_engine(url, pool_size=20, application="test")
    yield Database(engine, url)
    engine.dispose()


@pytest.fixture(scope="session")
def redis_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    """A real Redis for the run."""
    server = Redis(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def redis_server(redis_session: Redis) -> Redis:
    """The run's Redis, emptied."""
    redis_session.flush()
    return redis_session

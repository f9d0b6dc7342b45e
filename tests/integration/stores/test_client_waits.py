"""No thread waits for Postgres forever: a server that never answers costs seconds and one connection."""

from __future__ import annotations

import os
import resource
import signal
import socket
from collections.abc import Iterator

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, OperationalError

from models.db import client_waits
from models.db.engine import make_engine, transaction
from ostler.secrets import Secret
from tests.database import Database
from tests.integration.web.polls.stage import Stage, make_settings
from tests.waiting import eventually


def test_a_frozen_backend_is_given_up_and_another_one_answers(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_waits, "ANSWER", 1.0)
    with database.engine.connect() as db:
        backend = int(db.execute(text("SELECT pg_backend_pid()")).scalar_one())
        os.kill(backend, signal.SIGSTOP)
        try:
            with pytest.raises(OperationalError, match="did not answer within 1 s"):
                db.execute(text("SELECT 1"))
            another = transaction(
                database.engine, lambda db: int(db.execute(text("SELECT pg_backend_pid()")).scalar_one())
            )
        finally:
            os.kill(backend, signal.SIGCONT)
    assert another != backend


def test_a_server_that_accepts_and_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_waits, "CONNECT", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql+psycopg2://ostler@127.0.0.1:{silent.getsockname()[1]}/ostler"
        engine = make_engine(Secret(url), pool_size=1, application="test")
        with pytest.raises(OperationalError, match=r"did not answer within 0\.5 s"):
            engine.connect()


def test_a_session_that_may_only_read_is_left_for_a_new_one(database: Database) -> None:
    engine = make_engine(database.url, pool_size=2, application="test")
    write = text("INSERT INTO accounts VALUES (1, 'acme', 1, 10, 100000, 100000, '[]', now())")
    with engine.begin() as db:  # stays in the pool, as a session that outlived a failover does
        db.execute(text("SET default_transaction_read_only = on"))

    with pytest.raises(DBAPIError, match="read-only transaction"):
        transaction(engine, lambda db: db.execute(write))
    transaction(engine, lambda db: db.execute(write))
    engine.dispose()


@pytest.fixture
def crowded() -> Iterator[None]:
    """Use all file descriptors below 1,100, as held polls do."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard < 4096 else max(soft, 4096), hard))
    held = [socket.socket() for _ in range(1100)]
    yield
    for each in held:
        each.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("crowded")
def test_a_listener_hears_beyond_the_first_1024_descriptors(database: Database) -> None:
    stage = Stage(
        engine=database.engine,
        settings=make_settings(database_url=database.url, redis_url="redis://127.0.0.1:1/0"),
    )
    web = stage.start_web()  # which hears, or it would not have started
    try:
        stage.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'ostler-listener'"
        )
        eventually(lambda: web.web.listener.connects > 1 and web.web.listener.is_hearing)
    finally:
        stage.stop_web(web)

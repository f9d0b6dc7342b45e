"""Connections that die in the pool: those that are tested before use, and the effect of the others on a transaction."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError, OperationalError

from lab.postgres import Postgres
from models.db import engine as engines
from models.db.engine import assert_own_sessions, make_engine, transaction
from ostler.errors import ConfigurationError
from ostler.reasons import reason_of
from ostler.secrets import Secret
from tests.database import Database

ME = "pool-test"


@pytest.fixture
def pool(database: Database) -> Iterator[Engine]:
    engine = make_engine(database.url, pool_size=3, application=ME)
    yield engine
    engine.dispose()


@pytest.fixture
def pings(pool: Engine, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every connection that was tested before use."""
    asked: list[object] = []
    ask = pool.dialect.do_ping

    def noted(connection: object) -> bool:
        asked.append(connection)
        return ask(connection)  # type: ignore[arg-type]

    monkeypatch.setattr(pool.dialect, "do_ping", noted)
    return asked


def backend(db: Connection) -> int:
    return int(db.execute(text("SELECT pg_backend_pid()")).scalar_one())


def kill(database: Database) -> None:
    """Terminate the pool's backends, and wait until they are gone."""
    with database.engine.connect() as db:
        ended = db.execute(
            text("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = :me"),
            {"me": ME},
        )
        assert all(ended.scalars())


def fill(pool: Engine) -> set[int]:
    """Fill the pool with three connections, and return their backends."""
    with pool.connect() as one, pool.connect() as two, pool.connect() as three:
        return {backend(one), backend(two), backend(three)}


def test_a_connection_that_was_just_used_is_not_asked(pool: Engine, pings: list[object]) -> None:
    transaction(pool, backend)
    transaction(pool, backend)
    assert pings == []


def test_one_that_was_idle_is_asked(pool: Engine, pings: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    first = transaction(pool, backend)
    monkeypatch.setattr(engines, "PING_AFTER", 0)
    assert transaction(pool, backend) == first
    assert len(pings) == 1


@pytest.mark.parametrize("ping_after", [0, 3600])
def test_connections_that_died_in_the_pool_are_replaced(
    database: Database, pool: Engine, pings: list[object], ping_after: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "PING_AFTER", ping_after)
    dead = fill(pool)
    kill(database)
    pings.clear()

    assert transaction(pool, backend) not in dead
    # The first that was found dead took the others with it: no further one is met.
    assert not fill(pool) & dead
    assert bool(pings) == (ping_after == 0)


def test_what_a_lost_transaction_did_is_done_once(database: Database, pool: Engine) -> None:
    transaction(pool, lambda db: db.execute(text("CREATE TABLE runs (number int)")))
    runs: list[int] = []

    def body(db: Connection) -> None:
        runs.append(len(runs))
        db.execute(text("INSERT INTO runs VALUES (:number)"), {"number": len(runs)})
        if len(runs) == 1:
            kill(database)
        db.execute(text("SELECT 1"))

    transaction(pool, body)

    assert runs == [0, 1]
    assert transaction(pool, lambda db: db.execute(text("SELECT number FROM runs")).scalars().all()) == [2]


def test_a_commit_that_was_lost_is_not_repeated(database: Database, pool: Engine) -> None:
    runs: list[int] = []

    def body(db: Connection) -> None:
        runs.append(backend(db))
        kill(database)

    with pytest.raises(OperationalError):
        transaction(pool, body)
    assert len(runs) == 1


def test_a_connection_that_dies_each_time_is_told(database: Database, pool: Engine) -> None:
    runs: list[int] = []

    def body(db: Connection) -> None:
        runs.append(backend(db))
        kill(database)
        db.execute(text("SELECT 1"))

    with pytest.raises(OperationalError):
        transaction(pool, body)
    assert len(runs) == 2


def test_a_server_that_is_gone_is_told(postgres: Postgres) -> None:
    url = postgres.url("ostler_template")
    engine = make_engine(Secret(url.replace("ostler_template", "never_made")), pool_size=1, application=ME)
    with pytest.raises(OperationalError, match="never_made"):
        transaction(engine, backend)


def test_session_gets_its_limits_and_utc_without_startup_options(pool: Engine) -> None:
    with pool.connect() as db:
        db.exec_driver_sql("ALTER ROLE CURRENT_USER SET timezone = 'Europe/Berlin'")
        db.commit()
    pool.dispose()
    with pool.connect() as db:
        db.exec_driver_sql("ALTER ROLE CURRENT_USER RESET timezone")
        db.commit()
        limits = [
            db.exec_driver_sql(f"SHOW {name}").scalar_one()
            for name in ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout", "TimeZone")
        ]
        raw = db.connection.dbapi_connection
        assert raw is not None
        parameters = raw.info.dsn_parameters
    assert limits == ["5s", "20s", "30s", "UTC"]
    assert not parameters.get("options")  # PgBouncer refuses or ignores them


@pytest.mark.parametrize("statement", ["default_transaction_read_only", "transaction_read_only"])
def test_read_only_session_of_a_primary_is_not_called_a_standby(pool: Engine, statement: str) -> None:
    def write(db: Connection) -> None:
        db.exec_driver_sql(f"SET {statement} = on")
        if statement.startswith("default"):
            db.commit()
            db.begin()
        db.exec_driver_sql("CREATE TABLE never_made (id int)")

    with pool.connect() as db, pytest.raises(DBAPIError) as caught:
        write(db)
    assert reason_of(caught.value) == "Postgres refuses writes (default_transaction_read_only)"


@pytest.mark.parametrize("backends", [(7, 7), (7, 8, 8)], ids=["second has the session", "first lost its session"])
def test_pooler_that_shares_sessions_is_refused_with_a_cure(
    pool: Engine, monkeypatch: pytest.MonkeyPatch, backends: tuple[int, ...]
) -> None:
    assert_own_sessions(pool)

    answers = iter(backends)
    monkeypatch.setattr(engines, "_backend_of", lambda _: next(answers))
    with pytest.raises(ConfigurationError, match="set the pooler to session mode"):
        assert_own_sessions(pool)

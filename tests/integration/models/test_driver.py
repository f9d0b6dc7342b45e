"""SQL text that the driver executes gives the rows and the errors that SQLAlchemy gives."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError, NoResultFound, StatementError

from models.db import client_waits
from models.db.driver import DriverConnection, DriverResult
from models.db.engine import is_locked, transaction
from models.db.prepared import Prepared
from models.db.sql import text
from tests.database import Database

AT = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def both(database: Database, read: Callable[[Connection], Any]) -> list[Any]:
    """Return the result of `read` by the driver, and by SQLAlchemy."""
    found = [transaction(database.engine, read)]
    event.listen(database.engine, "before_cursor_execute", lambda *_: None)
    return [*found, transaction(database.engine, read)]


def test_sql_text_goes_to_the_driver_unless_someone_listens(database: Database) -> None:
    kinds = both(database, lambda db: isinstance(db.execute(text("SELECT 1")), DriverResult))
    assert kinds == [True, False]


@pytest.mark.parametrize(
    "read",
    [
        lambda db: [tuple(row) for row in db.execute(text("SELECT n, :at AS at FROM unnest(:ns) n"), VALUES)],
        lambda db: [dict(row._mapping) for row in db.execute(text("SELECT 1 AS a, '%' AS b, '::x' AS c"))],
        lambda db: db.execute(text("SELECT CAST(:at AS timestamptz) AS at"), VALUES).one().at,
        lambda db: db.execute(text("SELECT n FROM unnest(:ns) n"), VALUES).scalars().all(),
        lambda db: db.execute(text("SELECT CAST('{\"a\": [1]}' AS jsonb)")).scalar_one(),
        lambda db: db.execute(text("SELECT 1 WHERE false")).one_or_none(),
        lambda db: db.execute(text("SELECT 1.5::numeric AS a, NULL AS b")).one()._asdict(),
        lambda db: db.execute(text("UPDATE jobs SET state = state WHERE :no"), {"no": False}).rowcount,
        lambda db: db.execute(text("SET LOCAL lock_timeout = 100; SELECT count(*) AS count FROM jobs")).one().count,
        lambda db: list(db.execute(text("SELECT 1 AS a UNION SELECT 2 ORDER BY 1")).mappings()),
    ],
)
def test_rows_are_the_same_by_the_driver(database: Database, read: Callable[[Connection], Any]) -> None:
    by_driver, by_sqlalchemy = both(database, read)
    assert by_driver == by_sqlalchemy


VALUES: dict[str, Any] = {"ns": [1, 2], "at": AT}


def failure(database: Database, run: Callable[[Connection], Any]) -> Exception:
    try:
        transaction(database.engine, run)
    except Exception as error:  # noqa: BLE001  the test compares it
        return error
    raise AssertionError("the statement was accepted")


@pytest.mark.parametrize(
    "run",
    [
        lambda db: db.execute(text("SELECT 1 / :zero"), {"zero": 0}),
        lambda db: db.execute(text("SELECT :missing"), {}),
        lambda db: db.execute(text("no SQL")),
        lambda db: db.execute(text("SELECT 1 WHERE false")).one(),
    ],
)
def test_errors_are_the_same_by_the_driver(database: Database, run: Callable[[Connection], Any]) -> None:
    first = failure(database, run)
    event.listen(database.engine, "before_cursor_execute", lambda *_: None)
    second = failure(database, run)
    kinds = (NoResultFound, DBAPIError, StatementError)
    assert [isinstance(first, kind) for kind in kinds] == [isinstance(second, kind) for kind in kinds]
    assert getattr(first, "orig", None).__class__ is getattr(second, "orig", None).__class__ or isinstance(
        first, StatementError
    )


def test_an_error_by_the_driver_contains_no_value(database: Database) -> None:
    error = failure(database, lambda db: db.execute(text("SELECT 1 / length(:jit)"), {"jit": "", "x": "secret-jit"}))
    assert "secret-jit" not in str(error)
    assert isinstance(error, DBAPIError)
    assert getattr(error.orig, "pgcode", None) == "22012"


def test_a_locked_row_is_recognised_by_the_driver(database: Database) -> None:
    lock = text("SET LOCAL lock_timeout = 10; SELECT pg_advisory_xact_lock(:n)")
    with database.engine.connect() as other, other.begin():
        other.execute(lock, {"n": 5})
        assert is_locked(failure(database, lambda db: db.execute(lock, {"n": 5})))


def test_a_broken_connection_is_replaced_and_the_transaction_runs_again(database: Database) -> None:
    runs: list[int] = []

    def body(db: Connection) -> int:
        pid = int(db.execute(text("SELECT pg_backend_pid()")).scalar_one())
        runs.append(pid)
        if len(runs) == 1:
            with database.engine.connect() as other, other.begin():
                other.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
        return int(db.execute(text("SELECT 7")).scalar_one())

    assert transaction(database.engine, body) == 7
    first, second = runs
    assert first != second


def test_a_failed_statement_rolls_its_transaction_back(database: Database) -> None:
    def body(db: Connection) -> None:
        db.execute(text("CREATE TABLE half (n int)"))
        db.execute(text("SELECT 1 / 0"))

    failure(database, body)
    assert transaction(database.engine, lambda db: db.execute(text("SELECT to_regclass('half')")).scalar_one()) is None


def test_a_statement_outside_a_transaction_begins_one(database: Database) -> None:
    with database.engine.connect() as db:
        assert isinstance(db, DriverConnection)
        db.execute(text("SELECT 1"))
        assert db.in_transaction()


@pytest.mark.parametrize("listened", [False, True])
@pytest.mark.parametrize("way", ["text", "driver", "prepared"])
def test_lock_waits_of_a_loop_apply_from_its_first_statement(database: Database, *, listened: bool, way: str) -> None:
    if listened:
        event.listen(database.engine, "before_cursor_execute", lambda *_: None)
    show = "SELECT current_setting('lock_timeout') AS found, :n AS n"
    prepared = Prepared(f"lock_waits_{way}_{listened}", show, n="int")

    def body(db: Connection) -> str:
        if way == "text":
            return str(db.execute(text(show), {"n": 1}).one().found)
        if way == "driver":
            return str(db.exec_driver_sql("SELECT current_setting('lock_timeout')").scalar_one())
        return str(prepared.execute(db, n=1).one().found)

    with client_waits.brief_waits():
        assert transaction(database.engine, body) == "300ms"
    assert transaction(database.engine, body) != "300ms"


QUERY = text("SELECT query FROM pg_stat_activity WHERE pid = pg_backend_pid()")


def test_begin_and_lock_waits_are_sent_with_the_first_statement(database: Database) -> None:
    def body(db: Connection) -> list[str]:
        found = [str(db.execute(QUERY).scalar_one())]
        db.execute(text("SELECT pg_stat_clear_snapshot()"))
        return [*found, str(db.execute(QUERY).scalar_one())]

    with client_waits.brief_waits():
        first, second = transaction(database.engine, body)
    assert first == f"BEGIN; SET LOCAL lock_timeout = 300; {QUERY.text}"
    assert second == QUERY.text


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("listened", [False, True])
def test_a_transaction_is_whole_or_nothing_and_never_stays_open(
    database: Database, *, fails: bool, listened: bool
) -> None:
    if listened:
        event.listen(database.engine, "before_cursor_execute", lambda *_: None)

    def body(db: Connection) -> None:
        db.execute(text("CREATE TABLE whole AS SELECT txid_current() AS id"))
        db.execute(text("INSERT INTO whole SELECT txid_current()"))
        if fails:
            raise KeyError

    with suppress(KeyError):
        transaction(database.engine, body)
    with database.engine.connect() as db:
        exists = db.execute(text("SELECT to_regclass('whole') IS NOT NULL")).scalar_one()
        assert exists is not fails
        if exists:
            assert db.execute(text("SELECT count(DISTINCT id) FROM whole")).scalar_one() == 1
    open_ones = text("SELECT query FROM pg_stat_activity WHERE state LIKE 'idle in%' AND datname = current_database()")
    assert transaction(database.engine, lambda db: db.execute(open_ones).all()) == []


@pytest.mark.parametrize("way", ["execute", "exec_driver_sql"])
def test_the_first_statement_of_an_implicit_transaction_is_rolled_back(database: Database, way: str) -> None:
    with database.engine.connect() as db:
        if way == "execute":
            db.execute(text("CREATE TABLE implicit ()"))
        else:
            db.exec_driver_sql("CREATE TABLE implicit ()")
    found = text("SELECT to_regclass('implicit')")
    assert transaction(database.engine, lambda db: db.execute(found).scalar_one()) is None


def test_a_savepoint_is_rolled_back_alone(database: Database) -> None:
    with database.engine.connect() as db, db.begin():
        with suppress(KeyError), db.begin_nested():
            db.execute(text("CREATE TABLE inner_one ()"))
            raise KeyError
        db.execute(text("CREATE TABLE outer_one ()"))
    found = text("SELECT to_regclass('inner_one') IS NULL, to_regclass('outer_one') IS NULL")
    assert tuple(transaction(database.engine, lambda db: db.execute(found).one())) == (True, False)


def test_a_connection_with_autocommit_begins_no_transaction_and_serves_transactions_later(database: Database) -> None:
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
        db.execute(text("CREATE TABLE alone ()"))
        with database.engine.connect() as other:
            assert other.execute(text("SELECT to_regclass('alone') IS NOT NULL")).scalar_one()
    failure(database, lambda db: (db.execute(text("DROP TABLE alone")), db.execute(text("SELECT 1 / 0"))))
    assert transaction(database.engine, lambda db: db.execute(text("SELECT to_regclass('alone')")).scalar_one())

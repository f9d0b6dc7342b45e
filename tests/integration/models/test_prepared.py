"""Statements that are prepared once per connection."""

from __future__ import annotations

import itertools

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from models.db.engine import transaction
from models.db.prepared import Prepared, written
from tests.database import Database

_numbers = itertools.count()


def doubling() -> Prepared:
    return Prepared(
        f"test_{next(_numbers)}",
        "SELECT n * 2 AS twice, CAST(:at AS text) || '::at' AS at, '%' AS percent FROM unnest(:ns) n WHERE n <> :not_n",
        ns="bigint[]",
        at="text",
        not_n="bigint",
    )


def run(db: Connection, statement: Prepared) -> list[tuple[int, str, str]]:
    return [tuple(row) for row in statement.execute(db, ns=[1, 2, 3], not_n=2, at="here")]


def names(db: Connection) -> set[str]:
    return set(db.execute(text("SELECT name FROM pg_prepared_statements")).scalars())


def test_a_connection_prepares_once_and_keeps_it_when_its_transaction_fails(database: Database) -> None:
    statement = doubling()
    with database.engine.connect() as db:
        assert run(db, statement) == [(2, "here::at", "%"), (6, "here::at", "%")]
        db.rollback()
        assert statement.name in names(db)
        assert run(db, statement) == [(2, "here::at", "%"), (6, "here::at", "%")]
        assert statement.execute(db, ns=[], not_n=2, at="").all() == []


@pytest.mark.parametrize("reset", ["DEALLOCATE ALL", "DISCARD ALL"])
def test_a_connection_that_forgot_is_given_up_and_the_next_one_works(database: Database, reset: str) -> None:
    statement = doubling()
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
        run(db, statement)
        before = db.execute(text("SELECT pg_backend_pid()")).scalar_one()
        db.exec_driver_sql(reset)
        with pytest.raises(DBAPIError):
            run(db, statement)

    def again(db: Connection) -> int:
        run(db, statement)
        return int(db.execute(text("SELECT pg_backend_pid()")).scalar_one())

    assert transaction(database.engine, again) != before


def test_prepared_statement_works_on_the_next_connection_after_its_result_changed(database: Database) -> None:
    statement = Prepared(f"test_{next(_numbers)}", "SELECT * FROM made WHERE a = :a", a="bigint")
    with database.engine.begin() as db:
        db.exec_driver_sql("CREATE TABLE made AS SELECT 1 AS a")
        assert len(statement.execute(db, a=1).one()) == 1
        db.exec_driver_sql("ALTER TABLE made ADD b int")
    with pytest.raises(DBAPIError):
        transaction(database.engine, lambda db: statement.execute(db, a=1))
    assert transaction(database.engine, lambda db: len(statement.execute(db, a=1).one())) == 2


def test_names_are_unique_and_lead_back_to_the_statement() -> None:
    statement = Prepared(f"test_{next(_numbers)}", "SELECT :n", n="bigint")
    assert written(f"EXECUTE {statement.name} (1)") == "SELECT :n"
    assert written("SELECT 1") == "SELECT 1"
    with pytest.raises(ValueError, match="two statements"):
        Prepared(statement.name.removeprefix("ostler_"), "SELECT 1")

"""Execution of SQL text by the driver itself, without SQLAlchemy's execution context.

For a statement of SQL text, SQLAlchemy's context, its cache lookup and the description of the result columns need more
CPU than psycopg2 and the network together. `DriverConnection` passes such a statement to the cursor of psycopg2. Its
callers get the same rows and the same exceptions. Every other statement, and every statement while a listener of
SQLAlchemy's cursor events exists, is executed by SQLAlchemy.

The pool and the transactions stay SQLAlchemy's. Only the BEGIN differs: psycopg2 sends it in a message of its own, and
`DriverConnection` sends it in the same message as the first statement of the transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any

from psycopg2.extensions import TRANSACTION_STATUS_IDLE
from sqlalchemy import Connection, Dialect, Engine, TextClause, event
from sqlalchemy.engine import IteratorResult
from sqlalchemy.engine.result import SimpleResultMetaData


class DriverResult(IteratorResult[Any]):
    """The rows of one statement, which are all in memory, and the number of rows that it changed or returned."""

    def __init__(self, names: tuple[str, ...], rows: Sequence[Any], rowcount: int) -> None:
        super().__init__(_metadata(names), iter(rows))
        self.rowcount = rowcount
        self.returns_rows = bool(names)


@lru_cache(maxsize=1000)
def _metadata(names: tuple[str, ...]) -> SimpleResultMetaData:
    return SimpleResultMetaData(names)


@lru_cache(maxsize=1000)
def _sql(statement: TextClause, dialect: Dialect) -> str:
    """Return the SQL of a statement with the parameters in the style of the driver."""
    return str(statement.compile(dialect=dialect))


_name_of = itemgetter(0)


class DriverConnection(Connection):
    """Connection that executes SQL text by the driver."""

    first = ""
    """SQL that is sent in the same message as the next statement, in front of it."""

    def before_next(self, sql: str) -> None:
        """Execute `sql` before the next statement of the transaction, in the same message to Postgres if possible.

        `sql` has no parameters and gives no rows. Without a next statement, `sql` is not executed.
        """
        self.first += f"{sql}; "

    def exec_driver_sql(self, statement: str, parameters: Any = None, execution_options: Any = None) -> Any:
        """Execute a statement as SQLAlchemy does, after the SQL of `before_next`."""
        self._send_first()
        return super().exec_driver_sql(statement, parameters, execution_options)

    def execute(self, statement: Any, parameters: Any = None, *, execution_options: Any = None) -> Any:
        """Execute a statement and return its result, as SQLAlchemy does.

        Raises the errors of SQLAlchemy. A result of this class has all rows, so it may be read after the transaction.
        """
        if not self._goes_to_driver(statement, parameters, execution_options):
            self._send_first()
            return super().execute(statement, parameters, execution_options=execution_options)
        return self._run(_sql(statement, self.dialect), parameters)

    def _goes_to_driver(self, statement: Any, parameters: Any, options: Any) -> bool:
        """Return True if the statement is SQL text with one set of parameters, inside a plain transaction."""
        return (
            type(statement) is TextClause
            and (parameters is None or isinstance(parameters, Mapping))
            and options is None
            and self.in_transaction()
            and not self.in_nested_transaction()
            and not self.dispatch.before_cursor_execute
            and not self.dispatch.after_cursor_execute
        )

    def _send_first(self) -> None:
        """Send BEGIN and the SQL of `before_next`. Without a transaction, begin one, as SQLAlchemy would do later."""
        if self.get_transaction() is None:
            self.begin()
        if self.first:
            self._run("", None)

    def _run(self, sql: str, parameters: Any) -> DriverResult:
        first, self.first = self.first, ""
        cursor = self.connection.cursor()
        try:
            cursor.execute(first + sql, parameters or {})
            names = tuple(map(_name_of, cursor.description or ()))
            rows: Sequence[Any] = cursor.fetchall() if names else ()
        except BaseException as error:  # noqa: BLE001  SQLAlchemy translates it and discards a broken connection
            self._handle_dbapi_exception(error, sql, parameters, cursor, None)
        rowcount = cursor.rowcount
        cursor.close()
        return DriverResult(names, rows, rowcount)


def use_driver(engine: Engine) -> None:
    """Make the connections of an engine execute SQL text by the driver, and send BEGIN with the first statement."""
    engine._connection_cls = DriverConnection  # noqa: SLF001  SQLAlchemy has no public name for it
    event.listen(engine, "connect", _begin_by_hand)
    event.listen(engine, "begin", _begin)
    engine.dialect.do_commit = commit  # type: ignore[method-assign,assignment]
    engine.dialect.do_rollback = rollback  # type: ignore[method-assign,assignment]


def _begin_by_hand(connection: Any, _: object) -> None:
    """Make psycopg2 send no BEGIN. It then sends no COMMIT and no ROLLBACK either."""
    connection.autocommit = True


def _begin(db: Connection) -> None:
    # A connection with the isolation level AUTOCOMMIT gets no BEGIN, and psycopg2 sends it after a change of the level.
    by_hand: bool = getattr(db.connection, "autocommit") and not db._is_autocommit_isolation()  # noqa: B009, SLF001
    if isinstance(db, DriverConnection):
        db.first = "BEGIN; " if by_hand else ""


def commit(connection: Any) -> None:
    """Commit the transaction of a connection of psycopg2, if it has one."""
    _end(connection, "COMMIT")


def rollback(connection: Any) -> None:
    """Roll back the transaction of a connection of psycopg2, if it has one."""
    _end(connection, "ROLLBACK")


def _end(connection: Any, statement: str) -> None:
    """End the transaction of a connection. Without a transaction, send nothing."""
    if connection.get_transaction_status() == TRANSACTION_STATUS_IDLE:
        return
    if connection.autocommit:
        with connection.cursor() as cursor:
            cursor.execute(statement)
    elif statement == "COMMIT":
        connection.commit()
    else:
        connection.rollback()

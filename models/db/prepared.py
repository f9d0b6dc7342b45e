"""Prepared statements, which Postgres parses and plans once per connection instead of once per call.

Only statements that run often and take longer to plan than to run are prepared. Postgres discards a plan when a table
in the plan is altered or analysed. A plan is therefore as new as the table statistics that autovacuum collects. If
Postgres expects plans for the given values (custom plans) to be cheaper than a generic plan, it plans every call.

Two rules apply:

- A prepared statement names its result columns. With `*`, a migration would change the result. Postgres would then
  refuse the prepared statement until its connection is closed.
- Each connection of Ostler has a session of its own (`models.db.engine.assert_own_sessions`). A pooler that shares one
  session among clients would not know which statements each client has prepared.
"""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import Connection, CursorResult, TextClause, text
from sqlalchemy.exc import DBAPIError

_PARAMETER = re.compile(r"(?<![:\w]):(\w+)")
_FORGOTTEN = {"26000", "42P05", "0A000"}
"""Error codes: a prepared statement is unknown, exists already, or has another result type.

Each of these errors shows that this process has a wrong record of the prepared statements of its connection.
"""


_written: dict[str, str] = {}


def written(executed: str) -> str:
    """Return the SQL of the prepared statement that an EXECUTE runs. Return any other statement unchanged."""
    return _written.get(executed.removeprefix("EXECUTE ").partition(" ")[0], executed)


class Prepared:
    """A statement with at least one `:parameter`. `types` maps each parameter to its Postgres type.

    `name` must be unique in the process.
    """

    def __init__(self, name: str, statement: str, **types: str) -> None:
        self.name = f"ostler_{name}"
        if self.name in _written:
            raise ValueError(f"two statements have the name {self.name}")
        _written[self.name] = statement
        numbers = {parameter: f"${number}" for number, parameter in enumerate(types, start=1)}
        body = _PARAMETER.sub(lambda found: numbers[found.group(1)], statement)
        self._prepare = f"PREPARE {self.name} ({', '.join(types.values())}) AS {body}".replace("%", "%%")
        values = ", ".join(f":{parameter}" for parameter in types)
        self._execute: TextClause = text(f"EXECUTE {self.name} ({values})")

    def execute(self, db: Connection, **parameters: Any) -> CursorResult[Any]:
        """Run the statement. Prepare it first if this connection has not prepared it yet.

        Raises every error of the database. If the error is in `_FORGOTTEN`, this connection is discarded first, so the
        next transaction uses another connection.
        """
        prepared: set[str] = db.info.setdefault("prepared", set())  # the set exists as long as the connection
        try:
            if self.name not in prepared:
                db.exec_driver_sql(self._prepare)
                prepared.add(self.name)
            return db.execute(self._execute, parameters)
        except DBAPIError as error:
            if getattr(error.orig, "pgcode", None) in _FORGOTTEN:
                db.invalidate(error)
            raise

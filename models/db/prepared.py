"""Prepared statements, which Postgres parses and plans once per connection instead of once per call.

They serve the few statements that run often and take longer to plan than to run. Postgres discards a plan when a table
that it reads is changed or analysed, so the plan follows the statistics of autovacuum. Postgres also continues to plan
for the given values while it expects such a plan to be cheaper.

Two rules apply:

- A result names its columns. A migration would change the result of `*`, and Postgres then refuses the prepared
  statement until its connection is closed.
- Ostler connects to Postgres directly, which LISTEN needs too. A pooler that shares one connection among clients would
  lose track of the prepared statements.
"""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import Connection, CursorResult, TextClause, text
from sqlalchemy.exc import DBAPIError

_PARAMETER = re.compile(r"(?<![:\w]):(\w+)")
_FORGOTTEN = {"26000", "42P05", "0A000"}
"""Error codes: a prepared statement is unknown, exists already, or has another result type.

Each shows that this process is wrong about which statements its connection has prepared.
"""


_written: dict[str, str] = {}


def written(executed: str) -> str:
    """Return the SQL of the prepared statement that an EXECUTE runs, or `executed` itself if it runs none."""
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

        If the connection was reset without this process knowing, it is discarded, and the next transaction gets another
        one. Raises the error of the database in any case.
        """
        prepared: set[str] = db.info.setdefault("prepared", set())  # it lives as long as the connection
        try:
            if self.name not in prepared:
                db.exec_driver_sql(self._prepare)
                prepared.add(self.name)
            return db.execute(self._execute, parameters)
        except DBAPIError as error:
            if getattr(error.orig, "pgcode", None) in _FORGOTTEN:
                db.invalidate(error)
            raise

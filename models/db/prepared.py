"""Statements that Postgres parses and plans once per connection, not once per call.

For the few that run all the time and cost more to plan than to run. A plan is kept until a table that it reads
is changed or analysed, so it follows what autovacuum learns; and Postgres goes on planning anew as long as a plan
made for the very values promises to be cheaper.

Two rules. A result names its columns: `*` would change with a migration, and a statement whose result changed fails
until its connection is closed. And Postgres is spoken to directly, as everywhere in Ostler (LISTEN needs that, too): a
pooler that hands one connection to many clients would not find what another one prepared.
"""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import Connection, CursorResult, TextClause, text
from sqlalchemy.exc import DBAPIError

_PARAMETER = re.compile(r"(?<![:\w]):(\w+)")
_FORGOTTEN = {"26000", "42P05", "0A000"}
"""Unknown there, known already, or of another result by now: what this process thinks of the connection is wrong."""


_written: dict[str, str] = {}


def written(executed: str) -> str:
    """Return the statement that an EXECUTE of ours runs; what is none comes back as it is."""
    return _written.get(executed.removeprefix("EXECUTE ").partition(" ")[0], executed)


class Prepared:
    """One statement with one `:parameter` or more; `types` are those of Postgres by parameter. Its name is unique."""

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
        """Run it, prepared on this connection if it is not yet.

        A connection that was reset behind our back is given up, so that the next transaction gets another.
        """
        prepared: set[str] = db.info.setdefault("prepared", set())  # it lives as long as the connection to Postgres
        try:
            if self.name not in prepared:
                db.exec_driver_sql(self._prepare)
                prepared.add(self.name)
            return db.execute(self._execute, parameters)
        except DBAPIError as error:
            if getattr(error.orig, "pgcode", None) in _FORGOTTEN:
                db.invalidate(error)
            raise

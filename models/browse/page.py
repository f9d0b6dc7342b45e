"""Pages of a list: each page contains the rows after an id, in the order of the ids.

An id is unique, indexed and never changes. Therefore every page of a list costs the same. If rows are inserted while a
caller reads page after page, no row is repeated, and no row that existed at the first page is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Row

from models.db.sql import text

OF_ACCOUNTS = "t.account_id = ANY(CAST(:value AS bigint[]))"
"""SQL condition for a caller that may see only some accounts."""

LARGEST = 200
"""Maximum number of rows of one page."""


class Order(StrEnum):
    """Order of a list: the newest or the oldest row first."""

    NEWEST = "newest"
    OLDEST = "oldest"

    @property
    def sql(self) -> str:
        """Return the direction in SQL."""
        return "DESC" if self is Order.NEWEST else "ASC"


@dataclass(frozen=True, slots=True)
class Page:
    """The rows of one page. `next_id` is the `after` of the next page, or None on the last page."""

    rows: Sequence[Row[Any]]
    next_id: int | None


@dataclass(frozen=True, slots=True)
class Choice:
    """A row that a filter offers for selection."""

    id: int
    name: str


def choices(db: Connection, name: str, *, source: str, conditions: Mapping[str, Any], limit: int) -> Sequence[Choice]:
    """Return the ids and the column `name` of the oldest rows, oldest first. See `read`."""
    page = read(
        db, f"t.id, t.{name} AS name", source=source, conditions=conditions, order=Order.OLDEST, after=None, limit=limit
    )
    return [Choice(row.id, row.name) for row in page.rows]


def read(
    db: Connection,
    select: str,
    *,
    source: str,
    conditions: Mapping[str, Any],
    order: Order,
    after: int | None,
    limit: int,
    joins: Mapping[str, Any] | None = None,
) -> Page:
    """Return one page of rows of the table `t` in `source`.

    `select` contains the SQL for the columns. `source` is the SQL after FROM: the table with the alias `t`, and what it
    is joined with. `joins` contains the parameters of `source`. `conditions` maps an SQL condition to the value of the
    parameter `:value` in this condition. If the value is None, the condition is left out. `after` is the `next_id` of
    the previous page, or None for the first page.
    """
    chosen = {sql: value for sql, value in conditions.items() if value is not None}
    clauses = [f"({sql})".replace(":value", f":value{number}") for number, sql in enumerate(chosen)]
    values = {f"value{number}": value for number, value in enumerate(chosen.values())}
    if after is not None:
        clauses.append(f"t.id {'<' if order is Order.NEWEST else '>'} :after")
        values["after"] = after
    where = f"WHERE {' AND '.join(clauses)}" if clauses else ""
    rows = db.execute(
        text(f"SELECT {select} FROM {source} {where} ORDER BY t.id {order.sql} LIMIT :limit"),
        values | {"limit": limit + 1, **(joins or {})},
    ).all()
    return Page(rows[:limit], rows[limit - 1].id if len(rows) > limit else None)

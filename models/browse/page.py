"""One page of a list, by key: the rows after an id, in the order of ids.

An id is unique, never changes and is indexed, so that a page costs the same at the front and far behind it,
and what is inserted meanwhile neither repeats a row nor hides one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Row

from models.db.sql import text

OF_ACCOUNTS = "t.account_id = ANY(CAST(:value AS bigint[]))"
"""The condition of a caller that may see only some accounts."""

LARGEST = 200
"""Rows of one page at most."""


class Order(StrEnum):
    """Which end of a list comes first."""

    NEWEST = "DESC"
    OLDEST = "ASC"


@dataclass(frozen=True, slots=True)
class Page:
    """Some rows; `next_id` is where the next page goes on, None at the end."""

    rows: Sequence[Row[Any]]
    next_id: int | None


def read(
    db: Connection,
    select: str,
    *,
    table: str,
    joined: str = "",
    conditions: Mapping[str, Any],
    order: Order,
    after: int | None,
    limit: int,
    joins: Mapping[str, Any] | None = None,
) -> Page:
    """Return one page of `table`, called `t` in `select`, in `joined` and in the conditions.

    `conditions` maps SQL with the parameter `:value` to its value; those whose value is None are left out. `joins` are
    the parameters of `joined`.
    """
    chosen = {sql: value for sql, value in conditions.items() if value is not None}
    clauses = [sql.replace(":value", f":value{number}") for number, sql in enumerate(chosen)]
    values = {f"value{number}": value for number, value in enumerate(chosen.values())}
    if after is not None:
        clauses.append(f"t.id {'<' if order is Order.NEWEST else '>'} :after")
        values["after"] = after
    where = f"WHERE {' AND '.join(clauses)}" if clauses else ""
    rows = db.execute(
        text(f"SELECT {select} FROM {table} t {joined} {where} ORDER BY t.id {order} LIMIT :limit"),
        values | {"limit": limit + 1, **(joins or {})},
    ).all()
    return Page(rows[:limit], rows[limit - 1].id if len(rows) > limit else None)

"""Queries for the table of changes: pages of changes, newest first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from models.browse.page import Order, Page, read
from rules.changes import ChangeKind

_COLUMNS = "t.id, t.at, t.kind, t.name, t.object_id, t.who, t.via, t.database_user, t.old, t.new, t.why"


@dataclass(frozen=True, slots=True)
class ChangeFilter:
    """Filter for changes. None in a field selects all values of that field.

    `object` is the name or the id of the changed object.
    """

    kind: ChangeKind | None = None
    object: str | None = None
    since: datetime | None = None


def list_changes(db: Connection, wanted: ChangeFilter, *, after: int | None = None, limit: int) -> Page:
    """Return one page of changes, newest first."""
    conditions: dict[str, Any] = {
        "t.kind = :value": wanted.kind,
        "(t.name = :value OR CAST(t.object_id AS text) = :value)": wanted.object,
        "t.at >= :value": wanted.since,
    }
    return read(db, _COLUMNS, source="changes t", conditions=conditions, order=Order.NEWEST, after=after, limit=limit)

"""Changes of accounts, gates, jobs, pools, sweeps and tokens: who changed what, when, and both values.

The transaction that makes a change also writes its row. The rows contain no secret: digests of tokens and templates of
Pods are left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Index
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from models.db.base import Base, Serial
from models.db.sql import text
from rules.changes import Author, ChangeKind, difference


class Change(Base):
    """One change of one object."""

    __tablename__ = "changes"
    __table_args__ = (Index("ix_changes_at", "at"), Index("ix_changes_kind_object", "kind", "object_id", "id"))

    id: Mapped[Serial]
    at: Mapped[datetime]
    kind: Mapped[str]
    name: Mapped[str] = mapped_column(comment="name of the object when it was changed")
    object_id: Mapped[int | None] = mapped_column(comment="id of the object; NULL: objects of its kind have no id")
    who: Mapped[str]
    via: Mapped[str] = mapped_column(comment="way of the change: API, shell, dashboard, cluster, Ostler")
    database_user: Mapped[str] = mapped_column(
        server_default=text("SESSION_USER"), comment="login of the database session that made the change"
    )
    old: Mapped[dict[str, Any]] = mapped_column(JSONB, comment="the changed fields before")
    new: Mapped[dict[str, Any]] = mapped_column(JSONB, comment="the changed fields after")
    why: Mapped[str | None]


def record(
    db: Connection,
    kind: ChangeKind,
    name: str,
    *,
    object_id: int | None = None,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    by: Author,
    why: str | None = None,
) -> None:
    """Write the change of an object, unless no field differs. `before` and `after` contain fields of the object."""
    old, new = difference(before, after)
    if not new:
        return
    db.execute(
        text("""
            INSERT INTO changes (at, kind, name, object_id, who, via, old, new, why)
            VALUES (:at, :kind, :name, :object_id, :who, :via, CAST(:old AS jsonb), CAST(:new AS jsonb), :why)
        """),
        {
            "at": by.at,
            "kind": kind,
            "name": name,
            "object_id": object_id,
            "who": by.who,
            "via": by.via,
            "old": json.dumps(old),
            "new": json.dumps(new),
            "why": why or None,
        },
    )


def delete(db: Connection, ids: Sequence[int]) -> int:
    """Delete the rows of old changes. Return how many were deleted. The caller has locked the rows."""
    return db.execute(text("DELETE FROM changes WHERE id = ANY(:ids)"), {"ids": ids}).rowcount

"""Backoffs of installations, accounts and repositories, persisted so that no restart forgets them."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint
from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base


class Backoff(Base):
    """Until `not_before` the jobs of this key are held; each further failure doubles the wait."""

    __tablename__ = "backoffs"
    __table_args__ = (CheckConstraint("kind IN ('installation', 'account', 'repository')", name="kind_known"),)

    kind: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True, comment="an id, or a repository's full name")
    not_before: Mapped[datetime]
    failures: Mapped[int]
    reason: Mapped[str]
    changed_at: Mapped[datetime]

"""Table of webhook deliveries by GUID. Because of this table, a repeated delivery is handled only once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, Index
from sqlalchemy.orm import Mapped, mapped_column

from models.db.base import Base
from models.db.sql import text

WEBHOOK = "webhook"
"""Actor of the transitions that a delivery made. Their time is `received_at` of the delivery."""


class Delivery(Base):
    """One delivery that was accepted. Its body is not stored. Deliveries that Ostler ignores have no row."""

    __tablename__ = "deliveries"
    __table_args__ = (Index("ix_deliveries_received_at", "received_at"),)

    guid: Mapped[str] = mapped_column(primary_key=True)
    event: Mapped[str]
    action: Mapped[str]
    job_id: Mapped[int | None]
    outcome: Mapped[str]
    received_at: Mapped[datetime]


def insert(db: Connection, *, guid: str, event: str, action: str, outcome: str, now: datetime) -> bool:
    """Record a delivery that concerns no job. Return False if the delivery was already recorded.

    `models.state.job_inserts` records the deliveries of jobs.
    """
    fresh = db.execute(
        text("""
            INSERT INTO deliveries (guid, event, action, outcome, received_at)
            VALUES (:guid, :event, :action, :outcome, :now) ON CONFLICT (guid) DO NOTHING RETURNING guid
        """),
        {"guid": guid, "event": event, "action": action, "outcome": outcome, "now": now},
    )
    return fresh.one_or_none() is not None


def delete(db: Connection, guids: Sequence[str]) -> int:
    """Delete old deliveries. Return how many were deleted. The caller has locked the rows."""
    return db.execute(text("DELETE FROM deliveries WHERE guid = ANY(:ids)"), {"ids": guids}).rowcount

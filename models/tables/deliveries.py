"""Deliveries of webhooks, by GUID: what makes a doubled one count once."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Index
from sqlalchemy.orm import Mapped, mapped_column

from models.db.base import Base


class Delivery(Base):
    """One delivery that was accepted or ignored; bodies are not kept."""

    __tablename__ = "deliveries"
    __table_args__ = (Index("ix_deliveries_received_at", "received_at"),)

    guid: Mapped[str] = mapped_column(primary_key=True)
    event: Mapped[str]
    action: Mapped[str]
    job_id: Mapped[int | None]
    outcome: Mapped[str]
    received_at: Mapped[datetime]

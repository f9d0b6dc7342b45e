"""Offers (a Pod's standing poll) and the web processes that hold them."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base


class WebInstance(Base):
    """A web process. It beats only while it hears its own NOTIFY, so a deaf one offers nothing."""

    __tablename__ = "web_instances"

    id: Mapped[str] = mapped_column(primary_key=True)
    started_at: Mapped[datetime]
    beat_at: Mapped[datetime]


class Offer(Base):
    """A Pod that can be given work now. Of two polls of a Pod the later upsert wins."""

    __tablename__ = "offers"
    __table_args__ = (
        Index("ix_offers_pool_id_until", "pool_id", "until"),
        {"prefixes": ["UNLOGGED"]},
    )

    pod_uid: Mapped[str] = mapped_column(primary_key=True)
    pool_id: Mapped[int] = mapped_column(ForeignKey("pools.id"))
    web_id: Mapped[str]
    poll_id: Mapped[str] = mapped_column(comment="of the newest poll; only its holder may deliver")
    until: Mapped[datetime]

"""Executions: what GitHub really ran where, known from `in_progress`, `completed` or the runner list."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from models.db.base import Base, Serial


class Execution(Base):
    """One job on one runner. Without a claim (a runner we no longer know) it still counts in the budget."""

    __tablename__ = "executions"
    __table_args__ = (
        Index("ix_executions_open_account", "account_id", postgresql_where=text("ended_at IS NULL")),
        Index("ix_executions_claim_id", "claim_id"),
    )

    id: Mapped[Serial]
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id"), unique=True)
    runner_name: Mapped[str]
    claim_id: Mapped[int | None] = mapped_column(ForeignKey("claims.id"))
    account_id: Mapped[int] = mapped_column(ForeignKey("accounts.id"))
    vcpu: Mapped[int]
    memory: Mapped[int]
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]

"""Table of runner Pods. A Pod's row is committed before the Pod is created and before any claim on it.

If the row of an existing Pod was lost, for example in a restore, `models.tables.pod_births` inserts a new row.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from models.db.base import Base, Serial
from models.db.sql import text


class RunnerPod(Base):
    """One runner Pod.

    `uid` is NULL until the response to the Pod's creation, a list of Pods or the Pod's first poll shows the UID.
    """

    __tablename__ = "runner_pods"
    __table_args__ = (
        # At most one row per name has a Pod or waits for a Pod. A row without a UID waits, even if it was given up.
        Index(
            "uq_runner_pods_present_name",
            "namespace",
            "name",
            unique=True,
            postgresql_where=text("gone_at IS NULL OR uid IS NULL"),
        ),
        Index("ix_runner_pods_name", "namespace", "name"),
        Index("ix_runner_pods_pool_id_id", "pool_id", "id"),
        Index("ix_runner_pods_pool_open", "pool_id", postgresql_where=text("gone_at IS NULL")),
        Index("ix_runner_pods_node_gone", "id", postgresql_where=text("node_gone_at IS NOT NULL AND gone_at IS NULL")),
        # Index to find Pods that count against the budgets of accounts (models.routing.usage).
        Index(
            "ix_runner_pods_charged",
            "charged_account_id",
            postgresql_include=["id", "charged_vcpu", "charged_memory"],
            postgresql_where=text(
                "charged_account_id IS NOT NULL AND gone_at IS NULL AND terminal_at IS NULL AND node_gone_at IS NULL"
            ),
        ),
        Index("ix_runner_pods_gone_at", "gone_at", postgresql_where=text("gone_at IS NOT NULL")),
        # Index to count the Pods whose Events were read recently (models.claims.pod_ends).
        Index("ix_runner_pods_events_read_at", "events_read_at", postgresql_where=text("events_read_at IS NOT NULL")),
    )

    id: Mapped[Serial]
    pool_id: Mapped[int] = mapped_column(ForeignKey("pools.id"))
    namespace: Mapped[str]
    name: Mapped[str]
    uid: Mapped[str | None] = mapped_column(unique=True)
    attempt_id: Mapped[str] = mapped_column(comment="written on the Pod, so that a repeated create knows its own")
    template_hash: Mapped[str]
    stamp_value: Mapped[str] = mapped_column(
        server_default="0.0", comment="last known value of the claim annotation, a compare-and-swap register"
    )
    created_at: Mapped[datetime]
    first_polled_at: Mapped[datetime | None]
    polled_at: Mapped[datetime | None] = mapped_column(comment="refreshed at most once a minute")
    gated_at: Mapped[datetime | None] = mapped_column(
        comment="when it was last seen with a scheduling gate, refreshed at most twice a minute"
    )
    terminal_at: Mapped[datetime | None] = mapped_column(
        comment="when it was first seen over: poller and runner have terminated"
    )
    poller_exit_code: Mapped[int | None]
    poller_ended_at: Mapped[datetime | None] = mapped_column(comment="when its poller was first seen to have ended")
    runner_exit_code: Mapped[int | None]
    exit_reason: Mapped[str | None]
    deletion_at: Mapped[datetime | None] = mapped_column(
        comment="when its deletion was asked for, as the watch saw it; only shown"
    )
    deleted_first: Mapped[bool | None] = mapped_column(
        comment="whether the watch saw its deletion before the end of poller and runner; only shown; NULL: unknown"
    )
    deletion_sent_at: Mapped[datetime | None] = mapped_column(
        comment="when Ostler first asked for its deletion, unless another client had asked before; only shown"
    )
    events_read_at: Mapped[datetime | None] = mapped_column(
        comment="when Kubernetes was asked for Events about its end"
    )
    event_reason: Mapped[str | None] = mapped_column(
        comment="of the Event that says best who ended it; only shown, as the next two"
    )
    event_by: Mapped[str | None] = mapped_column(comment="the component that wrote the Event")
    event_message: Mapped[str | None] = mapped_column(comment="its message: one line, 200 characters at most")
    gone_at: Mapped[datetime | None] = mapped_column(comment="a GET or a delete proved that the UID is gone")
    node_gone_at: Mapped[datetime | None] = mapped_column(comment="its node was found gone; NULL again when it is back")
    charged_account_id: Mapped[int | None] = mapped_column(
        comment="whose JIT it was given: it counts in the budget of this account until it ends or its node is gone"
    )
    charged_vcpu: Mapped[int | None] = mapped_column(comment="millicores, those of the delivered claim")
    charged_memory: Mapped[int | None] = mapped_column(comment="MiB, those of the delivered claim")


def delete(db: Connection, ids: Sequence[int]) -> int:
    """Delete old rows of Pods that are gone. Return how many were deleted. The caller has locked the rows."""
    return db.execute(text("DELETE FROM runner_pods WHERE id = ANY(:ids)"), {"ids": ids}).rowcount

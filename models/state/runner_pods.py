"""Table of runner Pods. A Pod's row is committed before the Pod is created and before any claim on it.

If the row of an existing Pod was lost, for example in a restore, `models.state.pod_births` inserts a new row.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, ForeignKey, Index
from sqlalchemy.dialects.postgresql import JSONB
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
    attempt_id: Mapped[str] = mapped_column(
        comment="id in an annotation of the Pod, so that a repeated creation recognises its own Pod"
    )
    template_hash: Mapped[str]
    stamp_value: Mapped[str] = mapped_column(
        server_default="0.0", comment="last known value of the claim annotation, which each write compares and replaces"
    )
    created_at: Mapped[datetime]
    first_polled_at: Mapped[datetime | None]
    polled_at: Mapped[datetime | None] = mapped_column(comment="time of the last poll, updated at most once a minute")
    gated_at: Mapped[datetime | None] = mapped_column(
        comment="time at which the Pod last had a scheduling gate, updated at most twice a minute; NULL: never"
    )
    terminal_at: Mapped[datetime | None] = mapped_column(
        comment="time at which the Pod was first seen over: poller and runner have terminated"
    )
    poller_exit_code: Mapped[int | None]
    poller_ended_at: Mapped[datetime | None] = mapped_column(
        comment="time at which the container `poller` was first seen terminated"
    )
    runner_exit_code: Mapped[int | None]
    exit_reason: Mapped[str | None]
    deletion_at: Mapped[datetime | None] = mapped_column(
        comment="time of the deletion request, as the watch saw it; explains the end, decides no deletion"
    )
    deleted_first: Mapped[bool | None] = mapped_column(
        comment="whether the deletion request came before the end of poller and runner; NULL: unknown"
    )
    deletion_sent_at: Mapped[datetime | None] = mapped_column(
        comment="time of the first deletion request by Ostler; NULL: none, or another client was first"
    )
    events_read_at: Mapped[datetime | None] = mapped_column(
        comment="time at which the Events about the end of the Pod were requested"
    )
    event_reason: Mapped[str | None] = mapped_column(
        comment="reason of the Event that best explains the end of the Pod"
    )
    event_by: Mapped[str | None] = mapped_column(comment="component that wrote the Event of `event_reason`")
    event_message: Mapped[str | None] = mapped_column(
        comment="message of the Event of `event_reason`: one line, at most 200 characters"
    )
    last_node: Mapped[str | None] = mapped_column(
        comment="node of the Pod, recorded when the Pod was gone; NULL: the watch did not see it"
    )
    hook_pods: Mapped[list[Any] | None] = mapped_column(
        JSONB, comment="hook Pods of the Pod as the watch saw them last, for people; NULL: it saw none"
    )
    gone_at: Mapped[datetime | None] = mapped_column(
        comment="time at which the Pod was found gone, or given up because it never appeared; NULL: neither"
    )
    node_gone_at: Mapped[datetime | None] = mapped_column(
        comment="time at which the node of the Pod was found gone; NULL: it was not, or is back"
    )
    charged_account_id: Mapped[int | None] = mapped_column(
        comment="account of the delivered JIT, charged until the Pod is over or gone or its node is gone"
    )
    charged_vcpu: Mapped[int | None] = mapped_column(comment="millicores of the delivered claim")
    charged_memory: Mapped[int | None] = mapped_column(comment="MiB of the delivered claim")


def delete(db: Connection, ids: Sequence[int]) -> int:
    """Delete old rows of Pods that are gone. Return how many were deleted. The caller has locked the rows."""
    return db.execute(text("DELETE FROM runner_pods WHERE id = ANY(:ids)"), {"ids": ids}).rowcount

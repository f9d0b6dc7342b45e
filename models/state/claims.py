"""Tables of claims (the reservations of Pods), of their events and of their mint attempts.

Two partial unique indexes enforce law L1: one live claim per Pod UID, and one live claim per job.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import CheckConstraint, Connection, ForeignKey, Index, LargeBinary
from sqlalchemy.orm import Mapped, mapped_column

from models.db.base import Base, Serial
from models.db.sql import text
from rules.claims.machines import ClaimState, EndReason, Purpose, Stamp

_LIVE = text("ended_at IS NULL")


def _one_of(column: str, values: type[ClaimState | Purpose | Stamp | EndReason]) -> str:
    return f"{column} IN (" + ", ".join(f"'{value}'" for value in values) + ")"


class Claim(Base):
    """One reservation of a Pod. Every later write to the Pod contains the id of the claim."""

    __tablename__ = "claims"
    __table_args__ = (
        CheckConstraint(_one_of("state", ClaimState), name="state_known"),
        CheckConstraint(_one_of("purpose", Purpose), name="purpose_known"),
        CheckConstraint(_one_of("stamp", Stamp), name="stamp_known"),
        CheckConstraint(_one_of("end_reason", EndReason), name="end_reason_known"),
        CheckConstraint("(state = 'ended') = (ended_at IS NOT NULL)", name="ended_has_its_time"),
        CheckConstraint(
            "purpose = 'job' OR (job_id IS NULL AND (purpose = 'register' OR account_id IS NULL))",
            name="retire_is_nobodys",
        ),
        CheckConstraint("ended_at IS NULL OR jit IS NULL", name="jit_erased_at_end"),
        CheckConstraint("state <> 'executing' OR jit IS NULL", name="jit_erased_at_execution"),
        Index("uq_claims_live_pod", "pod_uid", unique=True, postgresql_where=_LIVE),
        Index(
            "uq_claims_live_job",
            "job_id",
            unique=True,
            postgresql_where=text("ended_at IS NULL AND job_id IS NOT NULL"),
        ),
        Index("ix_claims_live_account", "account_id", postgresql_where=_LIVE),
        Index("ix_claims_live_due", "due_at", postgresql_where=_LIVE),
        Index("ix_claims_live_state", "state", "pool_id", postgresql_where=_LIVE),
        Index("ix_claims_pod_uid_id", "pod_uid", "id"),
        # Indexes for the lists of the API and of the CLI, newest first (models.browse).
        Index("ix_claims_live_id", "id", postgresql_where=_LIVE),
        Index("ix_claims_account_id_id", "account_id", "id", postgresql_where=text("account_id IS NOT NULL")),
        Index("ix_claims_pool_id_id", "pool_id", "id"),
        Index("ix_claims_job_id_id", "job_id", "id", postgresql_where=text("job_id IS NOT NULL")),
        # Index to find claims that ended long ago (models.sweeps.prune).
        Index("ix_claims_ended_at", "ended_at", postgresql_where=text("ended_at IS NOT NULL")),
        Index("ix_claims_runner_pod_id", "runner_pod_id"),
        Index("ix_claims_runner_name", "runner_name", postgresql_where=text("runner_name IS NOT NULL")),
    )

    id: Mapped[Serial]
    purpose: Mapped[str]
    job_id: Mapped[int | None] = mapped_column(
        ForeignKey("jobs.id"), comment="job of the claim; NULL: spare, registration or retirement"
    )
    runner_pod_id: Mapped[int] = mapped_column(ForeignKey("runner_pods.id"))
    pod_uid: Mapped[str]
    pool_id: Mapped[int] = mapped_column(ForeignKey("pools.id"))
    account_id: Mapped[int | None] = mapped_column(ForeignKey("accounts.id"))
    installation_id: Mapped[int | None]
    scope: Mapped[str | None]
    repository_id: Mapped[int | None] = mapped_column(
        comment="GitHub id of the repository scope; NULL: organisation scope, or unknown"
    )
    vcpu: Mapped[int] = mapped_column(comment="millicores of the Pod when the claim was inserted")
    memory: Mapped[int] = mapped_column(comment="MiB of the Pod when the claim was inserted")
    state: Mapped[str]
    stamp: Mapped[str] = mapped_column(server_default="none")
    stamp_no: Mapped[int] = mapped_column(
        server_default="0",
        comment="second part of the annotation of the Pod; increased before each write of the annotation",
    )
    chain_no: Mapped[int] = mapped_column(
        server_default="1", comment="number of the current chain of steps; steps of an older chain change nothing"
    )
    leased_until: Mapped[datetime | None]
    due_at: Mapped[datetime | None] = mapped_column(
        comment="time at which sweep `resume` repeats the next step; NULL: no step is due"
    )
    stamp_after: Mapped[datetime | None] = mapped_column(comment="earliest time of the next stamp; NULL: no limit")
    runner_name: Mapped[str | None] = mapped_column(
        comment="name of the registered runner, written when its mint is committed"
    )
    runner_id: Mapped[int | None]
    jit: Mapped[bytes | None] = mapped_column(
        LargeBinary,
        comment="encrypted JIT or registration token; erased at the execution or end, or when GitHub shows the runner",
    )
    release_reason: Mapped[str | None]
    last_error: Mapped[str | None]
    created_at: Mapped[datetime]
    changed_at: Mapped[datetime]
    minted_at: Mapped[datetime | None]
    delivered_at: Mapped[datetime | None]
    spare_since: Mapped[datetime | None]
    runner_absent_at: Mapped[datetime | None] = mapped_column(
        comment="time of the first check that did not find the runner; NULL: found later, or not checked"
    )
    runner_idle_at: Mapped[datetime | None] = mapped_column(
        comment="time of the first check after the job that found the runner absent or idle; NULL: none did"
    )
    runner_seen: Mapped[str | None] = mapped_column(
        comment="state of the persistent runner in the last list of GitHub: online, busy or offline"
    )
    runner_seen_at: Mapped[datetime | None]
    online_at: Mapped[datetime | None]
    force_deleted_at: Mapped[datetime | None] = mapped_column(
        comment="time since which the Pod may be deleted without its kubelet; NULL: it must not be"
    )
    stalled_at: Mapped[datetime | None] = mapped_column(
        comment="time since which only a repair can continue the claim; NULL after the repair"
    )
    stalled_cause: Mapped[str | None]
    stalled_found_by: Mapped[str | None]
    end_reason: Mapped[str | None]
    ended_at: Mapped[datetime | None]


class ClaimEvent(Base):
    """One transition of a claim or of its stamp."""

    __tablename__ = "claim_events"
    __table_args__ = (Index("ix_claim_events_claim_id_id", "claim_id", "id"), Index("ix_claim_events_at", "at"))

    id: Mapped[Serial]
    claim_id: Mapped[int]
    at: Mapped[datetime]
    transition: Mapped[str]
    from_state: Mapped[str | None]
    to_state: Mapped[str]
    who: Mapped[str]
    why: Mapped[str]
    task_id: Mapped[str | None] = mapped_column(comment="id of the Celery task of the transition, as in Flower")
    attempt: Mapped[int | None] = mapped_column(comment="number of the task's execution; the first one has 1")
    latency_ms: Mapped[int | None]


class MintAttempt(Base):
    """One runner name, recorded before GitHub is asked for a runner of that name.

    The outcome of an attempt is one of these:

    - `open`: the runner was requested, and no response is recorded.
    - `minted`: the runner is registered.
    - `refused`: GitHub created no runner.
    - `removed`: a check found no runner of this name, or Ostler removed the runner.
    """

    __tablename__ = "mint_attempts"
    __table_args__ = (
        CheckConstraint("outcome IN ('open', 'minted', 'refused', 'removed')", name="outcome_known"),
        Index("uq_mint_attempts_one_open", "claim_id", unique=True, postgresql_where=text("outcome = 'open'")),
        Index("ix_mint_attempts_claim_id", "claim_id"),
    )

    id: Mapped[Serial]
    claim_id: Mapped[int] = mapped_column(ForeignKey("claims.id"))
    runner_name: Mapped[str] = mapped_column(unique=True)
    runner_id: Mapped[int | None]
    outcome: Mapped[str]
    created_at: Mapped[datetime]
    closed_at: Mapped[datetime | None]


def delete(db: Connection, ids: Sequence[int]) -> int:
    """Delete old claims that have ended. Return how many were deleted. The caller has locked the rows."""
    return db.execute(text("DELETE FROM claims WHERE id = ANY(:ids)"), {"ids": ids}).rowcount


def delete_events(db: Connection, ids: Sequence[int]) -> int:
    """Delete old events of claims that have ended. Return how many were deleted. The caller has locked the rows."""
    return db.execute(text("DELETE FROM claim_events WHERE id = ANY(:ids)"), {"ids": ids}).rowcount

"""Delivery: the commit before the first byte of a JIT, and the reading of one that was lost on its way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row

from models import epochs
from models.sql import text
from models.transitions import move_claim
from rules.machines import Stamp


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a Pod is handed; `jit` is still encrypted."""

    claim_id: int
    job_id: int | None
    jit: bytes
    runner_name: str
    account_id: int | None
    stamp: Stamp
    queued_at: datetime | None = None
    """Of its job, at its first delivery."""


class ClaimLocked(Exception):
    """Raised when another transaction holds the claim: a delivery does not wait for it, and must be tried again."""


def deliver(db: Connection, *, claim_id: int, pod_uid: str, poll_id: str, now: datetime, who: str) -> Delivery | None:
    """Commit that a minted claim is delivered to the newest poll of its Pod, or return None when it may not be.

    None: the claim moved on, its stamp is being removed, or a newer poll has the offer, or Postgres
    is known to be older than the cluster. The offer goes with it. Raises ClaimLocked, also when there is no such claim.
    """
    # A frozen process keeps its rows for up to 30 s, and this thread is one of a few that deliver (L14).
    free = text("SELECT id FROM claims WHERE id = :id FOR NO KEY UPDATE SKIP LOCKED")
    if db.execute(free, {"id": claim_id}).one_or_none() is None:
        raise ClaimLocked
    row = move_claim(
        db,
        "deliver",
        claim_id,
        now=now,
        who=who,
        why="the Pod polls",
        guard=f"""
            AND {epochs.CURRENT} AND stamp <> 'removing' AND jit IS NOT NULL AND pod_uid = :pod_uid
            AND EXISTS (SELECT FROM offers WHERE offers.pod_uid = claims.pod_uid AND offers.poll_id = :poll_id)
        """,
        values={"delivered_at": ":now", "due_at": "NULL", "leased_until": "NULL"},
        pod_uid=pod_uid,
        poll_id=poll_id,
    )
    if row is None:
        return None
    # Also a newer poll's: its own delivery finds the claim delivered and hands out the same JIT again.
    # An offer that is locked stays, and nobody takes it: the Pod has a delivered claim.
    queued_at = db.execute(
        text("""
            WITH gone AS (
                DELETE FROM offers WHERE pod_uid IN (
                    SELECT pod_uid FROM offers WHERE pod_uid = :pod_uid FOR UPDATE SKIP LOCKED
                )
            )
            SELECT queued_at FROM jobs WHERE id = :job_id
        """),
        {"pod_uid": pod_uid, "job_id": row.job_id},
    ).scalar_one_or_none()
    return replace(_delivery(row), queued_at=queued_at)


def delivered_before(db: Connection, *, claim_id: int, pod_uid: str) -> Delivery | None:
    """Return what was delivered to this Pod and not yet seen used, or None when the claim moved on (L11)."""
    row = db.execute(
        text("""
            SELECT id, job_id, jit, runner_name, account_id, stamp FROM claims
            WHERE id = :id AND pod_uid = :pod_uid AND state = 'delivered' AND jit IS NOT NULL
        """),
        {"id": claim_id, "pod_uid": pod_uid},
    ).one_or_none()
    return None if row is None else _delivery(row)


def _delivery(row: Row[Any]) -> Delivery:
    return Delivery(
        claim_id=row.id,
        job_id=row.job_id,
        jit=bytes(row.jit),
        runner_name=row.runner_name,
        account_id=row.account_id,
        stamp=Stamp(row.stamp),
    )

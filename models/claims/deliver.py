"""Delivery: the commit before the first byte of a JIT, and the reading of one that was lost on its way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row

from models.db import epochs
from models.db.sql import text
from models.tables import claim_leases, offers
from models.tables.transitions import move_claim
from rules.claims.machines import Stamp


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
    """Raised when another transaction holds the claim or its Pod: a delivery does not wait, and must be tried again."""


RESUME_GRACE = timedelta(seconds=1)
"""How much later than its message `resume` sends a stamp that returns."""


def deliver(
    db: Connection,
    *,
    claim_id: int,
    pod_uid: str,
    poll_id: str,
    cancels_unstamp: bool = False,
    stamp_returns_after: float = 5.0,
    now: datetime,
    who: str,
) -> Delivery | None:
    """Commit that a minted claim is delivered to the newest poll of its Pod, or return None when it may not be.

    None: the claim moved on, its stamp is being removed, or a newer poll has the offer, or Postgres
    is known to be older than the cluster. The offer goes with it. Raises ClaimLocked, also when there is no such claim.

    `cancels_unstamp`: the statement that first wrote this poll's offer read the claim as `removing`. So the poll
    arrived after the commit of the un-stamp, the Pod's way to us is open, and the un-stamp is cancelled (L10). A PATCH
    of it that is still in flight may land; the stamp returns `stamp_returns_after` seconds from now.
    """
    # A frozen process keeps its rows for up to 30 s, and this thread is one of a few that deliver (L14).
    # The Pod's row is charged below; it comes before the claim in the order of locks.
    free = text("""
        SELECT c.id FROM runner_pods p JOIN claims c ON c.runner_pod_id = p.id
        WHERE c.id = :id FOR NO KEY UPDATE OF p, c SKIP LOCKED
    """)
    if db.execute(free, {"id": claim_id}).one_or_none() is None:
        raise ClaimLocked
    guard = f"""
        AND {epochs.CURRENT} AND jit IS NOT NULL AND pod_uid = :pod_uid
        AND EXISTS (SELECT FROM offers WHERE offers.pod_uid = claims.pod_uid AND offers.poll_id = :poll_id)
    """
    if cancels_unstamp:
        move_claim(
            db,
            "cancel_unstamp",
            claim_id,
            now=now,
            who=who,
            why="its Pod polls",
            guard=f"AND state = 'minted' {guard}",
            pod_uid=pod_uid,
            poll_id=poll_id,
        )
    row = move_claim(
        db,
        "deliver",
        claim_id,
        now=now,
        who=who,
        why="the Pod polls",
        guard=f"AND stamp <> 'removing' {guard}",
        values={
            "delivered_at": ":now",
            "leased_until": "NULL",
            "due_at": "CASE WHEN stamp = 'off' THEN CAST(:due AS timestamptz) END",
            "stamp_after": "CASE WHEN stamp = 'off' THEN CAST(:stamp_after AS timestamptz) END",
        },
        **_returns(stamp_returns_after, now=now),
        pod_uid=pod_uid,
        poll_id=poll_id,
    )
    if row is None:
        return None
    # Also a newer poll's: its own delivery finds the claim delivered and hands out the same JIT again.
    # An offer that is locked stays, and nobody takes it: the Pod has a delivered claim.
    # From here on the Pod counts in the account's budget until it ends, also when its claim ends first (L2).
    queued_at = offers.deliver(
        db,
        pod_uid=pod_uid,
        runner_pod_id=row.runner_pod_id,
        account_id=row.account_id,
        vcpu=row.vcpu,
        memory=row.memory,
        job_id=row.job_id,
    )
    return replace(_delivery(row), queued_at=queued_at)


def delivered_before(
    db: Connection, *, claim_id: int, pod_uid: str, stamp_returns_after: float = 5.0, now: datetime, who: str
) -> Delivery | None:
    """Return what was delivered to this Pod and not yet seen used, or None when the claim moved on (L11).

    A stamp that is off, or is being removed, returns `stamp_returns_after` seconds from now.
    """
    row = db.execute(
        text("""
            SELECT id, job_id, jit, runner_name, account_id, stamp FROM claims
            WHERE id = :id AND pod_uid = :pod_uid AND state = 'delivered' AND jit IS NOT NULL
        """),
        {"id": claim_id, "pod_uid": pod_uid},
    ).one_or_none()
    if row is None:
        return None
    if row.stamp != Stamp.ON:
        _put_stamp_off(db, claim_id, stamp_returns_after, now=now, who=who)
    return _delivery(row)


def _put_stamp_off(db: Connection, claim_id: int, stamp_returns_after: float, *, now: datetime, who: str) -> None:
    """Let the stamp of a delivered claim wait for an answer that is on its way; an un-stamp is cancelled.

    A claim that is locked is left alone: the answer must not wait for it, and every stamp returns.
    """
    free = db.execute(
        text("SELECT 1 FROM claims WHERE id = :id AND state = 'delivered' FOR NO KEY UPDATE SKIP LOCKED"),
        {"id": claim_id},
    ).one_or_none()
    if free is None:
        return
    move_claim(
        db,
        "cancel_unstamp",
        claim_id,
        now=now,
        who=who,
        why="its Pod polls again",
        guard="AND state = 'delivered'",
        values={"leased_until": "NULL"},
    )
    at = _returns(stamp_returns_after, now=now)
    claim_leases.set_due(
        db,
        "id = :id AND stamp <> 'on'",
        due_at=at["due"],
        values=", stamp_after = :stamp_after",
        id=claim_id,
        stamp_after=at["stamp_after"],
    )


def _returns(seconds: float, *, now: datetime) -> dict[str, datetime]:
    at = now + timedelta(seconds=seconds)
    return {"stamp_after": at, "due": at + RESUME_GRACE}


def _delivery(row: Row[Any]) -> Delivery:
    return Delivery(
        claim_id=row.id,
        job_id=row.job_id,
        jit=bytes(row.jit),
        runner_name=row.runner_name,
        account_id=row.account_id,
        stamp=Stamp(row.stamp),
    )

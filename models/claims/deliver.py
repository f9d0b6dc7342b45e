"""Delivery of a JIT. The commit comes before the first byte of the answer. A lost answer is sent again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import cast

from sqlalchemy import Connection

from models.db.sql import text
from models.state import claim_transitions, offers
from models.state.claims import Claim
from rules.claims.machines import Purpose, Stamp
from rules.claims.registrations import REGISTERS_AGAIN


@dataclass(frozen=True, slots=True)
class Delivery:
    """An encrypted JIT for a Pod, with the claim and the runner that the JIT belongs to."""

    claim_id: int
    job_id: int | None
    jit: bytes
    runner_name: str
    account_id: int | None
    stamp: Stamp
    queued: tuple[datetime, tuple[str, str]] | None = None
    """The time at which the job was queued, and namespace and name of the pool of the Pod.

    None if the JIT is delivered again or the claim has no job.
    """


class ClaimLocked(Exception):
    """Raised if another transaction has locked the claim or its Pod, or if the claim does not exist.

    The caller retries instead of waiting for the lock.
    """


RESUME_GRACE = timedelta(seconds=1)
"""Extra time before `resume` repeats the message that puts a stamp on again."""


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
    """Commit that a minted claim is delivered to the newest poll of its Pod, and return the JIT.

    Returns None in these cases:

    - The claim is not `minted` any more, or belongs to another Pod.
    - The stamp of the claim is being removed.
    - This poll does not have the offer of the Pod.
    - Postgres is known to be older than the cluster.

    Raises `ClaimLocked` if another transaction has locked the claim or the row of its Pod, or if the claim does not
    exist. A delivery deletes the offer.

    `cancels_unstamp` is True if the claim's stamp was `removing` when the offer of this poll was first written. In this
    case the poll arrived after the un-stamp was committed, and proves that the Pod can reach Ostler. The un-stamp is
    therefore cancelled (law L10).

    If the stamp is off, or if the un-stamp was cancelled, the stamp is put on again `stamp_returns_after` seconds from
    now. This delay is needed because a PATCH request of a cancelled un-stamp might still succeed.
    """
    # SKIP LOCKED, because a frozen process keeps its locks for up to 30 s, and only a few threads deliver (law L14).
    # The Pod's row is locked too, because the Pod is charged below. In the lock order, this row comes before the claim.
    free = text("""
        SELECT c.id FROM runner_pods p JOIN claims c ON c.runner_pod_id = p.id
        WHERE c.id = :id FOR NO KEY UPDATE OF p, c SKIP LOCKED
    """)
    if db.execute(free, {"id": claim_id}).one_or_none() is None:
        raise ClaimLocked
    if cancels_unstamp:
        claim_transitions.cancel_unstamp(db, claim_id, pod_uid=pod_uid, poll_id=poll_id, now=now, who=who)
    stamp_after = now + timedelta(seconds=stamp_returns_after)
    row = claim_transitions.deliver(
        db,
        claim_id,
        pod_uid=pod_uid,
        poll_id=poll_id,
        due_at=stamp_after + RESUME_GRACE,
        stamp_after=stamp_after,
        now=now,
        who=who,
    )
    if row is None:
        return None
    # This call also deletes the offer of a newer poll. The newer poll finds the claim delivered and gets the same JIT.
    # A locked offer stays, but it is not matched, because the Pod has a delivered claim.
    # From now on the Pod counts against the account's budget until the Pod ends, even if its claim ends first (law L2).
    queued = offers.deliver(
        db,
        pod_uid=pod_uid,
        runner_pod_id=row.runner_pod_id,
        account_id=row.account_id if row.purpose == Purpose.JOB else None,
        vcpu=row.vcpu,
        memory=row.memory,
        job_id=row.job_id,
    )
    return replace(_delivery(row), queued=queued)


def delivered_before(
    db: Connection, *, claim_id: int, pod_uid: str, stamp_returns_after: float = 5.0, now: datetime, who: str
) -> Delivery | None:
    """Return the JIT that was already delivered to this Pod, for a repeated delivery (law L11).

    Returns None if the claim is not `delivered` any more, for example because its runner executes a job, if the claim
    belongs to another Pod, or if a registration token was first delivered more than `REGISTERS_AGAIN` seconds ago. A
    stamp that is not on is put on `stamp_returns_after` seconds from now.
    """
    row = db.execute(
        text("""
            SELECT id, job_id, jit, runner_name, account_id, stamp FROM claims
            WHERE id = :id AND pod_uid = :pod_uid AND state = 'delivered' AND jit IS NOT NULL
              AND (purpose <> 'register' OR delivered_at > :late)
        """),
        {"id": claim_id, "pod_uid": pod_uid, "late": now - timedelta(seconds=REGISTERS_AGAIN)},
    ).one_or_none()
    if row is None:
        return None
    if row.stamp != Stamp.ON:
        _put_stamp_off(db, claim_id, stamp_returns_after, now=now, who=who)
    return _delivery(cast("Claim", row))


def _put_stamp_off(db: Connection, claim_id: int, stamp_returns_after: float, *, now: datetime, who: str) -> None:
    """Postpone the stamp of a delivered claim by `stamp_returns_after` seconds, and cancel an un-stamp that has begun.

    The answer must reach the Pod before the stamp. A claim that another session has locked is skipped, because the
    answer must not wait for the lock. The sweep `resume` later puts on the stamp of a skipped claim too.
    """
    free = db.execute(
        text("SELECT 1 FROM claims WHERE id = :id AND state = 'delivered' FOR NO KEY UPDATE SKIP LOCKED"),
        {"id": claim_id},
    ).one_or_none()
    if free is None:
        return
    at = now + timedelta(seconds=stamp_returns_after)
    claim_transitions.return_stamp(
        db, claim_id, why="the Pod polls again", due_at=at + RESUME_GRACE, stamp_after=at, now=now, who=who
    )


def _delivery(row: Claim) -> Delivery:
    return Delivery(
        claim_id=row.id,
        job_id=row.job_id,
        jit=bytes(cast("bytes", row.jit)),  # a claim that is delivered has a JIT and a runner
        runner_name=cast("str", row.runner_name),
        account_id=row.account_id,
        stamp=Stamp(row.stamp),
    )

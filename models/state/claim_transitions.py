"""Transitions of claims and of their stamps: the condition, the columns and the reason of each.

The table in `rules.claims.machines` defines the transitions, and `models.state.transitions` applies them. Every
function returns the claim after the transition, or False or None if nothing has changed. Nothing changes if the claim
has ended, has another purpose, is in a state without this transition, or does not satisfy the function's own condition.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection

from models.db import epochs
from models.state import claim_leases
from models.state.claim_leases import Leased, Minting
from models.state.claims import Claim
from models.state.transitions import move_claim
from rules.claims.machines import EndReason
from rules.restore.restoring import Registered

_UNDELIVERED = f" AND delivered_at IS NULL AND {epochs.CURRENT}"
_POLLED = f"""
    AND {epochs.CURRENT} AND jit IS NOT NULL AND pod_uid = :pod_uid
    AND EXISTS (SELECT FROM offers WHERE offers.pod_uid = claims.pod_uid AND offers.poll_id = :poll_id)
"""
_ENDED = ", end_reason = :end_reason"

# Stamps


def finish_stamp(
    db: Connection,
    work: Leased,
    name: str,
    *,
    error: str | None,
    due_after: float,
    stamp_after: datetime | None = None,
    now: datetime,
    who: str,
) -> bool:
    """Record the result of a stamp or an un-stamp, and end the lease.

    `name` is the transition: `stamp_on`, `stamp_gave_up` or `stamp_off`. Returns False if the claim has changed, or if
    another step has leased the claim. Without the second check, a stamp that took longer than its own lease could end
    the lease of a mint.

    `error` says why the stamp failed, or is None. The next step is due after `due_after` seconds. If the stamp of a
    delivered claim was removed, `stamp_after` is the time at which the stamp is put on again. The stamp is put on
    earlier if the poller of the Pod ends earlier.
    """
    moved = move_claim(
        db,
        name,
        work.claim_id,
        now=now,
        who=who,
        why=error or "the API server answered",
        guard="AND chain_no = :chain_no AND leased_until = :until",
        sets=""", leased_until = NULL, stamp_after = CAST(:stamp_after AS timestamptz), last_error = :error,
            due_at = CASE WHEN state IN ('delivered', 'executing') THEN CAST(:stamp_after AS timestamptz)
                          WHEN state = 'releasing' THEN :now ELSE CAST(:due AS timestamptz) END""",
        chain_no=work.chain_no,
        until=work.lease_until,
        due=now + timedelta(seconds=due_after),
        stamp_after=stamp_after,
        error=error,
    )
    return moved is not None


def remove_stamp(db: Connection, claim_id: int, *, now: datetime, who: str) -> Claim | None:
    """Begin the un-stamp of a minted claim that is not leased, because its Pod stopped polling."""
    why = "the Pod of the claim stopped polling"
    guard = "AND state = 'minted' AND (leased_until IS NULL OR leased_until < :now)"
    return move_claim(db, "stamp_removing", claim_id, now=now, who=who, why=why, guard=guard)


def remove_stamp_again(db: Connection, claim_id: int, *, why: str, due_at: datetime, now: datetime, who: str) -> None:
    """Begin the un-stamp of a delivered claim. The caller has leased the claim for the un-stamp."""
    guard, sets = "AND state = 'delivered'", ", due_at = CAST(:due AS timestamptz)"
    move_claim(db, "stamp_removing", claim_id, now=now, who=who, why=why, guard=guard, sets=sets, due=due_at)


def cancel_unstamp(db: Connection, claim_id: int, *, pod_uid: str, poll_id: str, now: datetime, who: str) -> None:
    """Cancel the un-stamp of a minted claim, if this poll has the offer of its Pod."""
    why, guard = "the Pod polls again", f"AND state = 'minted' {_POLLED}"
    given: dict[str, Any] = {"pod_uid": pod_uid, "poll_id": poll_id}
    move_claim(db, "cancel_unstamp", claim_id, now=now, who=who, why=why, guard=guard, **given)


def return_stamp(
    db: Connection,
    claim_id: int,
    *,
    why: str,
    due_at: datetime,
    stamp_after: datetime | None = None,
    now: datetime,
    who: str,
) -> None:
    """Make the stamp of a delivered or executing claim due at `due_at`, and cancel an un-stamp that has begun."""
    guard, sets = "AND state IN ('delivered', 'executing')", ", leased_until = NULL"
    move_claim(db, "cancel_unstamp", claim_id, now=now, who=who, why=why, guard=guard, sets=sets)
    claim_leases.set_stamp_due(db, claim_id, due_at=due_at, stamp_after=stamp_after)


# Mint, delivery and execution


def mint(
    db: Connection, work: Minting, *, runner_id: int | None, jit: bytes, due_at: datetime, now: datetime, who: str
) -> Claim | None:
    """Store the JIT of a claim, if its chain and the attempt of this mint are still current."""
    return move_claim(
        db,
        "mint",
        work.claim_id,
        now=now,
        who=who,
        why="GitHub minted the JIT",
        guard="""AND chain_no = :chain_no AND EXISTS (
            SELECT FROM mint_attempts m WHERE m.id = :attempt_id AND m.claim_id = claims.id AND m.outcome = 'open')""",
        sets=""", jit = :jit, runner_name = :runner_name, runner_id = :runner_id, minted_at = :now,
            leased_until = NULL, due_at = :due, last_error = NULL""",
        chain_no=work.chain_no,
        attempt_id=work.attempt_id,
        jit=jit,
        runner_name=work.runner_name,
        runner_id=runner_id,
        due=due_at,
    )


def deliver(
    db: Connection,
    claim_id: int,
    *,
    pod_uid: str,
    poll_id: str,
    due_at: datetime,
    stamp_after: datetime,
    now: datetime,
    who: str,
) -> Claim | None:
    """Deliver a claim to the poll that has the offer of its Pod, unless the stamp of the claim is being removed.

    A stamp that is off is put on again after `stamp_after`. Its step is due at `due_at`.
    """
    return move_claim(
        db,
        "deliver",
        claim_id,
        now=now,
        who=who,
        why="the Pod polls",
        guard=f"AND stamp <> 'removing' {_POLLED}",
        sets=""", delivered_at = :now, leased_until = NULL,
            due_at = CASE WHEN stamp = 'off' THEN CAST(:due AS timestamptz) END,
            stamp_after = CASE WHEN stamp = 'off' THEN CAST(:stamp_after AS timestamptz) END""",
        due=due_at,
        stamp_after=stamp_after,
        pod_uid=pod_uid,
        poll_id=poll_id,
    )


def execute(db: Connection, claim_id: int, *, now: datetime, who: str, why: str) -> Claim | None:
    """Record that the runner of a claim executes the job that a webhook names."""
    return move_claim(db, "execute", claim_id, now=now, who=who, why=why)


def execute_unidentified(db: Connection, claim_id: int, *, now: datetime, who: str, why: str) -> bool:
    """Record that a claim's runner executes a job, although it is not known which job.

    The claim keeps its present job for now. Returns False if the claim was never delivered, or if it is neither
    `delivered` nor `releasing` now.
    """
    moved = move_claim(db, "execute", claim_id, now=now, who=who, why=why, guard="AND delivered_at IS NOT NULL")
    return moved is not None


def execute_busy(
    db: Connection, claim_id: int, *, job_id: int | None, keeps_job: bool, now: datetime, who: str, why: str
) -> bool:
    """Record that GitHub shows the runner of a claim as busy, if the claim still has the job `job_id`.

    If `keeps_job` is False, the runner executes another job, and the claim has no job afterwards.
    """
    guard = "AND job_id IS NOT DISTINCT FROM CAST(:job_id AS bigint)"
    sets = "" if keeps_job else ", job_id = NULL"
    given: dict[str, Any] = {"job_id": job_id}
    moved = move_claim(db, "execute", claim_id, now=now, who=who, why=why, guard=guard, sets=sets, **given)
    return moved is not None


# Release and end


def request_release(
    db: Connection,
    claim_id: int,
    *,
    reason: str,
    chain_no: int | None = None,
    undelivered: bool = False,
    spare_since: datetime | None = None,
    now: datetime,
    who: str,
) -> bool:
    """Commit that a claim is being released, before any call outside Postgres.

    Returns False if the claim does not qualify or cannot be released in its present state. A running step keeps its
    lease. The release is due when this lease ends. Three arguments restrict the claims that qualify:

    - `chain_no`, passed by a step of a chain: the claim must be `claimed` and on this chain.
    - `undelivered`: the JIT must never have been delivered. No claim qualifies while Postgres is known to be older than
      the cluster, because the rows might miss a delivery.
    - `spare_since`: the claim must be a spare, and must have become a spare at this time.
    """
    guard, given = "", dict[str, Any]()
    if chain_no is not None:
        guard, given["chain_no"] = "AND state = 'claimed' AND chain_no = :chain_no", chain_no
    if undelivered:
        guard += _UNDELIVERED
    if spare_since is not None:
        guard += " AND job_id IS NULL AND spare_since = :spare_since"
        given["spare_since"] = spare_since
    sets = ", release_reason = :why, due_at = coalesce(leased_until, :now), last_error = NULL"
    moved = move_claim(db, "begin_release", claim_id, now=now, who=who, why=reason, guard=guard, sets=sets, **given)
    return moved is not None


def refuse_release(db: Connection, claim_id: int, *, now: datetime, who: str) -> bool:
    """Record that a delivered claim executes, because GitHub refused to delete its busy runner."""
    why, guard = "GitHub says that the runner is busy", "AND delivered_at IS NOT NULL"
    return move_claim(db, "refuse_release", claim_id, now=now, who=who, why=why, guard=guard) is not None


def end_undelivered(db: Connection, claim_id: int, *, chain_no: int, now: datetime, who: str, why: str) -> bool:
    """End a released claim that was never delivered, if its chain is still current. Its stamp is off afterwards.

    Returns False while Postgres is known to be older than the cluster.
    """
    guard, sets = f"AND chain_no = :chain_no {_UNDELIVERED}", f"{_ENDED}, stamp = 'off'"
    given: dict[str, Any] = {"chain_no": chain_no, "end_reason": EndReason.RELEASED}
    moved = move_claim(db, "end_released", claim_id, now=now, who=who, why=why, guard=guard, sets=sets, **given)
    return moved is not None


def end_released(
    db: Connection, claim_id: int, *, reason: EndReason, chain_no: int | None = None, now: datetime, who: str, why: str
) -> Claim | None:
    """End a claim after its release. With `chain_no`, this chain must still be current."""
    guard, given = "", dict[str, Any](end_reason=reason)
    if chain_no is not None:
        guard, given["chain_no"] = "AND chain_no = :chain_no", chain_no
    return move_claim(db, "end_released", claim_id, now=now, who=who, why=why, guard=guard, sets=_ENDED, **given)


def end_completed(
    db: Connection, claim_id: int, *, executing: bool = False, now: datetime, who: str, why: str
) -> Claim | None:
    """End a claim whose job is completed. With `executing`, the claim must be `executing`."""
    guard = "AND state = 'executing'" if executing else ""
    sets, reason = f"{_ENDED}, spare_since = NULL", EndReason.COMPLETED
    return move_claim(
        db, "end_completed", claim_id, now=now, who=who, why=why, guard=guard, sets=sets, end_reason=reason
    )


def end_retired(db: Connection, claim_id: int, *, reason: EndReason, now: datetime, who: str, why: str) -> bool:
    """End a retire claim."""
    moved = move_claim(db, "end_retired", claim_id, now=now, who=who, why=why, sets=_ENDED, end_reason=reason)
    return moved is not None


def end_without_pod(db: Connection, claim_id: int, *, spent: bool, now: datetime, who: str, why: str) -> bool:
    """End a claim whose Pod is terminal (`spent` True) or gone (`spent` False)."""
    name, reason = ("end_pod_spent", EndReason.POD_SPENT) if spent else ("end_pod_gone", EndReason.POD_GONE)
    moved = move_claim(db, name, claim_id, now=now, who=who, why=why, sets=_ENDED, end_reason=reason)
    return moved is not None


# Claims that a restore rebuilds. A value that GitHub does not name is kept.

_RUNNER = ", runner_name = coalesce(:runner, t.runner_name), runner_id = coalesce(:runner_id, t.runner_id)"


def _named(runner: Registered | None) -> dict[str, Any]:
    return {"runner": runner and runner.name, "runner_id": runner and runner.id}


def hand_over(db: Connection, claim_id: int, runner: Registered | None, *, why: str, now: datetime, who: str) -> None:
    """Mint and deliver a claim, as far as its state allows."""
    minted = f", minted_at = :now{_RUNNER}"
    move_claim(db, "mint", claim_id, now=now, who=who, why=why, sets=minted, **_named(runner))
    delivered = f", delivered_at = :now, due_at = NULL, leased_until = NULL{_RUNNER}"
    move_claim(db, "deliver", claim_id, now=now, who=who, why=why, sets=delivered, **_named(runner))


def execute_handed_over(
    db: Connection, claim_id: int, runner: Registered | None, *, why: str, now: datetime, who: str
) -> bool:
    """Record that the runner of a claim executes a job. A claim without a time of delivery was delivered now."""
    sets = f", delivered_at = coalesce(t.delivered_at, :now){_RUNNER}"
    return move_claim(db, "execute", claim_id, now=now, who=who, why=why, sets=sets, **_named(runner)) is not None

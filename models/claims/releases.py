"""End claims without the webhook `completed`: by release, by retirement, or because the Pod is gone or spent.

Every function that ends a claim moves the claim's job in the same transaction (law L4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import cast

from sqlalchemy import Connection

from models.claims import pod_ends, runner_failures
from models.claims.names import INSTALLATION_NOW, SCOPE_NOW
from models.claims.steps import Annotated
from models.db import epochs
from models.db.engine import StartOver
from models.db.sql import text
from models.routing.usage import pools_with_work
from models.state import (
    claim_inserts,
    claim_leases,
    claim_transitions,
    executions,
    job_holds,
    job_transitions,
    mint_attempts,
    offers,
    pod_facts,
)
from models.state.claims import Claim
from rules.claims.job_outcomes import JobOutcome, NextStep
from rules.claims.machines import ClaimState, EndReason, Purpose
from rules.claims.pod_ends import describe
from rules.claims.runner_brakes import ASIDE
from rules.routing.holds import HoldReason
from rules.routing.unlabelled import NOT_GIVEN, not_given


@dataclass(frozen=True, slots=True)
class Registration:
    """A runner that Ostler registered or might have registered, and that is not known to be gone from GitHub.

    `delivered` is True if the JIT of the claim was delivered, so that the runner might start. `unseen` is True if the
    registration token of a persistent runner was delivered and the runner was never online, so that the runner might
    still register itself. Scope and installation are current (`models.claims.names`). The values stored with the claim
    might be out of date.
    """

    attempt_id: int
    runner_name: str
    runner_id: int | None
    installation_id: int
    scope: str
    delivered: bool = True
    unseen: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseWork(Annotated):
    """The data that a release or a retirement needs. `since` is the time of the claim's last transition.

    For a release, `delivered` is True if the claim was delivered. For a retirement, `delivered` is True if any claim of
    the Pod was delivered. `forced` is True if a sweep allowed this retirement to delete the Pod without waiting for its
    kubelet.
    """

    pool_id: int
    job_id: int | None
    repository: str | None
    account_id: int | None
    installation_id: int | None
    delivered: bool
    reason: str
    since: datetime
    registrations: tuple[Registration, ...]
    trusted: bool = True
    """True if Postgres was confirmed to be as new as the cluster. If False, the release may only requeue the job."""
    forced: bool = False
    attempt: str | None = None
    """The attempt that created the Pod, or None if the Pod does not name it."""
    persistent: bool = False
    """True if the claim registered a persistent runner."""


def registrations_of(db: Connection, claim_id: int, *, pod_uid: str | None = None) -> tuple[Registration, ...]:
    """Return the runners of a claim, or of every claim of the Pod `pod_uid`, that might exist on GitHub.

    With `pod_uid`, the result also has the persistent runners that GitHub did not know at the release of their claim.
    Such a runner might have registered itself since.
    """
    unseen = "(c.purpose = 'register' AND c.delivered_at IS NOT NULL AND c.online_at IS NULL)"
    rows = db.execute(
        text(f"""
            SELECT m.id, m.runner_name, m.runner_id, {INSTALLATION_NOW}, {SCOPE_NOW},
                   c.delivered_at IS NOT NULL AS delivered, {unseen} AS unseen
            FROM mint_attempts m JOIN claims c ON c.id = m.claim_id
            WHERE (m.outcome IN ('open', 'minted') OR (m.outcome = 'removed' AND c.pod_uid = :uid AND {unseen}))
              AND c.installation_id IS NOT NULL AND (c.id = :id OR c.pod_uid = :uid) ORDER BY m.id
        """),
        {"id": claim_id, "uid": pod_uid},
    )
    return tuple(Registration(*row) for row in rows)


def _work(db: Connection, row: Claim) -> ReleaseWork:
    pod = db.execute(
        text("SELECT namespace, name, stamp_value, attempt_id FROM runner_pods WHERE id = :id"),
        {"id": row.runner_pod_id},
    ).one()
    repository = db.execute(text("SELECT repository FROM jobs WHERE id = :id"), {"id": row.job_id}).scalar()
    retire = row.purpose == Purpose.RETIRE
    registrations = registrations_of(db, row.id, pod_uid=row.pod_uid if retire else None)
    delivered: bool = db.execute(
        text("""
            SELECT EXISTS (SELECT FROM claims
                           WHERE pod_uid = :uid AND delivered_at IS NOT NULL AND (id = :id OR :retire))
        """),
        {"uid": row.pod_uid, "id": row.id, "retire": retire},
    ).scalar_one()
    return ReleaseWork(
        claim_id=row.id,
        chain_no=row.chain_no,
        pool_id=row.pool_id,
        job_id=row.job_id,
        repository=repository,
        account_id=row.account_id,
        installation_id=row.installation_id,
        delivered=delivered,
        reason=row.release_reason or "",
        since=row.changed_at,
        namespace=pod.namespace,
        pod_name=pod.name,
        pod_uid=row.pod_uid,
        expected=pod.stamp_value,
        value=f"{row.id}.{row.stamp_no}",
        lease_until=cast("datetime", row.leased_until),
        registrations=registrations,
        forced=row.force_deleted_at is not None,
        attempt=pod.attempt_id or None,
        persistent=row.purpose == Purpose.REGISTER,
    )


def begin_release(
    db: Connection, claim_id: int, *, chain_no: int | None = None, requeue_after: float = 20.0, now: datetime
) -> ReleaseWork | None:
    """Lease a `releasing` claim for its release step, or return None if the lease cannot be acquired.

    If `chain_no` is given, only a claim with this chain number is leased. The lease raises the number, so that earlier
    steps of the claim change nothing.

    While the rows are not trusted (`models.db.epochs`), a claim is leased only if it was never delivered and has been
    `releasing` for `requeue_after` seconds. The job of such a claim can then be queued before the epoch is confirmed.
    """
    row = claim_leases.lease_release(db, claim_id, chain_no=chain_no, now=now)
    if row is not None:
        return _work(db, row)
    since = now - timedelta(seconds=requeue_after)
    row = claim_leases.lease_release(db, claim_id, chain_no=chain_no, undelivered_since=since, now=now)
    return None if row is None else replace(_work(db, row), trusted=False)


def begin_retire(db: Connection, claim_id: int, *, chain_no: int | None = None, now: datetime) -> ReleaseWork | None:
    """Lease a `retire` claim for its step, or return None if the lease cannot be acquired.

    If `chain_no` is given, only a claim with this chain number is leased.
    """
    row = claim_leases.lease_retire(db, claim_id, chain_no=chain_no, now=now)
    return None if row is None else _work(db, row)


def registration_removed(db: Connection, attempt_id: int, *, now: datetime) -> None:
    """Record that GitHub no longer has the runner of this mint attempt."""
    mint_attempts.close(db, attempt_id, outcome="removed", now=now)


def lock_job(db: Connection, job_id: int) -> None:
    """Lock a job. In the common lock order, a job is locked before its claims."""
    db.execute(text("SELECT 1 FROM jobs WHERE id = :id FOR NO KEY UPDATE"), {"id": job_id})


def lock_claim(db: Connection, claim_id: int) -> Claim | None:
    """Lock a live claim with its job and its Pod's row, in the common lock order. Return None if the claim has ended.

    Raises `StartOver` if the claim got another job while the locks were acquired.
    """
    seen = db.execute(
        text("SELECT job_id, runner_pod_id FROM claims WHERE id = :id AND ended_at IS NULL"), {"id": claim_id}
    ).one_or_none()
    if seen is None:
        return None
    if seen.job_id is not None:
        lock_job(db, seen.job_id)
    db.execute(text("SELECT 1 FROM runner_pods WHERE id = :id FOR NO KEY UPDATE"), {"id": seen.runner_pod_id})
    claim = db.execute(
        text("SELECT * FROM claims WHERE id = :id AND ended_at IS NULL FOR NO KEY UPDATE"), {"id": claim_id}
    ).one_or_none()
    if claim is not None and claim.job_id != seen.job_id:
        raise StartOver
    return cast("Claim | None", claim)


def refuse_release(db: Connection, claim_id: int, *, now: datetime, who: str) -> bool:
    """Move a claim from `releasing` to `executing`, because GitHub refused to delete the busy runner of the claim.

    Returns False if the claim is not `releasing` any more or was never delivered.
    """
    refused = claim_transitions.refuse_release(db, claim_id, now=now, who=who)
    if refused:
        runner_failures.executed(db, [claim_id], now=now)
    return refused


def apply_job_outcome(db: Connection, job_id: int, job_outcome: JobOutcome, *, now: datetime, who: str) -> None:
    """Move a job that lost its claim to the state that `job_outcome` names. A completed job stays completed."""
    match job_outcome.next_step:
        case NextStep.REQUEUE:
            job_transitions.requeue(db, job_id, now=now, who=who, why=job_outcome.why)
            executions.delete_open(db, job_id)
        case NextStep.FINISH:
            if job_transitions.finish_now(
                db, job_id, conclusion=job_outcome.conclusion, now=now, who=who, why=job_outcome.why
            ):
                executions.end(db, job_id, ended=now)
        case NextStep.RUNNING:
            job_transitions.run(db, job_id, now=now, who=who, why=job_outcome.why)
            job_holds.hold_running(db, job_id, now=now)
            executions.part_from_claim(db, job_id)


class Warmth(StrEnum):
    """State of a Pod whose claim ends although the JIT of the claim was never delivered.

    - `warm`: the un-stamp is confirmed, and the Pod can be claimed again.
    - `gone`: no Pod with this UID exists any more.
    - `unknown`: the un-stamp can never be confirmed, and the Pod is retired.
    """

    WARM = "warm"
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Ended:
    """A claim that was ended. `retire_id` is the retire claim that was inserted for its Pod, or None."""

    retire_id: int | None


def end_never_delivered(
    db: Connection, work: ReleaseWork, *, warmth: Warmth, retire_due: float, now: datetime, who: str
) -> Ended | None:
    """End a claim whose JIT was never delivered, and queue its job. The job keeps its age.

    A `warm` Pod can be claimed again at once. A Pod of `unknown` warmth gets its retire claim in the same transaction,
    even while the rows are not trusted. The retirement itself waits until the rows are trusted, and checks the Pod
    before it deletes the Pod (law L7).

    Returns None if the claim has ended, was delivered, or has a newer chain number. The result is also None while
    Postgres is known to be older than the cluster.
    """
    claim = lock_claim(db, work.claim_id)
    if claim is None or claim.delivered_at is not None:
        return None
    match warmth:
        case Warmth.WARM:
            pod_facts.record_annotation(db, pod_uid=work.pod_uid, value=work.value)
        case Warmth.GONE:
            mark_gone(db, work.pod_uid, now=now)
        case Warmth.UNKNOWN:
            pass
    if not claim_transitions.end_undelivered(
        db, work.claim_id, chain_no=work.chain_no, now=now, who=who, why=work.reason
    ):
        return None
    if claim.job_id is not None:
        job_transitions.requeue(db, claim.job_id, now=now, who=who, why=work.reason)
    if warmth is not Warmth.UNKNOWN:
        return Ended(None)
    return Ended(
        insert_retire(
            db,
            claim.runner_pod_id,
            now=now,
            who=who,
            why="the stamp of the Pod cannot be removed",
            due_after=retire_due,
            trusted=False,
        )
    )


def end_delivered(
    db: Connection, work: ReleaseWork, job_outcome: JobOutcome, *, now: datetime, who: str, retire_due: float
) -> int | None:
    """End a delivered claim whose runner is proven to be gone from GitHub, move its job, and retire its Pod.

    One transaction makes all three changes. Returns the id of the retire claim. Returns None if the claim is not
    `releasing` any more, if it has another job or chain number by now, or if no retire claim could be inserted.
    """
    claim = lock_claim(db, work.claim_id)
    if claim is None:
        return None
    if claim.job_id != work.job_id:
        return None  # the claim has another job by now: the next attempt asks GitHub about the new job
    reason = EndReason.RELEASED if work.persistent else EndReason.NEVER_STARTED
    moved = claim_transitions.end_released(
        db, work.claim_id, reason=reason, chain_no=work.chain_no, now=now, who=who, why=work.reason
    )
    if moved is None:
        return None
    if claim.job_id is not None:
        apply_job_outcome(db, claim.job_id, job_outcome, now=now, who=who)
        if work.reason == NOT_GIVEN:
            hold_not_given(db, claim.job_id, now=now)
        else:
            runner_failures.record(db, work.claim_id, reason=work.reason, now=now)
    return insert_retire(db, claim.runner_pod_id, now=now, who=who, why=work.reason, due_after=retire_due)


def hold_not_given(db: Connection, job_id: int, *, now: datetime) -> None:
    """Hold a job without labels that GitHub gave to no runner of its pool. Another runner group in the pool ends it.

    The runner worked, so this is no failure of the pool.
    """
    pool = db.execute(
        text("""
            SELECT l.name, coalesce(l.runner_group_name, l.runner_group_id::text) AS runner_group FROM jobs j
            JOIN pools l ON l.id = j.pool_id WHERE j.id = :id
        """),
        {"id": job_id},
    ).one_or_none()
    if pool is not None:
        detail = not_given(pool=pool.name, group=pool.runner_group)
        job_holds.hold_job(db, job_id, reason=HoldReason.RUNNER_GROUP, detail=detail, not_before=now + ASIDE, now=now)


def insert_retire(
    db: Connection, runner_pod_id: int, *, now: datetime, who: str, why: str, due_after: float, trusted: bool = True
) -> int | None:
    """Insert the retire claim that must exist before Ostler deletes a Pod that is not terminal (law L7). Return its id.

    Returns None if the Pod has a live claim, has no recorded UID, or is gone. Also returns None while the rows
    are not trusted (`models.db.epochs`), because a busy Pod might look free in the rows of an earlier state.

    With `trusted` False, the insert is refused only while Postgres is known to be older than the cluster. The caller
    passes False for a Pod that must not be matched again. The retirement of such a Pod waits until the rows are
    trusted.

    The claim is due after `due_after` seconds.
    """
    pod = db.execute(
        text(f"""
            SELECT id, uid, pool_id FROM runner_pods
            WHERE id = :id AND gone_at IS NULL AND {epochs.TRUSTED if trusted else epochs.CURRENT}
            FOR NO KEY UPDATE
        """),
        {"id": runner_pod_id, "now": now},
    ).one_or_none()
    if pod is None or pod.uid is None:
        return None
    live = db.execute(
        text("SELECT 1 FROM claims WHERE pod_uid = :uid AND ended_at IS NULL"), {"uid": pod.uid}
    ).one_or_none()
    if live is not None:
        return None
    return claim_inserts.insert_retirement(
        db,
        runner_pod_id=pod.id,
        pod_uid=pod.uid,
        pool_id=pod.pool_id,
        due=now + timedelta(seconds=due_after),
        now=now,
        who=who,
        why=why,
    )


def end_retired(db: Connection, work: ReleaseWork, *, now: datetime, who: str) -> bool:
    """End a retire claim, and record that its Pod is gone. Return False if the claim has already ended.

    The caller has seen by a GET request that the Pod's UID is gone.
    """
    if lock_claim(db, work.claim_id) is None:
        return False
    mark_gone(db, work.pod_uid, now=now)
    return claim_transitions.end_retired(
        db, work.claim_id, reason=EndReason.RETIRED, now=now, who=who, why="the Pod is gone"
    )


def mark_gone(db: Connection, pod_uid: str, *, now: datetime) -> None:
    """Record that a Pod's UID is gone, and delete the offer of the Pod.

    The caller has proof: a GET request by name and UID, or its own deletion of a terminal Pod.
    """
    pod_facts.record_gone(db, pod_uid, now=now)
    offers.delete(db, pod_uid)


def end_without_pod(
    db: Connection, claim_id: int, *, job_id: int | None, job_outcome: JobOutcome, spent: bool, now: datetime, who: str
) -> bool:
    """End a claim whose Pod no longer runs, and move the job of the claim to the state that `job_outcome` names.

    The caller has proof that the Pod is terminal (`spent` True) or gone (`spent` False). `job_id` is the job that the
    caller asked GitHub about. Returns False if the claim has another job by now or has ended.
    """
    claim = lock_claim(db, claim_id)
    if claim is None or claim.job_id != job_id:
        return False
    if not spent:
        mark_gone(db, claim.pod_uid, now=now)
    why = f"{describe(pod_ends.read(db, claim.pod_uid)) or 'the Pod has ended'}; {job_outcome.why}"
    if not claim_transitions.end_without_pod(db, claim_id, spent=spent, now=now, who=who, why=why):
        return False
    if claim.job_id is not None:
        apply_job_outcome(db, claim.job_id, job_outcome, now=now, who=who)
        if claim.state != ClaimState.EXECUTING:
            runner_failures.record(db, claim_id, reason=job_outcome.why, now=now)
    return True


def pools_to_wake(db: Connection, *, pool_id: int, account_id: int | None) -> Sequence[int]:
    """Return the pools to wake after the end of a claim: its own pool, and the pools where its account has jobs."""
    return sorted({pool_id, *pools_with_work(db, [] if account_id is None else [account_id])})

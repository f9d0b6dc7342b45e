"""Failures: Pods that received a JIT but never executed a job.

`rules.claims.runner_brakes` derives the brake of a pool from these failures. An INSERT records a failure and waits for
no other session. The brake is not stored. A brake therefore ends as soon as its failures are marked as cleared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Index
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.sql import text as clause

from models.claims import pod_ends
from models.db.base import Base, GitHubId
from models.db.sql import text
from models.state import job_holds
from rules.claims.pod_ends import describe
from rules.claims.runner_brakes import (
    ASIDE,
    ENDED_BEFORE_IT,
    JOB_TRIES,
    PROBE_LASTS,
    TOO_OLD,
    Accepted,
    Brake,
    Failure,
    brake_of,
    counts,
)
from rules.routing.holds import HoldReason

MOST_READ = 200
"""Greatest number of failures of a pool that are read, the latest first. More failures would not change the brake."""


class RunnerFailure(Base):
    """A Pod that got a JIT and then ended or was released, while its job was still queued at GitHub."""

    __tablename__ = "runner_failures"
    __table_args__ = (
        Index(None, "pool_id", "at", postgresql_where=clause("cleared_at IS NULL")),
        Index(None, "job_id"),
        Index(None, "at"),
    )

    claim_id: Mapped[GitHubId]
    pool_id: Mapped[int]
    template_hash: Mapped[str]
    account_id: Mapped[int]
    job_id: Mapped[int]
    pod_uid: Mapped[str]
    claimed_at: Mapped[datetime]
    at: Mapped[datetime]
    exit_code: Mapped[int | None] = mapped_column(comment="exit code of container `runner`; NULL: unknown")
    why: Mapped[str]
    cleared_at: Mapped[datetime | None] = mapped_column(
        comment="time at which a later execution cleared the failure; NULL: it still counts for the brake"
    )


@dataclass(frozen=True, slots=True)
class Held:
    """The claims that a brake still allows.

    Up to `slots` claims are allowed. The limit applies to the account `account_id`, or to the whole pool if
    `account_id` is None. A probe of the whole pool takes a job of an account in `last` only if no other account has a
    job. The probe tries the accounts in `last` in the given order.
    """

    account_id: int | None
    slots: int
    last: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Braked:
    """A pool that is braked."""

    pool_id: int
    namespace: str
    name: str
    brake: Brake


def record(db: Connection, claim_id: int, *, reason: str, now: datetime) -> bool:
    """Record that a delivered claim has just ended without an execution, if its job is queued again.

    Returns False if the end does not show that the runner failed. Examples are a Pod that was deleted or evicted, and a
    Pod of an old template. A job that failed on `JOB_TRIES` Pods is set aside.
    """
    claim = db.execute(
        text("""
            SELECT c.job_id, c.account_id, c.pod_uid, c.pool_id, c.created_at, p.template_hash, l.name AS pool
            FROM claims c JOIN runner_pods p ON p.id = c.runner_pod_id
            JOIN pools l ON l.id = c.pool_id AND l.template_hash = p.template_hash
            JOIN jobs j ON j.id = c.job_id AND j.state = 'queued'
            WHERE c.id = :id AND c.delivered_at IS NOT NULL
        """),
        {"id": claim_id},
    ).one_or_none()
    end = None if claim is None else pod_ends.read(db, claim.pod_uid)
    if claim is None or end is None or not counts(end.how):
        return False
    why = describe(end) or reason
    db.execute(
        text("""
            INSERT INTO runner_failures (claim_id, pool_id, template_hash, account_id, job_id, pod_uid, claimed_at, at,
                                         exit_code, why)
            VALUES (:id, :pool, :hash, :account, :job, :pod, :claimed, :now, :code, :why)
            ON CONFLICT DO NOTHING
        """),
        {
            "id": claim_id,
            "pool": claim.pool_id,
            "hash": claim.template_hash,
            "account": claim.account_id,
            "job": claim.job_id,
            "pod": claim.pod_uid,
            "claimed": claim.created_at,
            "now": now,
            "code": end.runner_exit_code,
            "why": why,
        },
    )
    tries: int = db.execute(
        text("SELECT count(*) FROM runner_failures WHERE job_id = :job AND template_hash = :hash"),
        {"job": claim.job_id, "hash": claim.template_hash},
    ).scalar_one()
    if tries >= JOB_TRIES:
        detail = f"{tries} runners of pool {claim.pool} {ENDED_BEFORE_IT}; the last runner: {why}"
        job_holds.hold_job(
            db, claim.job_id, reason=HoldReason.SET_ASIDE, detail=detail, not_before=now + ASIDE, now=now
        )
    return True


def executed(db: Connection, claim_ids: Iterable[int], *, now: datetime) -> Sequence[int]:
    """Clear failures of the pools in which these claims execute. Return the pools to wake.

    If the failures of a pool concern several accounts or brake the whole pool, all of them are cleared. Otherwise only
    the failures of the claim's own account are cleared. A claim on a Pod of an old template clears no failure of the
    present template. If GitHub refused the version of these runners (exit code `TOO_OLD`), it accepts the version
    again, so earlier failures of this kind are cleared in every pool with this version. Failures that another session
    has locked are skipped, because that session clears them.
    """
    ids = sorted(set(claim_ids))
    if not ids:
        return ()
    found = db.execute(
        text("""
            WITH executing AS (
                SELECT c.pool_id, c.account_id, c.created_at, p.template_hash
                FROM claims c JOIN runner_pods p ON p.id = c.runner_pod_id WHERE c.id = ANY(:ids)
            )
            SELECT pool_id, account_id, template_hash FROM executing e
            WHERE EXISTS (SELECT FROM runner_failures f WHERE f.pool_id = e.pool_id AND f.cleared_at IS NULL)
            UNION
            SELECT f.pool_id, f.account_id, f.template_hash FROM runner_failures f
            WHERE f.cleared_at IS NULL AND f.exit_code = :too_old AND EXISTS (
                SELECT FROM executing e
                JOIN runner_versions here ON here.pool_id = e.pool_id AND here.template_hash = e.template_hash
                JOIN runner_versions there ON there.version = here.version
                WHERE there.pool_id = f.pool_id AND there.template_hash = f.template_hash AND e.created_at > f.at)
        """),
        {"ids": ids, "too_old": TOO_OLD},
    ).all()
    pools = set()
    for row in found:
        where = {"pool": row.pool_id, "hash": row.template_hash, "account": row.account_id, "now": now}
        brake = read(db, row.pool_id, row.template_hash)
        cleared = db.execute(
            text("""
                UPDATE runner_failures SET cleared_at = :now WHERE claim_id IN (
                    SELECT claim_id FROM runner_failures f
                    WHERE pool_id = :pool AND template_hash = :hash AND cleared_at IS NULL
                      AND (:whole OR account_id = :account
                           OR (SELECT count(DISTINCT account_id) > 1 FROM runner_failures o
                               WHERE o.pool_id = :pool AND o.template_hash = :hash AND o.cleared_at IS NULL))
                    ORDER BY claim_id FOR NO KEY UPDATE SKIP LOCKED)
                RETURNING job_id
            """),
            {**where, "whole": brake is not None and brake.account_id is None},
        )
        if brake is not None and cleared.rowcount and brake.account_id in {None, row.account_id}:
            lift(db, row.pool_id, account_id=brake.account_id, now=now)
            pools.add(row.pool_id)
        elif alone := [job for job, failed in Counter(cleared.scalars()).items() if failed >= JOB_TRIES]:
            # No job executed between the tries of this job, so the pool might have been the cause. The job is tried
            # again. A job that fails while other jobs execute stays set aside for the time `ASIDE`.
            lift(db, row.pool_id, jobs=alone, now=now)
    return sorted(pools)


def lift(
    db: Connection, pool_id: int, *, account_id: int | None = None, jobs: Sequence[int] | None = None, now: datetime
) -> int:
    """Make `rematch` check the jobs that were set aside after runner failures in a pool.

    Returns how many jobs will be checked. If `account_id` is given, only jobs of this account are checked. If `jobs` is
    given, only jobs with these ids are checked. Jobs that other sessions have locked are skipped.
    """
    found = db.execute(
        text("""
            SELECT id FROM jobs j
            WHERE pool_id = :pool AND state IN ('queued', 'claimed') AND hold_reason = :hold AND not_before > :now
              AND (CAST(:account AS bigint) IS NULL OR account_id = :account)
              AND (CAST(:jobs AS bigint[]) IS NULL OR id = ANY(CAST(:jobs AS bigint[])))
              AND EXISTS (SELECT FROM runner_failures f WHERE f.job_id = j.id)
            ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
        """),
        {"pool": pool_id, "account": account_id, "jobs": jobs, "hold": HoldReason.SET_ASIDE, "now": now},
    )
    return job_holds.end_waits(db, found.scalars().all(), now=now)


def read(db: Connection, pool_id: int, template_hash: str) -> Brake | None:
    """Return the brake that the failures of a pool and a template cause, or None if the pool is not braked."""
    rows = db.execute(
        text("""
            SELECT pod_uid, job_id, account_id, claimed_at, at, exit_code, why FROM runner_failures
            WHERE pool_id = :pool AND template_hash = :hash AND cleared_at IS NULL ORDER BY at DESC LIMIT :most
        """),
        {"pool": pool_id, "hash": template_hash, "most": MOST_READ},
    ).all()
    if not rows:
        return None
    known = _accepted(db, pool_id, template_hash) if any(row.exit_code == TOO_OLD for row in rows) else None
    return brake_of([Failure(*row) for row in rows], accepted=known)


def _accepted(db: Connection, pool_id: int, template_hash: str) -> Accepted | None:
    """Return the version that the runners of a pool reported last, and until when GitHub's list accepts it."""
    row = db.execute(
        text("""
            SELECT version, ends_at FROM runner_versions WHERE pool_id = :pool AND template_hash = :hash
            ORDER BY seen_at DESC, version LIMIT 1
        """),
        {"pool": pool_id, "hash": template_hash},
    ).one_or_none()
    return None if row is None or row.ends_at is None else Accepted(row.version, row.ends_at)


def brakes(db: Connection) -> Sequence[Braked]:
    """Return every pool that is braked with its present template."""
    rows = db.execute(
        text("""
            SELECT DISTINCT l.id, l.namespace, l.name, l.template_hash
            FROM runner_failures f JOIN pools l ON l.id = f.pool_id AND l.template_hash = f.template_hash
            WHERE f.cleared_at IS NULL AND l.deleted_at IS NULL ORDER BY l.id
        """)
    ).all()
    found = [(row, read(db, row.id, row.template_hash)) for row in rows]
    return [Braked(row.id, row.namespace, row.name, brake) for row, brake in found if brake is not None]


def held(db: Connection, pool_id: int, template_hash: str, *, now: datetime) -> Held | None:
    """Return the claims that the brake of a pool still allows, or None if the pool is not braked.

    One claim is allowed if the wait of the brake is over and no probe is running. Otherwise no claim is allowed. The
    caller holds the pool's lock.
    """
    brake = read(db, pool_id, template_hash)
    if brake is None:
        return None
    last = brake.accounts if brake.account_id is None else ()
    return Held(brake.account_id, slots=1 if is_due(db, pool_id, brake, now=now) else 0, last=last)


def is_due(db: Connection, pool_id: int, brake: Brake, *, now: datetime) -> bool:
    """Return True if the matcher would start a probe of a braked pool now, and False otherwise."""
    return now >= brake.probe_at and not _is_probed(db, pool_id, brake, now=now)


def _is_probed(db: Connection, pool_id: int, brake: Brake, *, now: datetime) -> bool:
    """Return True if a probe is running, and False otherwise.

    A probe is a live claim that has a job, does not execute, and was inserted after the last failure. If only an
    account is braked, the claim belongs to this account. After `PROBE_LASTS`, a claim does not count as a probe any
    more.
    """
    found: bool = db.execute(
        text("""
            SELECT EXISTS (SELECT FROM claims
                           WHERE pool_id = :pool AND ended_at IS NULL AND purpose = 'job' AND job_id IS NOT NULL
                             AND state <> 'executing' AND created_at > :last AND created_at > :lasts
                             AND (CAST(:account AS bigint) IS NULL OR account_id = :account))
        """),
        {"pool": pool_id, "last": brake.last_at, "lasts": now - PROBE_LASTS, "account": brake.account_id},
    ).scalar_one()
    return found


def clear_old_templates(db: Connection, pool_id: int, template_hash: str, *, now: datetime) -> int:
    """Clear the failures of Pods that were made from an older template of a pool. Return how many were cleared.

    A new template might have removed the cause. The jobs that were set aside because of these failures are therefore
    checked again at once.
    """
    cleared = db.execute(
        text("""
            UPDATE runner_failures SET cleared_at = :now WHERE claim_id IN (
                SELECT claim_id FROM runner_failures
                WHERE pool_id = :pool AND template_hash <> :hash AND cleared_at IS NULL
                ORDER BY claim_id FOR NO KEY UPDATE SKIP LOCKED)
        """),
        {"pool": pool_id, "hash": template_hash, "now": now},
    )
    if cleared.rowcount:
        lift(db, pool_id, now=now)
    return cleared.rowcount


def delete(db: Connection, ids: Sequence[int]) -> int:
    """Delete the failures of these claims, and return how many were deleted. The caller has locked the failures."""
    return db.execute(text("DELETE FROM runner_failures WHERE claim_id = ANY(:ids)"), {"ids": ids}).rowcount

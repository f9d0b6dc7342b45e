"""Queries for the hints of the watch: rows of the Pods in a hint, and claims whose runner has started a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, text

from models.claims.releases import apply_job_outcome, lock_job
from models.state import claim_jobs, executions, job_transitions
from rules.claims.job_outcomes import JobOutcome


def pools_named(db: Connection, *, namespaces: Sequence[str], names: Sequence[str]) -> list[int]:
    """Return the pools with these names in these namespaces, including deleted pools, which might still have Pods."""
    rows = db.execute(
        text("SELECT id FROM pools WHERE namespace = ANY(:namespaces) AND name = ANY(:names) ORDER BY id"),
        {"namespaces": list(namespaces), "names": list(names)},
    )
    return list(rows.scalars())


@dataclass(frozen=True, slots=True)
class Known:
    """A Pod that needs cleanup after it disappears: it is not recorded as gone, or it has a live claim.

    `claim_id` and `purpose` describe the live claim. They are None if the Pod has no live claim.
    """

    pool_id: int
    claim_id: int | None
    purpose: str | None


def known_pods(db: Connection, uids: Sequence[str]) -> list[Known]:
    """Return the given Pods that need cleanup after they disappear."""
    rows = db.execute(
        text("""
            SELECT p.pool_id, c.id, c.purpose
            FROM runner_pods p LEFT JOIN claims c ON c.pod_uid = p.uid AND c.ended_at IS NULL
            WHERE p.uid = ANY(:uids) AND (p.gone_at IS NULL OR c.id IS NOT NULL) ORDER BY p.id
        """),
        {"uids": list(uids)},
    )
    return [Known(*row) for row in rows]


def not_executing(db: Connection, uids: Sequence[str]) -> list[int]:
    """Return the claims of these Pods that were delivered and have no known execution."""
    rows = db.execute(
        text("""
            SELECT id FROM claims
            WHERE pod_uid = ANY(:uids) AND ended_at IS NULL AND purpose = 'job' AND delivered_at IS NOT NULL
              AND state IN ('delivered', 'releasing') ORDER BY id
        """),
        {"uids": list(uids)},
    )
    return list(rows.scalars())


@dataclass(frozen=True, slots=True)
class UnidentifiedClaim:
    """An executing claim whose runner might execute another job than the claim's own."""

    id: int
    job_id: int
    installation_id: int
    runner_name: str
    pool_id: int
    repository: str


def unidentified(db: Connection, *, older_than: float, now: datetime) -> list[UnidentifiedClaim]:
    """Return claims that have been `executing` for more than `older_than` seconds without a recorded execution.

    Claims without a job or an installation are left out. At most 1000 claims are returned, in random order, so that
    repeated calls return every claim.
    """
    rows = db.execute(
        text("""
            SELECT c.id, c.job_id, c.installation_id, c.runner_name, c.pool_id, j.repository
            FROM claims c JOIN jobs j ON j.id = c.job_id
            WHERE c.ended_at IS NULL AND c.purpose = 'job' AND c.state = 'executing' AND c.changed_at < :before
              AND NOT EXISTS (SELECT FROM executions e WHERE e.claim_id = c.id OR e.job_id = c.job_id)
            ORDER BY random() LIMIT 1000
        """),
        {"before": now - timedelta(seconds=older_than)},
    )
    return [UnidentifiedClaim(*row) for row in rows if row.installation_id is not None]


def bind(db: Connection, claim_id: int, *, job_id: int, now: datetime, who: str, why: str) -> bool:
    """Record an execution of the job that a claim has, because GitHub says that the claim's runner executes this job.

    Returns False if the claim is not `executing` any more, has another job by now, or has a recorded execution.
    """
    if not _still_unidentified(db, claim_id, job_id):
        return False
    job_transitions.run(db, job_id, now=now, who=who, why=why)
    executions.insert_for_claim(db, claim_id, job_id=job_id, now=now)
    return True


def part(db: Connection, claim_id: int, *, job_id: int, job_outcome: JobOutcome, now: datetime, who: str) -> bool:
    """Separate a claim from its job, because the claim's runner executes another job.

    The job gets the state that `job_outcome` names, as GitHub reported it (law L4). Returns False if the claim is not
    `executing` any more, has another job by now, or has a recorded execution.
    """
    if not _still_unidentified(db, claim_id, job_id):
        return False
    claim_jobs.set_job(db, [claim_id], None)
    apply_job_outcome(db, job_id, job_outcome, now=now, who=who)
    return True


def _still_unidentified(db: Connection, claim_id: int, job_id: int) -> bool:
    """Lock the job and the claim.

    Returns True if the claim is still `executing`, still has this job, and has no recorded execution. Returns False
    otherwise.
    """
    lock_job(db, job_id)
    row = db.execute(
        text("""
            SELECT 1 FROM claims c
            WHERE c.id = :id AND c.job_id = :job_id AND c.ended_at IS NULL AND c.state = 'executing'
              AND NOT EXISTS (SELECT FROM executions e WHERE e.claim_id = c.id OR e.job_id = :job_id)
            FOR NO KEY UPDATE OF c
        """),
        {"id": claim_id, "job_id": job_id},
    ).one_or_none()
    return row is not None

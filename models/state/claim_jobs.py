"""Jobs of claims: changes of `job_id` and `spare_since` that do not change the state of the claim.

Other modules write these columns only together with a transition. The caller must hold the locks of the claims' rows.
The caller must have locked the rows of the jobs before the rows of the claims.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import Connection

from models.db.sql import text


def set_job(db: Connection, claim_ids: Sequence[int], job_id: int | None) -> None:
    """Set the job of these claims. If `job_id` is None, the claims have no job afterwards."""
    db.execute(
        text("UPDATE claims SET job_id = :job WHERE id = ANY(:ids)"),
        {"job": job_id, "ids": list(claim_ids)},
    )


def give_to_spares(db: Connection, jobs: Mapping[int, int], *, now: datetime) -> None:
    """Assign jobs to spares. `jobs` maps the id of each job to the id of its new claim.

    The delivery time of each claim becomes `now`.
    """
    db.execute(
        text("""
            UPDATE claims c SET job_id = pair.job_id, spare_since = NULL, delivered_at = :now, changed_at = :now,
                   runner_absent_at = NULL, runner_idle_at = NULL
            FROM unnest(CAST(:claims AS bigint[]), CAST(:jobs AS bigint[])) AS pair (claim_id, job_id)
            WHERE c.id = pair.claim_id
        """),
        {"claims": list(jobs.values()), "jobs": list(jobs), "now": now},
    )


def make_spare(db: Connection, claim_id: int, *, now: datetime) -> bool:
    """Turn a delivered claim without a job into a spare. Return False if the claim does not qualify."""
    made = db.execute(
        text("UPDATE claims SET spare_since = :now WHERE id = :id AND state = 'delivered' AND job_id IS NULL"),
        {"now": now, "id": claim_id},
    )
    return made.rowcount > 0


def take_job(db: Connection, claim_id: int, *, job_id: int, now: datetime) -> bool:
    """Turn a delivered claim that has this job into a spare. Return False if the claim does not qualify."""
    made = db.execute(
        text("""
            UPDATE claims SET spare_since = :now, job_id = NULL, changed_at = :now
            WHERE id = :id AND job_id = :job_id AND state = 'delivered'
        """),
        {"now": now, "id": claim_id, "job_id": job_id},
    )
    return made.rowcount > 0

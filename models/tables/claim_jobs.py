"""The job of a claim: `job_id`, and `spare_since` of a runner that has none.

These columns of a claim that keeps its state are written here alone. The caller holds the rows of the claims and,
before them, those of the jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from models.db.sql import text


def set_job(db: Connection, claim_ids: Sequence[int], job_id: int | None) -> None:
    """Give a claim a job, or take theirs from claims (None)."""
    db.execute(
        text("UPDATE claims SET job_id = :job WHERE id = ANY(:ids)"),
        {"job": job_id, "ids": list(claim_ids)},
    )


def give_to_spares(db: Connection, jobs: Mapping[int, int], *, now: datetime) -> None:
    """Give jobs to spares, as job id → claim id: each is delivered anew."""
    db.execute(
        text("""
            UPDATE claims c SET job_id = pair.job_id, spare_since = NULL, delivered_at = :now, changed_at = :now,
                   runner_absent_at = NULL, runner_idle_at = NULL
            FROM unnest(CAST(:claims AS bigint[]), CAST(:jobs AS bigint[])) AS pair (claim_id, job_id)
            WHERE c.id = pair.claim_id
        """),
        {"claims": list(jobs.values()), "jobs": list(jobs), "now": now},
    )


def make_spare(
    db: Connection, claim_id: int, *, guard: str = "", values: str = "", now: datetime, **parameters: Any
) -> bool:
    """Make a spare of a claim that satisfies `guard`; False when it does not.

    `guard` and `values`, further columns to set, are SQL over the claim and `parameters`.
    """
    made = db.execute(
        text(f"UPDATE claims SET spare_since = :now{values} WHERE id = :id {guard}"),
        {"now": now, "id": claim_id, **parameters},
    )
    return made.rowcount > 0

"""Jobs of claims: the columns `job_id` and `spare_since` of claims that keep their state.

No other module writes these columns without a transition. The caller must hold the locks of the claims' rows, and must
have locked the jobs' rows before them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from models.db.sql import text


def set_job(db: Connection, claim_ids: Sequence[int], job_id: int | None) -> None:
    """Set the job of these claims. None removes their jobs."""
    db.execute(
        text("UPDATE claims SET job_id = :job WHERE id = ANY(:ids)"),
        {"job": job_id, "ids": list(claim_ids)},
    )


def give_to_spares(db: Connection, jobs: Mapping[int, int], *, now: datetime) -> None:
    """Assign jobs to spares, and count each spare as delivered now. `jobs` maps job ids to claim ids."""
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
    """Turn a claim into a spare. Return False if the claim does not satisfy `guard`.

    `guard` is an SQL condition. `values` is SQL that sets further columns. Both refer to the claim and to `parameters`.
    """
    made = db.execute(
        text(f"UPDATE claims SET spare_since = :now{values} WHERE id = :id {guard}"),
        {"now": now, "id": claim_id, **parameters},
    )
    return made.rowcount > 0

"""Names of repositories by their ids, since a name might belong to another repository by now.

Jobs that were queued before their repository's id was kept have none; of those only the name and the time tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from models.db.sql import text
from models.tables import renames
from models.upstream import backoffs


@dataclass(frozen=True, slots=True)
class Renaming:
    """A repository that was called `former` until `at`, and is called `name` now."""

    repository_id: int
    account_id: int
    former: str
    name: str
    at: datetime


def rename(db: Connection, renaming: Renaming, *, now: datetime) -> bool:
    """Write a new name wherever the former one stands for this repository, and let its jobs be tried again.

    In jobs that are not over, and in the scopes of claims whose runner may still be registered there; False when it
    stood in none. A job that others hold locked is left: `torn` finds it.
    """
    jobs = renames.set_repository_of_jobs(
        db,
        account_id=renaming.account_id,
        repository_id=renaming.repository_id,
        former=renaming.former,
        name=renaming.name,
        at=renaming.at,
    )
    claims = renames.set_repository_of_claims(
        db,
        account_id=renaming.account_id,
        repository_id=renaming.repository_id,
        former=renaming.former,
        name=renaming.name,
        at=renaming.at,
    )
    if not jobs and not claims:
        return False
    backoffs.forget(db, [("repository", renaming.former)])
    backoffs.end_waits(db, account_id=renaming.account_id, now=now)
    return True


def torn(db: Connection, *, now: datetime) -> list[Renaming]:
    """Return the open jobs' names of repositories that are not the name which the newest of its jobs has.

    For when nobody told of a new name: the next job that is queued shows it, and the older ones may stand under a name
    that another repository has by now.
    """
    rows = db.execute(
        text("""
            WITH torn AS (
                SELECT repository_id FROM jobs WHERE state <> 'completed' AND repository_id IS NOT NULL
                GROUP BY repository_id HAVING min(repository) <> max(repository)
            ), newest AS (
                SELECT DISTINCT ON (repository_id) repository_id, repository AS latest
                FROM jobs JOIN torn USING (repository_id) WHERE state <> 'completed'
                ORDER BY repository_id, queued_at DESC, id DESC
            )
            SELECT DISTINCT repository_id, account_id, repository AS former, latest
            FROM jobs JOIN newest USING (repository_id) WHERE state <> 'completed' AND repository <> latest
            ORDER BY repository_id, former
        """)
    )
    return [Renaming(row.repository_id, row.account_id, row.former, row.latest, now) for row in rows]


def id_of(db: Connection, job_id: int) -> int | None:
    """Return the id of a job's repository, None when it was not kept."""
    found: int | None = db.execute(text("SELECT repository_id FROM jobs WHERE id = :id"), {"id": job_id}).scalar()
    return found

"""Renamed repositories, found by id, because another repository might have the former name by now.

Earlier versions stored no repository id for a job. Such a job is found by name and time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from models.db.sql import text
from models.state import renames
from models.upstream import backoffs


@dataclass(frozen=True, slots=True)
class Renaming:
    """A repository whose name was `former` until `at`, and is `name` now."""

    repository_id: int
    account_id: int
    former: str
    name: str
    at: datetime


def rename(db: Connection, renaming: Renaming, *, now: datetime) -> bool:
    """Replace a repository's former name by its new name in the rows, and end the backoff waits of the account's jobs.

    The next tick of the sweep `rematch` checks these jobs. The renamed rows are jobs that are not completed, and claims
    whose runner might still be registered in the repository. Returns False if no row had the former name. A job that
    another session has locked is skipped, and `torn` finds the job later.
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
    backoffs.delete(db, [("repository", renaming.former)])
    backoffs.end_waits(db, account_id=renaming.account_id, now=now)
    return True


def torn(db: Connection, *, now: datetime) -> list[Renaming]:
    """Return the renamings of repositories whose open jobs have different names for the same repository.

    Each renaming leads from a former name to the present name. The name in the newest open job of the repository counts
    as the present name. Different names show that the webhook about the new name was lost, or that a job was skipped.
    Without this query, the older jobs would keep a name that another repository might have by now.
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
    """Return the id of a job's repository, or None if it was not stored."""
    found: int | None = db.execute(text("SELECT repository_id FROM jobs WHERE id = :id"), {"id": job_id}).scalar()
    return found

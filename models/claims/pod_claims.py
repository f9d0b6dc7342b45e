"""Facts about claims whose Pod is over or gone.

Before Ostler ends such a claim, it asks GitHub about the job and the runners of the claim. The request needs these
facts.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from models.claims.releases import Registration, registrations_of
from models.db.sql import text


@dataclass(frozen=True, slots=True)
class ClaimFacts:
    """The facts about a claim and its Pod that are needed to ask GitHub about the job and the runners.

    `job_id` and `repository` are None if the claim has no job. `registrations` are the runners of the claim that might
    exist on GitHub.
    """

    namespace: str
    pod_name: str
    pod_uid: str
    attempt: str
    job_id: int | None
    repository: str | None
    installation_id: int | None
    account_id: int | None
    pool_id: int
    pool: str
    executing: bool
    releasing: bool
    delivered: bool
    registrations: tuple[Registration, ...]


def claim_facts(db: Connection, claim_id: int) -> ClaimFacts | None:
    """Return the facts of a live claim for a job or a registration, or None if there is no such claim."""
    query = db.execute(
        text("""
            SELECT p.namespace, p.name AS pod_name, c.pod_uid, p.attempt_id AS attempt, c.job_id, j.repository,
                   c.installation_id, c.account_id,
                   c.pool_id, (SELECT name FROM pools WHERE id = c.pool_id) AS pool, c.state = 'executing' AS executing,
                   c.state = 'releasing' AS releasing, c.delivered_at IS NOT NULL AS delivered
            FROM claims c JOIN runner_pods p ON p.id = c.runner_pod_id LEFT JOIN jobs j ON j.id = c.job_id
            WHERE c.id = :id AND c.ended_at IS NULL AND c.purpose <> 'retire'
        """),
        {"id": claim_id},
    )
    row = query.mappings().one_or_none()
    return None if row is None else ClaimFacts(**row, registrations=registrations_of(db, claim_id))


def executing_pods(db: Connection, *, pool_id: int) -> frozenset[str]:
    """Return the UIDs of the pool's Pods that execute a job."""
    rows = db.execute(
        text("""
            SELECT pod_uid FROM claims
            WHERE pool_id = :pool_id AND state = 'executing' AND purpose = 'job' AND ended_at IS NULL
        """),
        {"pool_id": pool_id},
    )
    return frozenset(rows.scalars())

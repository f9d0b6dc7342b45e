"""Queries for the mints that cannot be made for jobs of a pool. The pool's condition reports them."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection

from models.db.sql import text
from models.upstream.backoffs import GROUP_OF_POOL, QUIET_AFTER
from rules.pools.blocked_mints import UNUSABLE_GROUP, BlockedMints
from rules.routing.holds import HoldReason

_HELD = text(f"""
    WITH b AS MATERIALIZED (
        SELECT kind, key, reason, failures, not_before, probe_job_id FROM backoffs
        WHERE kind <> 'limit' AND (not_before > :now OR (failures > 0 AND not_before > :since))
    ), waiting AS (
        SELECT j.id, j.account_id, j.installation_id, j.repository, j.queued_at FROM jobs j
        WHERE j.pool_id = :pool_id AND j.state = 'queued' AND j.hold_reason = 'backoff' AND EXISTS (SELECT FROM b)
        UNION
        SELECT j.id, j.account_id, j.installation_id, j.repository, j.queued_at FROM jobs j
        WHERE j.id IN (SELECT probe_job_id FROM b) AND j.pool_id = :pool_id AND j.state IN ('queued', 'claimed')
    ), alike AS (
        SELECT account_id, installation_id, repository, count(*) AS jobs, min(queued_at) AS oldest FROM waiting
        GROUP BY account_id, installation_id, repository
    )
    SELECT b.kind, b.key, b.reason AS words, b.failures, b.not_before, sum(w.jobs)::bigint AS jobs,
           min(w.oldest) AS oldest, min(a.login) AS account, (count(*) OVER () - 1)::bigint AS more,
           (SELECT count(*) FROM jobs o
            WHERE o.pool_id = :pool_id AND o.state = 'queued' AND o.hold_reason IS NULL
              AND NOT EXISTS (SELECT FROM b WHERE b.probe_job_id = o.id)) AS others
    FROM alike w
    JOIN pools p ON p.id = :pool_id
    JOIN accounts a ON a.id = w.account_id
    CROSS JOIN LATERAL (VALUES ('account', w.account_id::text), ('repository', w.repository),
                               ('installation', w.installation_id::text),
                               ('runner_group', w.installation_id || '/' || ({GROUP_OF_POOL}))) k (kind, key)
    JOIN b ON b.kind = k.kind AND b.key = k.key
    GROUP BY b.kind, b.key, b.reason, b.failures, b.not_before
    ORDER BY jobs DESC, b.kind, b.key LIMIT 1
""")

_OF_GROUP = text(f"""
    SELECT '{UNUSABLE_GROUP}' AS kind, '' AS key, h.hold_detail AS words, 0 AS failures, h.not_before, h.jobs, h.oldest,
           h.account, (count(*) OVER () - 1)::bigint AS more,
           (SELECT count(*) FROM jobs o
            WHERE o.pool_id = :pool_id AND o.state = 'queued' AND o.hold_reason IS NULL) AS others
    FROM (SELECT j.hold_detail, min(j.not_before) AS not_before, count(*) AS jobs, min(j.queued_at) AS oldest,
                 min(a.login) AS account
          FROM jobs j JOIN accounts a ON a.id = j.account_id
          WHERE j.hold_reason = '{HoldReason.RUNNER_GROUP}' AND j.pool_id = :pool_id AND j.state = 'queued'
            AND cardinality(j.labels) > 0  -- only the workflow of a job without labels knows its group
          GROUP BY j.hold_detail) h
    ORDER BY h.jobs DESC, h.hold_detail LIMIT 1
""")


def blocked_mints(db: Connection, pool_id: int, *, now: datetime) -> BlockedMints | None:
    """Return the backoff that holds the most jobs of a pool.

    If no backoff holds a job of the pool, return the most frequent reason why jobs cannot use the pool's runner group,
    or None if there is no such job.

    The probe of a backoff is the one job that is tried after the wait. It is counted among the held jobs of the
    backoff, although it is not held. If it were not counted, the pool's condition would disappear and return with each
    probe.
    """
    row = db.execute(_HELD, {"pool_id": pool_id, "now": now, "since": now - QUIET_AFTER}).one_or_none()
    if row is None:
        row = db.execute(_OF_GROUP, {"pool_id": pool_id}).one_or_none()
    return None if row is None else BlockedMints(**row._mapping)

"""Inserts of new deliveries together with the jobs that the deliveries name.

One statement inserts the deliveries and the jobs, so that each delivery is handled only once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from models.db.engine import record_point
from models.db.sql import text
from models.state.transitions import of_running_task
from rules.claims.machines import Machine


@dataclass(frozen=True, slots=True)
class Inserted:
    """The new rows of an insert: the GUIDs of deliveries and the ids of jobs."""

    guids: set[str]
    jobs: Sequence[int]


_DELIVERIES = """
        INSERT INTO deliveries (guid, event, action, job_id, outcome, received_at)
        SELECT guid, 'workflow_job', action, job_id, :outcome, :now
        FROM jsonb_to_recordset(CAST(:deliveries AS jsonb)) AS d (guid text, action text, job_id bigint)
        ORDER BY guid
        ON CONFLICT (guid) DO NOTHING
        RETURNING guid, job_id
"""
_INSERT_DELIVERIES = text(_DELIVERIES)
_INSERT = text(f"""
    WITH fresh AS (
        {_DELIVERIES}
    ), seen AS (
        INSERT INTO jobs (id, account_id, installation_id, repository, repository_id, public, scope, run_id,
                          run_attempt, name, workflow_name, head_branch, head_sha, labels, state, pool_id, hold_reason,
                          hold_detail, not_before, queued_at, changed_at)
        SELECT id, account_id, installation_id, repository, repository_id, public, scope, run_id, run_attempt, name,
               workflow_name, head_branch, head_sha, labels, state, pool_id, hold_reason, hold_detail, not_before,
               queued_at, :now
        FROM jsonb_to_recordset(CAST(:jobs AS jsonb)) AS j (
            id bigint, account_id bigint, installation_id bigint, repository text, repository_id bigint, public boolean,
            scope text, run_id bigint,
            run_attempt bigint, name text, workflow_name text, head_branch text, head_sha text, labels text[],
            state text, pool_id bigint, hold_reason text, hold_detail text, not_before timestamptz,
            queued_at timestamptz)
        WHERE id IN (SELECT job_id FROM fresh)
        ORDER BY id
        ON CONFLICT (id) DO NOTHING
        RETURNING id, state
    ), events AS (
        INSERT INTO job_events (job_id, at, transition, from_state, to_state, who, why, task_id, attempt)
        SELECT seen.id, :now, 'job_seen', NULL, seen.state, :who, j.why, :task_id, CAST(:attempt AS bigint)
        FROM seen JOIN jsonb_to_recordset(CAST(:jobs AS jsonb)) AS j (id bigint, why text) ON j.id = seen.id
    )
    SELECT guid, NULL AS job_id FROM fresh UNION ALL SELECT NULL, id FROM seen
""")


def insert_deliveries(
    db: Connection, deliveries: Sequence[Mapping[str, Any]], *, outcome: str, now: datetime
) -> set[str]:
    """Insert deliveries of `workflow_job` webhooks, and return the GUIDs that are new."""
    values = {"deliveries": json.dumps(deliveries), "outcome": outcome, "now": now}
    return set(db.execute(_INSERT_DELIVERIES, values).scalars())


def insert(
    db: Connection,
    deliveries: Sequence[Mapping[str, Any]],
    jobs: Sequence[Mapping[str, Any]],
    *,
    outcome: str,
    now: datetime,
    who: str,
) -> Inserted:
    """Insert deliveries. For the new deliveries, also insert the jobs that have no row yet, with their first events.

    Each of `jobs` maps columns of the table `jobs` to their values. Times are given as text. The further key `why`
    contains the reason for the first event of the job.
    """
    values = {"deliveries": json.dumps(deliveries), "outcome": outcome, "now": now}
    rows = db.execute(_INSERT, values | {"jobs": json.dumps(jobs), "who": who, **of_running_task()}).all()
    inserted = [row.job_id for row in rows if row.job_id is not None]
    if inserted:
        record_point(db, "job_seen", machine=Machine.JOB, rows=len(inserted))
    return Inserted({row.guid for row in rows if row.guid is not None}, inserted)

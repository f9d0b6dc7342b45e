"""Engine of the transitions of jobs, claims and stamps. The table in `rules.claims.machines` defines the transitions.

One statement checks the present state, writes the new state and inserts the event. `insert_events` writes the events of
new rows. `models.state.claim_transitions` and `models.state.job_transitions` have one function per transition. Only
these modules may call `move_claim` and `move_jobs` with SQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any, cast

from sqlalchemy import Connection, Row

from models.db.engine import record_point
from models.db.prepared import Prepared
from models.db.sql import refuse_unknown, text
from models.state import stalls
from models.state.claims import Claim
from models.state.jobs import Job
from ostler import telemetry
from ostler.running_task import running_task
from rules.claims.machines import TRANSITIONS, Machine, allowed

for _transition in TRANSITIONS.values():
    telemetry.TRANSITIONS.labels(_transition.machine, _transition.name)


_ENDED = ", ended_at = :now, jit = NULL, leased_until = NULL, due_at = NULL"
# The poller of the Pod has ended, so that a stamp interrupts no poll. A missing stamp is added again now.
_EXECUTING = """, jit = NULL, leased_until = NULL, spare_since = NULL, stamp_after = NULL,
    due_at = CASE WHEN stamp IN ('removing', 'off') THEN CAST(:now AS timestamptz) END,
    stamp = CASE WHEN stamp = 'removing' THEN 'off' ELSE stamp END"""
# The job might have lost its pool while it was claimed. The hold `no_pool` lets `rematch` find a new pool.
_REQUEUED = ", hold_reason = CASE WHEN t.pool_id IS NULL THEN 'no_pool' ELSE t.hold_reason END"


def of_running_task() -> dict[str, str | int | None]:
    """Return the task that makes a transition, for the columns `task_id` and `attempt` of its event."""
    task = running_task()
    return {"task_id": task.id, "attempt": task.attempt}


@cache
def _moving(table: str, guard: str, state: str, sets: str, *, columns: str = "t.*") -> str:
    event = table.removesuffix("s")
    # The row is locked first, so that the event's from_state is the state that the row leaves.
    return f"""
        WITH old AS (
            SELECT id, {state} AS from_state, changed_at FROM {table}
            WHERE id = ANY(:ids) AND {state} = ANY(:sources) {guard}
            ORDER BY id FOR NO KEY UPDATE
        ), moved AS (
            UPDATE {table} t SET {state} = :target, changed_at = :now{sets}
            FROM old WHERE t.id = old.id
            RETURNING {columns}, old.from_state, old.changed_at AS left_at
        ), events AS (
            INSERT INTO {event}_events ({event}_id, at, transition, from_state, to_state, who, why, task_id, attempt,
                                        latency_ms)
            SELECT id, :now, :transition, from_state, :target, :who, :why, :task_id, CAST(:attempt AS bigint),
                   greatest(0, 1000 * extract(epoch FROM CAST(:now AS timestamptz) - left_at))::bigint
            FROM moved
        )
        SELECT * FROM moved ORDER BY id
    """


def _move(
    db: Connection,
    name: str,
    ids: Sequence[int],
    /,  # so that a caller's `ids` is refused as an unknown parameter
    *,
    now: datetime,
    who: str,
    why: str,
    guard: str,
    sets: str,
    **given: Any,
) -> Sequence[Row[Any]]:
    refuse_unknown(guard + sets, tuple(given))
    transition = allowed(name)
    table = "jobs" if transition.machine is Machine.JOB else "claims"
    state = "stamp" if transition.machine is Machine.STAMP else "state"
    if table == "claims":
        guard += " AND ended_at IS NULL"
        if transition.machine is Machine.CLAIM:
            guard += " AND purpose = ANY(:purposes)"
    rows = db.execute(
        text(_moving(table, guard, state, sets)),
        {
            "ids": list(ids),
            "sources": sorted(transition.sources),
            "target": transition.target,
            "transition": name,
            "purposes": sorted(transition.purposes),
            "now": now,
            "who": who,
            "why": why,
            **of_running_task(),
            **given,
        },
    ).all()
    if rows:
        record_point(db, name, machine=transition.machine, rows=len(rows))
        if transition.machine is Machine.CLAIM:
            stalls.moved(db, name, cast("Sequence[Claim]", rows), now=now)
    return rows


def move_jobs(
    db: Connection,
    name: str,
    job_ids: Sequence[int],
    *,
    now: datetime,
    who: str,
    why: str,
    guard: str = "",
    sets: str = "",
    **given: Any,
) -> Sequence[Job]:
    """Apply one transition to jobs, and return the rows of the jobs that moved, in the order of the jobs' ids.

    A job is skipped if the transition is not allowed from the job's state, or if the job does not satisfy the SQL
    condition `guard` (with its AND). `sets` is SQL that sets further columns (with its comma). `given` has
    the values of the parameters in `guard` and `sets`. A returned row has the columns of the class `Job`.

    Raises TypeError if `given` has a value that neither `guard` nor `sets` refers to.
    """
    if name == "job_requeue":
        sets += _REQUEUED
    rows = _move(db, name, job_ids, now=now, who=who, why=why, guard=guard, sets=sets, **given)
    return cast("Sequence[Job]", rows)


_MOVE_JOBS = Prepared(
    "move_jobs",
    _moving("jobs", "", "state", "", columns="t.id"),
    ids="bigint[]",
    sources="text[]",
    target="text",
    transition="text",
    now="timestamptz",
    who="text",
    why="text",
    task_id="text",
    attempt="bigint",
)


def move_many_jobs(
    db: Connection, name: str, job_ids: Sequence[int], *, now: datetime, who: str, why: str
) -> Sequence[int]:
    """Apply one transition to jobs as `move_jobs` does, but return only the ids of the jobs that moved.

    This function must not be used for the transition `job_requeue`, because `move_jobs` also checks the job's pool for
    that transition.
    """
    transition = allowed(name)
    rows = _MOVE_JOBS.execute(
        db,
        ids=list(job_ids),
        sources=sorted(transition.sources),
        target=transition.target,
        transition=name,
        now=now,
        who=who,
        why=why,
        **of_running_task(),
    )
    moved = [row.id for row in rows]
    if moved:
        record_point(db, name, machine=transition.machine, rows=len(moved))
    return moved


def move_claim(
    db: Connection,
    name: str,
    claim_id: int,
    *,
    now: datetime,
    who: str,
    why: str,
    guard: str = "",
    sets: str = "",
    **given: Any,
) -> Claim | None:
    """Apply one transition to a live claim, and return the row of the claim, with the columns of the class `Claim`.

    Return None if the claim has ended, has another purpose, or does not satisfy `guard`. Also return None if the
    transition is not allowed from the claim's present state. `move_jobs` explains `guard`, `sets` and `given`.
    """
    sets += {"ended": _ENDED, "executing": _EXECUTING}.get(allowed(name).target, "")
    rows = _move(db, name, [claim_id], now=now, who=who, why=why, guard=guard, sets=sets, **given)
    return cast("Claim", rows[0]) if rows else None


def insert_events(
    db: Connection, kind: str, ids: Sequence[int], *, name: str, state: str, now: datetime, who: str, why: str
) -> None:
    """Write the events of jobs or claims that were just inserted. `kind` is `job` or `claim`.

    `name` is the name of the transition that inserted the rows.
    """
    if not ids:
        return
    db.execute(
        text(f"""
            INSERT INTO {kind}_events ({kind}_id, at, transition, from_state, to_state, who, why, task_id, attempt)
            SELECT id, :now, :name, NULL, :state, :who, :why, :task_id, CAST(:attempt AS bigint)
            FROM unnest(CAST(:ids AS bigint[])) AS new (id)
        """),
        {"ids": list(ids), "name": name, "state": state, "now": now, "who": who, "why": why, **of_running_task()},
    )
    record_point(db, name, machine=allowed(name).machine, rows=len(ids))

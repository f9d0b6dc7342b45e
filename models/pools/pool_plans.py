"""Commit of a reconcile's plan: the rows of the Pods to create, and the retire claims.

A Pod's row is committed before the Pod is created. The pool's lock is held from the read of the claims until the
commit. Without the lock, two reconcilers could create one Pod too many, or count one failed start twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

from sqlalchemy import Connection

from models.claims.matching import POOL_LOCK_WITHIN
from models.claims.releases import insert_retire
from models.db.sql import text
from models.state import claim_transitions, pod_births
from models.state.pools import Pool
from rules.pools.pool_plan import TICK, PoolPlan, Why
from rules.pools.starts import Starts, Trouble, accepted, failed, over_quota, refused


@dataclass(frozen=True, slots=True)
class Committed:
    """The committed work of a reconcile.

    - `create`: (row id, Pod name, attempt id) of each Pod to create.
    - `retired`: the inserted retire claims, each with its reason.
    - `failed_starts`: the cause of each failed start that was counted.
    - `unregistering`: the registration claims whose release was requested, each with its reason. The release removes
      the runner from GitHub first, and then retires the Pod.
    """

    create: tuple[tuple[int, str, str], ...]
    retired: Mapping[int, Why]
    failed_starts: tuple[Trouble, ...] = ()
    unregistering: Mapping[int, Why] = field(default_factory=dict)


def lock_pool(db: Connection, pool_id: int) -> Pool:
    """Take the pool's lock and return the pool's row. The caller must read the plan's inputs after this call.

    The row has the columns of the class `Pool`.

    Raises the lock timeout error of Postgres if another session holds the lock for longer than `POOL_LOCK_WITHIN`.
    """
    db.execute(
        text(f"SET LOCAL lock_timeout = '{POOL_LOCK_WITHIN}'; SELECT pg_advisory_xact_lock(:pool_id)"),
        {"pool_id": pool_id},
    )
    return cast("Pool", db.execute(text("SELECT * FROM pools WHERE id = :id"), {"id": pool_id}).one())


def starts_of(pool: Pool) -> Starts:
    """Return the state of a pool's Pod starts (failures and backoff), as recorded in its row."""
    return Starts(
        failures=pool.failed_starts,
        failed_at=pool.failed_at,
        create_after=pool.create_after,
        trouble=None if pool.start_trouble is None else Trouble(pool.start_trouble),
        detail=pool.start_detail or "",
    )


def retired_in_tick(pool: Pool, *, now: datetime) -> int:
    """Return how many Pods of the pool were retired in the current tick."""
    begun = pool.tick_at is not None and (now - pool.tick_at).total_seconds() < TICK
    return pool.tick_retired if begun else 0


def commit_plan(
    db: Connection,
    pool: Pool,
    plan: PoolPlan,
    *,
    names: Sequence[tuple[str, str]],
    due_after: float,
    now: datetime,
    who: str,
) -> Committed:
    """Write a plan into the database.

    The caller must use the transaction that holds the pool's lock and has read the plan's inputs. `names` contains
    unused (Pod name, attempt id) pairs. The number of pairs is the maximum number of Pods to create in this reconcile.
    `due_after` is the time in seconds until the next step of a retire claim is due. `who` is written into the events of
    the claims.
    """
    for name, attempt in names[: plan.create]:
        pod_births.insert_planned(
            db,
            pool_id=pool.id,
            namespace=pool.namespace,
            name=name,
            attempt_id=attempt,
            template_hash=pool.template_hash,
            now=now,
        )
    pod_births.give_up(db, plan.give_up, now=now)
    retired = _retire(db, plan, due_after=due_after, now=now, who=who)
    unregistering = _unregister(db, plan, now=now, who=who)
    if retired or unregistering:
        _count_retired(db, pool, len(retired) + len(unregistering), now=now)
    failed = plan.failed_starts if Why.NOT_STARTED in retired.values() else ()
    starts = plan.starts
    if plan.failed_starts and not failed:
        starts = starts_of(pool)  # nothing to count: these Pods polled or were claimed meanwhile
    if starts != starts_of(pool):
        _write_starts(db, pool.id, starts)
    rows = _to_create(db, pool.id, limit=len(names)) if plan.creates else ()
    return Committed(create=tuple(rows), retired=retired, failed_starts=failed, unregistering=unregistering)


def _to_create(db: Connection, pool_id: int, *, limit: int) -> list[tuple[int, str, str]]:
    rows = db.execute(
        text("""
            SELECT id, name, attempt_id FROM runner_pods
            WHERE pool_id = :id AND uid IS NULL AND gone_at IS NULL ORDER BY id LIMIT :limit
        """),
        {"id": pool_id, "limit": limit},
    )
    return [(row.id, row.name, row.attempt_id) for row in rows]


def _retire(db: Connection, plan: PoolPlan, *, due_after: float, now: datetime, who: str) -> dict[int, Why]:
    """Insert the retire claims of a plan, and return the plan's reason for each claim.

    A Pod is skipped if another session has locked its row, or if the Pod was claimed or has ended in the meantime.
    """
    if not plan.retire:
        return {}
    wanted = {each.id: each for each in plan.retire}
    rows = db.execute(
        text("""
            SELECT p.id FROM runner_pods p
            WHERE p.id = ANY(:ids) AND p.gone_at IS NULL AND p.terminal_at IS NULL
              AND p.uid IS NOT NULL AND NOT EXISTS (SELECT FROM claims c WHERE c.pod_uid = p.uid
                              AND (c.ended_at IS NULL OR c.delivered_at IS NOT NULL))
            ORDER BY p.id FOR NO KEY UPDATE SKIP LOCKED
        """),
        {"ids": list(wanted)},
    )
    retired = {}
    for row_id in rows.scalars().all():
        claim_id = insert_retire(db, row_id, now=now, who=who, why=str(wanted[row_id]), due_after=due_after)
        if claim_id is not None:
            retired[claim_id] = wanted[row_id].why
    return retired


def _unregister(db: Connection, plan: PoolPlan, *, now: datetime, who: str) -> dict[int, Why]:
    """Request the release of the persistent runners in a plan, and return the plan's reason for each claim.

    A Pod is skipped if another session has locked its row, or if its claim changed in the meantime.
    """
    if not plan.retire:
        return {}
    wanted = {each.id: each for each in plan.retire}
    rows = db.execute(
        text("""
            SELECT p.id, c.id AS claim_id FROM runner_pods p JOIN claims c ON c.pod_uid = p.uid
            WHERE p.id = ANY(:ids) AND p.gone_at IS NULL AND p.terminal_at IS NULL
              AND c.ended_at IS NULL AND c.purpose = 'register' AND c.state = 'delivered'
            ORDER BY p.id FOR NO KEY UPDATE OF p SKIP LOCKED
        """),
        {"ids": list(wanted)},
    ).all()
    return {
        row.claim_id: wanted[row.id].why
        for row in rows
        if claim_transitions.request_release(db, row.claim_id, reason=str(wanted[row.id]), now=now, who=who)
    }


def _count_retired(db: Connection, pool: Pool, count: int, *, now: datetime) -> None:
    before = retired_in_tick(pool, now=now)
    db.execute(
        text("UPDATE pools SET tick_at = :at, tick_retired = :retired WHERE id = :id"),
        {"id": pool.id, "at": pool.tick_at if before else now, "retired": before + count},
    )


def record_refusal(db: Connection, pool_id: int, *, detail: str, quota: bool, now: datetime) -> None:
    """Record that the API server refused a Pod of this pool.

    `detail` is the API server's message. `quota` is True if a quota of the namespace is used up. Such a refusal is not
    a failed start. Every other refusal counts as a failed start, unless the pool already waits after an earlier
    failure.
    """
    starts = starts_of(lock_pool(db, pool_id))
    if quota:
        after = over_quota(starts, detail=detail)
    elif starts.waits(now):
        after = starts  # another reconciler recorded a refusal a moment ago
    else:
        after = refused(starts, detail=detail, now=now)
    if after != starts:
        _write_starts(db, pool_id, after)


def record_failed_start(
    db: Connection, row_id: int, *, template_hash: str, trouble: Trouble, detail: str, made_at: datetime, now: datetime
) -> bool:
    """Count the failed start of a Pod that ended before its first poll. Return True if the failed start was counted.

    `template_hash` and `made_at` are the template and the creation time of the Pod. Return False if the pool has
    another template now, or if a failure was already counted after the creation of the Pod.
    """
    pool_id = db.execute(text("SELECT pool_id FROM runner_pods WHERE id = :id"), {"id": row_id}).scalar_one()
    pool = lock_pool(db, pool_id)
    if pool.template_hash != template_hash:
        return False
    starts = starts_of(pool)
    after = failed(starts, trouble=trouble, detail=detail, made_at=made_at, now=now)
    if after == starts:
        return False
    _write_starts(db, pool_id, after)
    return True


def record_taken(db: Connection, pool_id: int) -> None:
    """Record that the API server accepted a Pod of this pool. An earlier refusal or quota problem no longer applies."""
    starts = starts_of(lock_pool(db, pool_id))
    if accepted(starts) != starts:
        _write_starts(db, pool_id, accepted(starts))


def _write_starts(db: Connection, pool_id: int, starts: Starts) -> None:
    db.execute(
        text("""
            UPDATE pools SET failed_starts = :failures, failed_at = :failed_at, create_after = :create_after,
                   start_trouble = :trouble, start_detail = :detail
            WHERE id = :id
        """),
        {
            "id": pool_id,
            "failures": starts.failures,
            "failed_at": starts.failed_at,
            "create_after": starts.create_after,
            "trouble": starts.trouble,
            "detail": starts.detail or None,
        },
    )


def status_is_due(pool: Pool, status: Mapping[str, Any], *, every: float, now: datetime) -> bool:
    """Return True if a new `status` of a pool must be written now, and False otherwise.

    A changed status or reason of a condition is written at once. Any other change, also of a message, is written if at
    least `every` seconds have passed since the last write. An unchanged status is confirmed at this interval.
    """
    before = pool.status
    if before is None or _conditions(before) != _conditions(status):
        return True
    last = pool.status_checked_at if before == status else pool.status_at
    return last is None or (now - last).total_seconds() >= every


def _conditions(status: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    return [(each["type"], each["status"], each["reason"]) for each in status.get("conditions") or ()]


_STATUS = text("""
    UPDATE pools SET status = CAST(:status AS jsonb), status_at = :now, status_checked_at = :now WHERE id = :id
""")


def record_status(db: Connection, pool_id: int, status: str, *, now: datetime) -> None:
    """Record the status (JSON) that was written to the pool's object."""
    db.execute(_STATUS, {"id": pool_id, "status": status, "now": now})


_CURRENT = text("""
    UPDATE pools SET status_checked_at = :now WHERE id = :id AND status_at IS NOT DISTINCT FROM CAST(:at AS timestamptz)
""")


def confirm_status(db: Connection, pool: Pool, *, now: datetime) -> None:
    """Record that the status of a pool's object is current. Do nothing if it was written after `pool` was read."""
    db.execute(_CURRENT, {"id": pool.id, "at": pool.status_at, "now": now})

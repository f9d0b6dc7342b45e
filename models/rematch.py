"""Held jobs, matched again: what was held for want of a pool, a budget or a wait may go on now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row

from models.backoffs import WaitBook, keys_of
from models.pools import routes
from models.runner_groups import GroupBook, Wanted
from models.sql import text
from rules.access import Access
from rules.forks import Origin
from rules.holds import HoldReason
from rules.labels import PoolChoice, PoolLabels, choose_pool, detail_of
from rules.routing import Route, route

_LIFTED_HERE = [
    HoldReason.UNKNOWN_ACCOUNT, HoldReason.NO_POOL, HoldReason.NOT_ALLOWED, HoldReason.ORIGIN_UNKNOWN,
    HoldReason.RUNNER_GROUP, HoldReason.TWO_POOLS, HoldReason.BUDGET_ZERO, HoldReason.BACKOFF, HoldReason.SET_ASIDE,
]  # fmt: skip


_COLUMNS = """
    j.id, j.run_id, j.labels, j.account_id, j.installation_id, j.repository, j.repository_id, j.public, j.scope,
    j.hold_reason, j.hold_detail, a.budget_count, a.access, o.origin,
    (o.ask_after IS NULL OR o.ask_after <= :now) AND (o.leased_until IS NULL OR o.leased_until < :now) AS may_ask
"""
_TABLES = "jobs j JOIN accounts a ON a.id = j.account_id LEFT JOIN run_origins o ON o.run_id = j.run_id AND j.public"

RECENTLY = timedelta(minutes=5)
"""A job routed by what a pool said until a moment before it changed is found within this time."""


@dataclass(frozen=True, slots=True)
class Lifted:
    """A job that was held and is not any more."""

    job_id: int
    hold: str
    pool_id: int


@dataclass(frozen=True, slots=True)
class Rematched:
    """One page: where to go on (None at the end), the pools that got jobs, and the jobs that were held.

    `asks`: runs of which GitHub is to be asked (again) whether they come from a fork.
    """

    next_id: int | None
    pools: frozenset[int]
    lifted: tuple[Lifted, ...]
    asks: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Unrouted:
    """One page: how many jobs it took from a pool, those that are locked, and where to go on (None: the end)."""

    moved: int
    locked: tuple[int, ...]
    next_id: int | None


@dataclass(frozen=True, slots=True)
class Unrouting:
    """The jobs to take from a pool: all since its routing changed, or those that were locked when all others went."""

    since: datetime | None
    jobs: tuple[int, ...]


def unrouting(db: Connection, pool_id: int) -> Unrouting | None:
    """Return which jobs of a pool have to be taken from it; None when none has."""
    row = db.execute(
        text("SELECT rerouting_since, rerouting_jobs FROM pools WHERE id = :id"), {"id": pool_id}
    ).one_or_none()
    if row is None or (row.rerouting_since is None and not row.rerouting_jobs):
        return None
    return Unrouting(row.rerouting_since, tuple(row.rerouting_jobs))


_UNROUTE = """
    UPDATE jobs SET pool_id = NULL, changed_at = :now,
           hold_reason = CASE WHEN state <> 'queued' THEN hold_reason
                              WHEN hold_reason = :group THEN :hold ELSE coalesce(hold_reason, :hold) END,
           not_before = CASE WHEN state = 'queued' AND hold_reason = :group THEN NULL ELSE not_before END,
           hold_detail = CASE WHEN state = 'queued' THEN 'its pool changed' ELSE hold_detail END
    WHERE id IN (SELECT id FROM jobs WHERE id = ANY(:ids) AND pool_id = :pool_id AND state IN ('queued', 'claimed')
                 ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)
    RETURNING id
"""


def unroute_page(db: Connection, pool_id: int, *, after_id: int, limit: int, now: datetime) -> Unrouted:
    """Take one page of a pool's jobs from it, by id: its routing changed or it went. `rematch` finds them a pool.

    A claimed job keeps its claim; when that is released the job is queued without a pool. No job is waited for.
    """
    ids = list(
        db.execute(
            text("""
                SELECT id FROM (
                    (SELECT id FROM jobs WHERE state = 'queued' AND pool_id = :pool_id AND id > :after
                     ORDER BY id LIMIT :limit)
                    UNION ALL
                    (SELECT id FROM jobs WHERE state = 'claimed' AND pool_id = :pool_id AND id > :after
                     ORDER BY id LIMIT :limit)) page
                ORDER BY id LIMIT :limit
            """),
            {"pool_id": pool_id, "after": after_id, "limit": limit},
        ).scalars()
    )
    found = unroute_jobs(db, pool_id, ids, now=now)
    return replace(found, next_id=ids[-1] if len(ids) == limit else None)


def unroute_jobs(db: Connection, pool_id: int, ids: Sequence[int], *, now: datetime) -> Unrouted:
    """Take those of these jobs from a pool that are still in it and that nobody holds locked."""
    if not ids:
        return Unrouted(0, (), None)
    values = {
        "pool_id": pool_id,
        "ids": list(ids),
        "hold": HoldReason.NO_POOL,
        "group": HoldReason.RUNNER_GROUP,
        "now": now,
    }
    moved = len(db.execute(text(_UNROUTE), values).all())
    left = db.execute(
        text(
            "SELECT id FROM jobs WHERE id = ANY(:ids) AND pool_id = :pool_id AND state IN ('queued', 'claimed')"
            " ORDER BY id"
        ),
        {"pool_id": pool_id, "ids": list(ids)},
    ).scalars()
    return Unrouted(moved, tuple(left), None)


def end_unrouting(db: Connection, pool_id: int, todo: Unrouting, *, left: Sequence[int]) -> bool:
    """Let jobs be matched in a pool again, all but those that are left; not if somebody else has written it since."""
    ended = db.execute(
        text("""
            UPDATE pools SET rerouting_since = NULL, rerouting_jobs = CAST(:left AS bigint[])
            WHERE id = :id AND rerouting_since IS NOT DISTINCT FROM CAST(:since AS timestamptz)
              AND rerouting_jobs = CAST(:known AS bigint[])
        """),
        {"id": pool_id, "since": todo.since, "known": list(todo.jobs), "left": list(left)},
    )
    return ended.rowcount > 0


def rematch_page(db: Connection, *, after_id: int, limit: int, now: datetime) -> Rematched:
    """Match one page of jobs again, by id: the held ones, and those whose pool went or changed.

    A job that still cannot go keeps the reason of today.
    """
    rows = db.execute(
        text(f"""
            SELECT {_COLUMNS} FROM {_TABLES}
            WHERE j.state = 'queued' AND j.id > :after
              AND (j.hold_reason = ANY(:holds)
                   OR (j.hold_reason IS NULL AND j.pool_id IN (
                        SELECT p.id FROM pools p
                        WHERE p.deleted_at IS NOT NULL OR p.draining OR p.routed_at > :recently)))
              AND (j.not_before IS NULL OR j.not_before <= :now)
              AND (j.hold_reason IS DISTINCT FROM 'unknown_account' OR a.access = 'allowed')
            ORDER BY j.id LIMIT :limit FOR NO KEY UPDATE OF j SKIP LOCKED
        """),  # noqa: S608  the parts stand above
        {"holds": [str(hold) for hold in _LIFTED_HERE], "after": after_id, "limit": limit, "now": now,
         "recently": now - RECENTLY},
    ).all()  # fmt: skip
    found = _match(db, rows, now=now)
    return replace(found, next_id=rows[-1].id if len(rows) == limit else None)


def rematch_run(db: Connection, run_id: int, *, now: datetime) -> Rematched:
    """Match the jobs of a run again of which it is known now where it comes from.

    One that others hold locked is left to the sweep.
    """
    rows = db.execute(
        text(f"""
            SELECT {_COLUMNS} FROM {_TABLES}
            WHERE j.run_id = :run AND j.state = 'queued' AND j.hold_reason = :hold
            ORDER BY j.id FOR NO KEY UPDATE OF j SKIP LOCKED
        """),  # noqa: S608  as above
        {"run": run_id, "hold": HoldReason.ORIGIN_UNKNOWN, "now": now},
    ).all()
    return _match(db, rows, now=now)


def _match(db: Connection, rows: Sequence[Row[Any]], *, now: datetime) -> Rematched:
    """Match these jobs, whose rows are locked."""
    pools = routes(db)
    groups = {pool.id: pool.runner_group for pool in pools}
    book = GroupBook(db, now=now)
    choices = [_choose(pools, row) for row in rows]
    waits = WaitBook(
        db,
        (key for row, (choice, _) in zip(rows, choices, strict=True) for key in _keys(row, _group(groups, choice))),
        now=now,
    )
    woken: set[int] = set()
    asks: set[int] = set()
    lifted: list[Lifted] = []
    for row, (choice, about) in zip(rows, choices, strict=True):
        wanted = None if choice.pool_id is None else _wanted(row, groups[choice.pool_id])
        to = route(
            choice,
            detail=detail_of(choice, **about),
            budget_count=row.budget_count,
            group=None if wanted is None else book.wait(wanted),
            backoff=None,
            access=Access(row.access),
        )
        if to.hold is None:  # nothing else is in its way, so it may be the probe of a refusal
            wait = waits.wait(_keys(row, _group(groups, choice)), job_id=row.id)
            to = to if wait is None else Route(choice.pool_id, HoldReason.BACKOFF, wait.detail, wait.until)
        # The hold of a question without an answer says why there is none.
        detail = row.hold_detail if to.hold is HoldReason.ORIGIN_UNKNOWN == row.hold_reason else to.detail
        db.execute(
            text("""
                UPDATE jobs SET pool_id = :pool_id, hold_reason = :hold, not_before = :not_before,
                       hold_detail = CASE WHEN CAST(:hold AS text) IS NULL THEN NULL
                                          ELSE coalesce(:detail, hold_detail) END,
                       changed_at = CASE WHEN hold_reason IS DISTINCT FROM :hold THEN CAST(:now AS timestamptz)
                                         ELSE changed_at END
                WHERE id = :id
                  AND (pool_id, hold_reason, not_before, hold_detail) IS DISTINCT FROM
                      (CAST(:pool_id AS bigint), CAST(:hold AS text), CAST(:not_before AS timestamptz),
                       CAST(:detail AS text))
            """),
            {
                "id": row.id, "pool_id": to.pool_id, "hold": to.hold, "not_before": to.not_before, "detail": detail,
                "now": now,
            },
        )  # fmt: skip
        if to.hold is HoldReason.ORIGIN_UNKNOWN and row.may_ask:
            asks.add(row.run_id)
        if to.hold is None and to.pool_id is not None:
            woken.add(to.pool_id)
            if row.hold_reason is not None:
                lifted.append(Lifted(row.id, row.hold_reason, to.pool_id))
    return Rematched(next_id=None, pools=frozenset(woken), lifted=tuple(lifted), asks=frozenset(asks))


def _choose(pools: Sequence[PoolLabels], row: Row[Any]) -> tuple[PoolChoice, Mapping[str, Any]]:
    """Return the pool of a job, and what it was chosen by."""
    origin = Origin(row.origin or Origin.UNKNOWN) if row.public else Origin.HERE
    about = {"labels": row.labels, "account_id": row.account_id, "repository": row.repository}
    return choose_pool(pools, **about, origin=origin), about


def _group(groups: Mapping[int, int | str], choice: PoolChoice) -> int | str | None:
    return None if choice.pool_id is None else groups[choice.pool_id]


def _keys(row: Row[Any], group: int | str | None) -> list[tuple[str, str]]:
    return keys_of(
        account_id=row.account_id, repository=row.repository, installation_id=row.installation_id, group=group
    )


def _wanted(row: Row[Any], group: int | str) -> Wanted:
    return Wanted(
        group=group, installation_id=row.installation_id, repository=row.repository, repository_id=row.repository_id,
        organization=row.scope.startswith("orgs/"), public=bool(row.public),
    )  # fmt: skip

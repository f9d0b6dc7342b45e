"""Rematching: the sweep `rematch` routes held jobs again and lifts the holds that no longer apply."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row

from models.claims import runner_failures
from models.db.sql import text
from models.pools.pools import routes
from models.routing.runner_groups import GroupBook, Wanted
from models.state import job_holds
from models.state.offers import offering
from models.upstream import backoffs
from models.upstream.backoffs import WaitBook, keys_of
from rules.routing.access import Access
from rules.routing.forks import Origin
from rules.routing.holds import HoldReason
from rules.routing.labels import PoolLabels, choose_pool, detail_of
from rules.routing.routing import Route, Wait, route

_LIFTED_HERE = [
    HoldReason.UNKNOWN_ACCOUNT,
    HoldReason.NO_POOL,
    HoldReason.NOT_ALLOWED,
    HoldReason.ORIGIN_UNKNOWN,
    HoldReason.RUNNER_GROUP,
    HoldReason.TWO_POOLS,
    HoldReason.BUDGET_ZERO,
    HoldReason.BACKOFF,
    HoldReason.SET_ASIDE,
]


_COLUMNS = """
    j.id, j.run_id, j.labels, j.account_id, j.installation_id, j.repository, j.repository_id, j.public, j.scope,
    j.hold_reason, j.hold_detail, j.pool_id, j.not_before, a.budget_count, a.access, o.origin,
    (o.ask_after IS NULL OR o.ask_after <= :now) AND (o.leased_until IS NULL OR o.leased_until < :now) AS may_ask
"""
_BESIDE = "JOIN accounts a ON a.id = j.account_id LEFT JOIN run_origins o ON o.run_id = j.run_id"
_REMATCHED = """
    j.state = 'queued' AND (j.not_before IS NULL OR j.not_before <= :now)
    AND (j.hold_reason = ANY(:holds)
         OR (j.hold_reason IS NULL AND (
             j.pool_id IN (SELECT p.id FROM pools p
                           WHERE p.deleted_at IS NOT NULL OR p.draining OR p.routed_at > :recently)
             OR j.account_id IN (SELECT id FROM accounts WHERE access = 'held'))))
"""

RECENTLY = timedelta(minutes=5)
"""Time after a change of a pool during which the sweep also routes the pool's jobs that are not held.

At the time of the change, a process might still have routed a job by the old criteria of the pool.
"""


@dataclass(frozen=True, slots=True)
class Lifted:
    """A job that was held and is not held any more."""

    job_id: int
    hold: str
    pool_id: int


@dataclass(frozen=True, slots=True)
class Rematched:
    """The result of routing one page of jobs again.

    - `places`: the accounts with further jobs. Each account has the id of the job after which its next page begins.
      `places` is empty if no account has further jobs.
    - `pools`: the pools that at least one job of this page was routed to without a hold.
    - `lifted`: the jobs whose holds were lifted.
    - `asks`: the ids of the runs that GitHub has to be asked about. It is not known whether these runs come from forks.
    """

    places: Mapping[int, int]
    pools: frozenset[int]
    lifted: tuple[Lifted, ...]
    asks: frozenset[int] = frozenset()


_NOTHING = Rematched(places={}, pools=frozenset(), lifted=())


def rematch_page(db: Connection, places: Mapping[int, int], *, limit: int, now: datetime) -> Rematched:
    """Route one page of jobs again: held jobs, jobs of held accounts, and jobs of pools that are gone or have changed.

    `places` maps each account to the id of a job. The account's part of the page begins after this job (see
    `accounts_to_rematch`). Only jobs that might change are locked. If a job is still held, its hold gets the reason
    that applies now. Jobs whose wait is not over are left out, and so are jobs with the hold `ask_github`. Jobs with
    the hold `unknown_account` are left out while their account is not allowed.
    """
    each = max(1, limit // max(1, len(places)))  # equal parts, so that no account waits for the jobs of another
    rows = db.execute(
        text(f"""
            SELECT {_COLUMNS}
            FROM unnest(CAST(:accounts AS bigint[]), CAST(:afters AS bigint[])) AS place (account, after)
            CROSS JOIN LATERAL (
                SELECT * FROM jobs j WHERE j.account_id = place.account AND j.id > place.after AND {_REMATCHED}
                -- Jobs that are left out must not fill the page, because then no page would follow.
                AND (j.hold_reason IS DISTINCT FROM 'unknown_account'
                     OR place.account IN (SELECT id FROM accounts WHERE access = 'allowed'))
                ORDER BY j.id LIMIT :each) j
            {_BESIDE}
            ORDER BY j.account_id, j.id
        """),
        _rematched(now) | {"accounts": list(places), "afters": list(places.values()), "each": each},
    ).all()
    last: dict[int, int] = {}
    counts: Counter[int] = Counter()
    for row in rows:
        last[row.account_id] = row.id
        counts[row.account_id] += 1
    router = _Router(db, rows, now=now)
    changed = [row.id for row in rows if router.changes(row)]
    found = _match(db, _lock(db, changed, now=now), router, now=now) if changed else _NOTHING
    asks = {row.run_id for row in rows if router.asks(row)}
    routed = [router.route(row) for row in rows]
    pools = {to.pool_id for to in routed if to.hold is None and to.pool_id is not None}
    following = {account: last[account] for account in places if counts[account] == each}
    return replace(found, places=following, pools=found.pools | pools, asks=found.asks | asks)


def accounts_to_rematch(db: Connection) -> dict[int, int]:
    """Return the `places` for the first page of a tick: every account that has queued jobs, with the job id 0."""
    found = db.execute(
        text("""
            WITH RECURSIVE walk AS (
                (SELECT account_id FROM jobs WHERE state = 'queued' ORDER BY account_id LIMIT 1)
                UNION ALL
                SELECT (SELECT account_id FROM jobs WHERE state = 'queued' AND account_id > walk.account_id
                        ORDER BY account_id LIMIT 1)
                FROM walk WHERE walk.account_id IS NOT NULL)
            SELECT account_id FROM walk WHERE account_id IS NOT NULL
        """)
    ).scalars()
    return dict.fromkeys(found, 0)


def _lock(db: Connection, job_ids: Sequence[int], *, now: datetime) -> Sequence[Row[Any]]:
    """Lock the jobs that still have to be routed again, and return their current rows.

    Jobs that another session has locked are skipped.
    """
    return db.execute(
        text(f"""
            SELECT {_COLUMNS} FROM jobs j {_BESIDE}
            WHERE j.id = ANY(:ids) AND {_REMATCHED} ORDER BY j.id FOR NO KEY UPDATE OF j SKIP LOCKED
        """),
        _rematched(now) | {"ids": list(job_ids)},
    ).all()


def rematch_run(db: Connection, run_id: int, *, now: datetime) -> Rematched:
    """Route the jobs of a run again, after GitHub has answered whether the run comes from a fork.

    A job that another session has locked is skipped. The sweep `rematch` routes this job later.
    """
    rows = db.execute(
        text(f"""
            SELECT {_COLUMNS} FROM jobs j {_BESIDE}
            WHERE j.run_id = :run AND j.state = 'queued' AND j.hold_reason = :hold
            ORDER BY j.id FOR NO KEY UPDATE OF j SKIP LOCKED
        """),
        {"run": run_id, "hold": HoldReason.ORIGIN_UNKNOWN, "now": now},
    ).all()
    return _match(db, rows, _Router(db, rows, now=now), now=now)


def route_at_once(db: Connection, job_id: int, *, now: datetime) -> Route:
    """Route a queued job again without regard to its backoffs, and return its route. The caller has locked the job.

    A job that is not held any more becomes the probe of its backoffs, so that its failure makes their waits longer.
    """
    rows = db.execute(
        text(f"SELECT {_COLUMNS} FROM jobs j {_BESIDE} WHERE j.id = :id"), {"id": job_id, "now": now}
    ).all()
    to, keys = _Router(db, rows, now=now).kind(rows[0])
    job_holds.route(
        db,
        job_id,
        pool_id=to.pool_id,
        reason=to.hold,
        detail=_detail(rows[0], to),
        not_before=to.not_before,
        now=now,
    )
    if to.hold is None:
        backoffs.set_probe(db, keys, job_id=job_id, now=now)
    return to


def _rematched(now: datetime) -> dict[str, Any]:
    return {"holds": [str(hold) for hold in _LIFTED_HERE], "now": now, "recently": now - RECENTLY}


class _Router:
    """Router for the jobs of one transaction. Jobs with equal properties share one computed route."""

    def __init__(self, db: Connection, rows: Sequence[Row[Any]], *, now: datetime) -> None:
        self._db = db
        self._now = now
        self._pools = routes(db)
        self._by_id = {pool.id: pool for pool in self._pools}
        self._book = GroupBook(db, now=now)
        self._kinds: dict[tuple[Any, ...], tuple[Route, Sequence[tuple[str, str]]]] = {}
        self._waits = WaitBook(db, (key for row in rows for key in self.kind(row)[1]), now=now)

    @functools.cached_property
    def _ready(self) -> frozenset[int]:
        """Pools with a polling Pod and without a brake."""
        braked = {each.pool_id for each in runner_failures.brakes(self._db)}
        return offering(self._db, now=self._now) - braked

    def route(self, row: Row[Any]) -> Route:
        """Return the present route of a job.

        This method does not make the job the probe of a backoff (`models.upstream.backoffs`).
        """
        to, keys = self.kind(row)
        return to if to.hold is not None else _waiting(to, self._waits.in_force(keys, free=_free(row)))

    def route_locked(self, row: Row[Any]) -> Route:
        """Return the route of a locked job. The job might become the probe of a backoff whose wait is over."""
        to, keys = self.kind(row)
        if to.hold is not None:
            return to
        free = _free(row)
        ready = self._ready if self._waits.lets_one_past(keys, free=free) else frozenset()
        return _waiting(to, self._waits.wait(keys, job_id=row.id, free=free, pool_id=to.pool_id, ready=ready))

    def changes(self, row: Row[Any]) -> bool:
        """Return True if a job must be locked: its route has changed, or it might become the probe of a backoff."""
        to, keys = self.kind(row)
        return _differs(row, self.route(row)) or (to.hold is None and self._waits.lets_one_past(keys, free=_free(row)))

    def asks(self, row: Row[Any]) -> bool:
        """Return True if GitHub must be asked where the run of a job comes from."""
        return self.kind(row)[0].hold is HoldReason.ORIGIN_UNKNOWN and bool(row.may_ask)

    def kind(self, row: Row[Any]) -> tuple[Route, Sequence[tuple[str, str]]]:
        """Return the route of a job without regard to backoffs, and the keys of the backoffs that can hold the job.

        The result is computed once for all jobs with equal properties.
        """
        kind = (
            tuple(row.labels),
            row.account_id,
            row.repository,
            row.repository_id,
            row.installation_id,
            row.public,
            row.scope,
            row.origin,
            row.budget_count,
            row.access,
        )
        if kind not in self._kinds:
            self._kinds[kind] = self._route(row)
        return self._kinds[kind]

    def _route(self, row: Row[Any]) -> tuple[Route, Sequence[tuple[str, str]]]:
        origin = Origin(row.origin or Origin.UNKNOWN)
        about = {"labels": row.labels, "account_id": row.account_id, "repository": row.repository}
        choice = choose_pool(self._pools, **about, public=bool(row.public), origin=origin)
        pool = None if choice.pool_id is None else self._by_id[choice.pool_id]
        to = route(
            choice,
            detail=detail_of(choice, **about),
            budget_count=row.budget_count,
            group=None if pool is None else self._book.wait(_wanted(row, pool)),
            backoff=None,
            access=Access(row.access),
        )
        keys = keys_of(
            account_id=row.account_id,
            organization=row.scope.startswith("orgs/"),
            repository=row.repository,
            installation_id=row.installation_id,
            group=None if pool is None else pool.runner_group,
        )
        return to, keys


def _free(row: Row[Any]) -> int | None:
    """Return the id of a job that is not held, or None if the job is held."""
    return None if row.hold_reason is not None else int(row.id)


def _waiting(to: Route, wait: Wait | None) -> Route:
    return to if wait is None else Route(to.pool_id, HoldReason.BACKOFF, wait.detail, wait.until)


def _detail(row: Row[Any], to: Route) -> str | None:
    """Return the detail of a job's new hold.

    The present detail is kept if the new hold has no detail. The present detail is also kept if the job's hold was
    `origin_unknown` and stays `origin_unknown`. This detail says why GitHub did not answer whether the job's run comes
    from a fork.
    """
    kept: str | None = row.hold_detail
    if to.hold is None:
        return None
    return kept if to.detail is None or to.hold is HoldReason.ORIGIN_UNKNOWN == row.hold_reason else to.detail


def _differs(row: Row[Any], to: Route) -> bool:
    return (row.pool_id, row.hold_reason, row.not_before, row.hold_detail) != (
        to.pool_id,
        to.hold,
        to.not_before,
        _detail(row, to),
    )


def _match(db: Connection, rows: Sequence[Row[Any]], router: _Router, *, now: datetime) -> Rematched:
    """Route these jobs again. The caller must hold the locks of their rows."""
    woken: set[int] = set()
    lifted: list[Lifted] = []
    for row in rows:
        to = router.route_locked(row)
        if _differs(row, to):
            job_holds.route(
                db,
                row.id,
                pool_id=to.pool_id,
                reason=to.hold,
                detail=_detail(row, to),
                not_before=to.not_before,
                now=now,
            )
        if to.hold is None and to.pool_id is not None:
            woken.add(to.pool_id)
            if row.hold_reason is not None:
                lifted.append(Lifted(row.id, row.hold_reason, to.pool_id))
    asks = {row.run_id for row in rows if router.asks(row)}
    return Rematched(places={}, pools=frozenset(woken), lifted=tuple(lifted), asks=frozenset(asks))


def _wanted(row: Row[Any], pool: PoolLabels) -> Wanted:
    return Wanted(
        group=pool.runner_group,
        installation_id=row.installation_id,
        repository=row.repository,
        repository_id=row.repository_id,
        organization=row.scope.startswith("orgs/") and pool.has_group,
        public=bool(row.public),
        private_only=pool.private_only,
    )

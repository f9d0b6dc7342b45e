"""Intake of a batch of `workflow_job` webhooks in one transaction.

Each webhook delivery is identified by its GUID and is applied once. Even if events arrive late, twice or out of order,
the row of the job ends in the same state. New jobs get their row, pool and hold here. `in_progress` and
`completed` events continue to `models.intake.bindings`. This module sends no message. It returns the messages that the
caller must send after the commit.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Row

from models.db.sql import text
from models.intake import binding_locks, bindings
from models.intake.binding_locks import Contended
from models.pools.pools import routes
from models.routing import run_origins
from models.routing.accounts import NewAccount, ensure_accounts
from models.routing.runner_groups import GroupBook, Wanted
from models.state import job_inserts, job_transitions
from models.state.deliveries import WEBHOOK
from models.upstream.backoffs import Standing, keys_of, standing
from rules.claims.fairness import Budget
from rules.claims.machines import JobState
from rules.intake.events import WorkflowJobEvent
from rules.routing.access import Access
from rules.routing.forks import Origin
from rules.routing.holds import HoldReason
from rules.routing.labels import PoolChoice, PoolLabels, choose_pool, detail_of
from rules.routing.routing import Route, Wait, route
from rules.routing.scopes import Scope

ACTIONS = ("waiting", "queued", "in_progress", "completed")
"""The actions that are applied, in the order in which a job passes through them."""


class Outcome(StrEnum):
    """The result of a webhook delivery."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"


@dataclass(frozen=True, slots=True)
class Received:
    """One verified and parsed webhook delivery. The action of its event is one of `ACTIONS`."""

    guid: str
    event: WorkflowJobEvent


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of each webhook delivery, in the order of the batch, and the work that remains after the commit."""

    outcomes: tuple[Outcome, ...]
    wakes: frozenset[int]
    """Pools whose matcher must be woken."""
    releases: tuple[int, ...]
    """Claims to release. Each claim lost its job before its JIT was delivered."""
    reconcile: frozenset[int]
    """Pools with a spent Pod to replace."""
    remaps: tuple[tuple[str, str], ...]
    """Namespace and name of the pool, for each job that did not run on the runner that was minted for it."""
    starts: tuple[tuple[tuple[str, str], float], ...] = ()
    """Namespace and name of the pool, and seconds from delivery to execution, for each claim that began to execute."""
    asks: frozenset[int] = frozenset()
    """Runs whose origin must be requested from GitHub."""
    strangers: bool = False
    """True if GitHub must be asked whether the account of a held job owns the App."""


def apply(
    db: Connection,
    events: Sequence[Received],
    *,
    budget: Budget,
    now: datetime,
    who: str = WEBHOOK,
    lock_ms: int | None = None,
    access: Access = Access.ALLOWED,
) -> Applied:
    """Apply a batch of webhook deliveries, and return the results and the work that remains.

    New accounts get `budget` and `access`. `who` is recorded in the events of the rows.

    With `lock_ms`, the batch does not wait for rows that another session has locked. Instead it raises `Contended`,
    which names the jobs whose events need a locked row. The batch waits only for another session's uncommitted insert
    of the same job, GUID, account or installation, up to `lock_ms` milliseconds.

    Raises `Contended`, `StartOver`, or the error of Postgres if Postgres refuses a row. In each case no event was
    applied.
    """
    ordered = _in_order(events)
    wait = lock_ms is None
    known = _states_of(db, {received.event.job_id for received in ordered}, lock_ms=lock_ms)
    new = [received.event for received in ordered if received.event.job_id not in known]
    # The other jobs are past the state `waiting`, so their accounts have rows.
    routed = [r.event for r in ordered if known.get(r.event.job_id, JobState.WAITING) == JobState.WAITING]
    held = _ensure_accounts(db, routed, budget=budget, access=access, now=now)
    if not wait and (stuck := frozenset(event.job_id for event in new if event.owner_id in held)):
        raise Contended(stuck)
    router = _Router(db, [received.event for received in ordered], now=now)
    fresh, inserted = _insert(db, ordered, new, router, now=now, who=who)
    applied = [received.event for received in ordered if received.guid in fresh]
    readied = _readied(applied, known, inserted)
    moved = [event for event in applied if _has_started(event)]
    locked = binding_locks.lock(db, moved, others=[event.job_id for event in readied], wait=wait)
    ready = _make_ready(db, readied, router, now=now, who=who)
    bound = bindings.apply(db, locked, moved, now=now, who=who)
    started = {event.job_id for event in moved}
    matchable = {pool_id for job_id, pool_id in inserted.items() if job_id not in started} | ready.pools
    asks = {event.run_id for event in applied if event.job_id in inserted and router.asks(event)} | ready.asks
    return Applied(
        outcomes=_outcomes(events, fresh),
        wakes=frozenset({pool_id for pool_id in matchable if pool_id is not None} | bound.wakes),
        releases=tuple(bound.releases),
        reconcile=frozenset(bound.reconcile),
        remaps=tuple(bound.remaps),
        starts=tuple(bound.starts),
        asks=frozenset(asks),
        strangers=router.strangers,
    )


def _ensure_accounts(
    db: Connection, events: Sequence[WorkflowJobEvent], *, budget: Budget, access: Access, now: datetime
) -> Collection[int]:
    """Insert the missing accounts of events, and return the ids of accounts that another session has locked."""
    if not events:
        return ()
    new = [NewAccount(id=e.owner_id, login=e.owner_login, installation_id=e.installation_id) for e in events]
    return ensure_accounts(db, new, budget=budget, access=access, now=now)


def _readied(
    applied: Sequence[WorkflowJobEvent], known: Mapping[int, str], inserted: Collection[int]
) -> list[WorkflowJobEvent]:
    """Return the events that say that a job no longer waits for its environment.

    A job that another process has just inserted is neither in `known` nor in `inserted`. For such a job, the guard of
    the transition decides.
    """
    return [
        event
        for event in applied
        if _is_ready(event)
        and event.job_id not in inserted
        and known.get(event.job_id, JobState.WAITING) == JobState.WAITING
    ]


def _in_order(events: Sequence[Received]) -> list[Received]:
    """Return the first delivery of each GUID, by job, and in the order in which the actions of a job happen."""
    firsts: dict[str, Received] = {}
    for received in events:
        firsts.setdefault(received.guid, received)
    return sorted(firsts.values(), key=lambda r: (r.event.job_id, ACTIONS.index(r.event.action), r.guid))


def _outcomes(events: Sequence[Received], fresh: Collection[str]) -> tuple[Outcome, ...]:
    """Return the outcome of each delivery. `fresh` are the GUIDs that no row had before."""
    seen: set[str] = set()
    outcomes: list[Outcome] = []
    for received in events:
        first = received.guid in fresh and received.guid not in seen
        outcomes.append(Outcome.ACCEPTED if first else Outcome.DUPLICATE)
        seen.add(received.guid)
    return tuple(outcomes)


def _is_ready(event: WorkflowJobEvent) -> bool:
    return event.action == "queued" and not _is_waiting(event)


def _has_started(event: WorkflowJobEvent) -> bool:
    return event.action in {"in_progress", "completed"}


def _is_waiting(event: WorkflowJobEvent) -> bool:
    # GitHub also sends `queued` with status `waiting` for a job that waits for an environment (octokit/webhooks).
    return event.action == "waiting" or (event.action == "queued" and event.status == "waiting")


class _Router:
    """Routing of the jobs of one batch. Each table is read at most once, and only if a job needs it."""

    def __init__(self, db: Connection, events: Sequence[WorkflowJobEvent], *, now: datetime) -> None:
        self._db = db
        self._events = events
        self._now = now
        self._choices: dict[tuple[tuple[str, ...], int, str, bool, Origin], PoolChoice] = {}
        self._groups = GroupBook(db, now=now)
        self.strangers = False
        """True if a routed job's account is held, and GitHub was not asked yet whether the account owns the App."""

    @functools.cached_property
    def _pools(self) -> list[PoolLabels]:
        return routes(self._db)

    @functools.cached_property
    def _by_id(self) -> dict[int, PoolLabels]:
        return {pool.id: pool for pool in self._pools}

    @functools.cached_property
    def _origins(self) -> Mapping[int, Origin]:
        retained = any(pool.retains for pool in self._pools)
        return run_origins.known(self._db, {event.run_id for event in self._events if event.public or retained})

    @functools.cached_property
    def _accounts(self) -> dict[int, Row[Any]]:
        rows = self._db.execute(
            text("SELECT id, budget_count, access, access_asked_at FROM accounts WHERE id = ANY(:ids)"),
            {"ids": sorted({event.owner_id for event in self._events})},
        )
        return {row.id: row for row in rows}

    @functools.cached_property
    def _backoffs(self) -> dict[tuple[str, str], Standing]:
        found = standing(self._db, (key for event in self._events for key in self._keys(event)), now=self._now)
        return {key: each for key, each in found.items() if each.not_before > self._now}

    def _keys(self, event: WorkflowJobEvent) -> list[tuple[str, str]]:
        pool_id = self._choose(event).pool_id
        return keys_of(
            account_id=event.owner_id,
            organization=event.owner_type == "Organization",
            repository=event.repository,
            installation_id=event.installation_id,
            group=None if pool_id is None else self._by_id[pool_id].runner_group,
        )

    def route(self, event: WorkflowJobEvent) -> Route:
        """Return the pool of a job and its hold."""
        account = self._accounts[event.owner_id]
        self.strangers |= account.access == Access.HELD and account.access_asked_at is None
        choice = self._choose(event)
        waits = [self._backoffs[key] for key in self._keys(event) if key in self._backoffs]
        return route(
            choice,
            detail=detail_of(choice, labels=event.labels, account_id=event.owner_id, repository=event.repository),
            budget_count=self._accounts[event.owner_id].budget_count,
            group=self._group(event, choice),
            backoff=max(waits, key=lambda each: each.not_before).wait() if waits else None,
            access=self._access(event),
        )

    def asks(self, event: WorkflowJobEvent) -> bool:
        """Return True if GitHub must be asked for the origin of a job's run, and False otherwise.

        The result is False while the job waits for the approval of its GitHub environment, and while the job's account
        is held.
        """
        return (
            event.action == "queued"
            and not _is_waiting(event)
            and self._access(event) is Access.ALLOWED
            and self._choose(event).hold_reason is HoldReason.ORIGIN_UNKNOWN
        )

    def _access(self, event: WorkflowJobEvent) -> Access:
        return Access(self._accounts[event.owner_id].access)

    def _group(self, event: WorkflowJobEvent, choice: PoolChoice) -> Wait | None:
        if choice.pool_id is None:
            return None
        pool = self._by_id[choice.pool_id]
        wanted = Wanted(
            group=pool.runner_group,
            installation_id=event.installation_id,
            repository=event.repository,
            repository_id=event.repository_id,
            organization=event.owner_type == "Organization" and pool.has_group,
            public=event.public,
            private_only=pool.private_only,
        )
        return self._groups.wait(wanted)

    def _choose(self, event: WorkflowJobEvent) -> PoolChoice:
        origin = self._origins.get(event.run_id, Origin.UNKNOWN)
        key = (event.labels, event.owner_id, event.repository, event.public, origin)
        if key not in self._choices:
            self._choices[key] = choose_pool(
                self._pools,
                labels=event.labels,
                account_id=event.owner_id,
                repository=event.repository,
                public=event.public,
                origin=origin,
            )
        return self._choices[key]


def _states_of(db: Connection, job_ids: set[int], *, lock_ms: int | None) -> dict[int, str]:
    # The client sends both statements in one message. The lock timeout applies to the rest of the transaction.
    within = "" if lock_ms is None else f"SET LOCAL lock_timeout = {lock_ms:d}; "
    rows = db.execute(
        text(f"{within}SELECT id, state FROM jobs WHERE id = ANY(:ids)"),
        {"ids": sorted(job_ids)},
    )
    return {row.id: row.state for row in rows}


def _insert(
    db: Connection,
    ordered: Sequence[Received],
    new: Sequence[WorkflowJobEvent],
    router: _Router,
    *,
    now: datetime,
    who: str,
) -> tuple[set[str], dict[int, int | None]]:
    """Insert deliveries, new jobs and their events in one statement.

    Returns the GUIDs of the new deliveries, and a mapping from each inserted job to the pool that must be woken for the
    job. The pool is None if the job is held or waits for the approval of its GitHub environment.
    """
    rows: dict[int, dict[str, Any]] = {}
    pools: dict[int, int | None] = {}
    for event in new:
        if event.job_id in rows and rows[event.job_id]["state"] == JobState.QUEUED:
            continue
        state = JobState.WAITING if _is_waiting(event) else JobState.QUEUED
        routed = router.route(event)
        pools[event.job_id] = routed.pool_id if routed.hold is None and state is JobState.QUEUED else None
        rows[event.job_id] = {
            "id": event.job_id,
            "account_id": event.owner_id,
            "installation_id": event.installation_id,
            "repository": event.repository,
            "repository_id": event.repository_id,
            "public": event.public,
            "scope": _scope(event),
            "run_id": event.run_id,
            "run_attempt": event.run_attempt,
            "name": event.name,
            "workflow_name": event.workflow_name,
            "head_branch": event.head_branch,
            "head_sha": event.head_sha,
            "labels": list(event.labels),
            "state": state,
            "pool_id": routed.pool_id,
            "hold_reason": routed.hold,
            "hold_detail": routed.detail,
            "not_before": routed.not_before.isoformat() if routed.not_before else None,
            "queued_at": event.created_at.isoformat(),
            "why": event.action,
        }
    deliveries = sorted(
        ({"guid": r.guid, "action": r.event.action, "job_id": r.event.job_id} for r in ordered),
        key=lambda row: str(row["guid"]),
    )
    if not rows:
        return job_inserts.insert_deliveries(db, deliveries, outcome=Outcome.ACCEPTED, now=now), {}
    jobs = [rows[job_id] for job_id in sorted(rows)]
    result = job_inserts.insert(db, deliveries, jobs, outcome=Outcome.ACCEPTED, now=now, who=who)
    inserted = {job_id: pools[job_id] for job_id in result.jobs}
    return result.guids, inserted


def _scope(event: WorkflowJobEvent) -> str:
    if event.owner_type == "Organization":
        return str(Scope.organization(event.owner_login))
    return str(Scope.repository(event.repository))


@dataclass(frozen=True, slots=True)
class _Ready:
    """Work that remains for jobs whose GitHub environment has approved them.

    `pools` are the pools to wake. `asks` are the runs whose origin must be requested from GitHub.
    """

    pools: set[int | None] = field(default_factory=set)
    asks: set[int] = field(default_factory=set)


def _make_ready(
    db: Connection, events: Sequence[WorkflowJobEvent], router: _Router, *, now: datetime, who: str
) -> _Ready:
    """Queue the jobs that waited for the approval of their GitHub environment. The events show the approval."""
    ready = _Ready()
    for event in events:
        routed = router.route(event)
        moved = job_transitions.make_ready(db, event.job_id, routed, now=now, who=who, why=event.action)
        if moved and routed.hold is None:
            ready.pools.add(routed.pool_id)
        if moved and router.asks(event):
            ready.asks.add(event.run_id)
    return ready

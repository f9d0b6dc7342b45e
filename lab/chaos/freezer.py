"""Freezes: a web or worker process is stopped (SIGSTOP) while one of its sessions has locked rows.

A migrating virtual machine, a throttled cgroup or a lost node has the same effect on a client of Postgres. Its
transaction stays open and its rows stay locked, until the process continues or Postgres ends the session.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import DBAPIError

from lab.system import System

TRIES_FOR = 1.0
"""Seconds that one call searches for an open transaction."""

SETTLES_WITHIN = 0.5
"""Seconds within which Postgres finishes the statement of a stopped process."""

PAUSE = 0.0005


@dataclass(slots=True)
class Freeze:
    """One frozen process, with times in Unix time.

    `jobs` and `runners`: a webhook that names one of them needs a row that the process had locked. `of_a_sweep`: it had
    locked the row of a sweep, which no other process could run meanwhile.
    """

    process: str
    pid: int
    began: float
    jobs: frozenset[int] = frozenset()
    runners: frozenset[str] = frozenset()
    of_a_sweep: bool = False
    ended: float | None = None

    def overlaps(self, since: float, until: float) -> bool:
        """Return whether the freeze overlaps a span of time."""
        return self.began < until and (self.ended is None or self.ended > since)


class Freezer:
    """Freezes processes of a system with `Options.own_roles`. Use it in the thread that reads `freezes`."""

    def __init__(self, system: System) -> None:
        self.freezes: list[Freeze] = []
        self._system = system
        self._engine = create_engine(system.postgres.url("ostler"), pool_pre_ping=True, isolation_level="AUTOCOMMIT")

    def close(self) -> None:
        """Resume every process and close the connection."""
        self.thaw_all()
        self._engine.dispose()

    def thaw_all(self) -> None:
        """Resume every process."""
        for freeze in self.freezes:
            self.thaw(freeze)

    def freeze(self, names: Sequence[str], *, any_rows: bool) -> Freeze | None:
        """Freeze one of these processes inside a transaction that has locked rows. Return None if none had one in time.

        Without `any_rows`, the transaction must have locked rows of the claim path.
        """
        end = time.monotonic() + TRIES_FOR
        try:
            with self._engine.connect() as db:
                while time.monotonic() < end:
                    if (name := _in_transaction(db, names, any_rows=any_rows)) is None:
                        time.sleep(PAUSE)
                    elif (freeze := self._stop(db, name)) is not None:
                        self.freezes.append(freeze)
                        return freeze
        except DBAPIError:  # Postgres is being restarted
            return None
        return None

    def thaw(self, freeze: Freeze) -> None:
        """Resume a process, unless it was killed meanwhile."""
        if freeze.ended is not None:
            return
        child = self._system.children[freeze.process]
        if child.running() and child.pid == freeze.pid:
            child.send(signal.SIGCONT)
        freeze.ended = time.time()

    def _stop(self, db: Connection, name: str) -> Freeze | None:
        """Stop a process. If its transaction ended before the stop, resume it and return None."""
        child = self._system.children[name]
        began = time.time()
        child.send(signal.SIGSTOP)
        kept = False
        try:
            if xids := _settled(db, name):
                kept = True
                jobs = _jobs_held(db, xids)
                return Freeze(name, child.pid, began, jobs, _runners_of(db, jobs), of_a_sweep=_holds_a_sweep(db, xids))
        finally:
            if not kept:
                child.send(signal.SIGCONT)
        return None


_OPEN = """
    FROM pg_stat_activity
    WHERE usename = ANY(:names) AND backend_type = 'client backend' AND backend_xid IS NOT NULL
"""
"""Sessions that have locked or written rows. Postgres assigns a transaction id at the first lock or write."""


_ON_THE_PATH = """
    AND EXISTS (SELECT FROM pg_locks l WHERE l.pid = pg_stat_activity.pid AND l.locktype = 'relation'
                  AND l.mode IN ('RowShareLock', 'RowExclusiveLock')
                  AND l.relation IN ('jobs'::regclass, 'claims'::regclass, 'offers'::regclass))
"""


def _in_transaction(db: Connection, names: Sequence[str], *, any_rows: bool) -> str | None:
    where = _OPEN if any_rows else _OPEN + _ON_THE_PATH
    name: str | None = db.execute(
        text(f"SELECT usename {where} ORDER BY random() LIMIT 1"),
        {"names": list(names)},
    ).scalar()
    return name


def _settled(db: Connection, name: str) -> list[str]:
    """Return the ids of the open transactions of a stopped process, once none of its statements is running."""
    end = time.monotonic() + SETTLES_WITHIN
    while True:
        rows = db.execute(
            text(f"SELECT backend_xid::text AS xid, state {_OPEN}"),
            {"names": [name]},
        ).all()
        idle = [row.xid for row in rows if row.state == "idle in transaction"]
        # The process might have sent a commit before the stop. A transaction that is open twice, a moment apart, stays
        # open.
        if len(idle) == len(rows) or time.monotonic() > end:
            time.sleep(SETTLES_WITHIN / 10)
            still = db.execute(
                text(f"SELECT backend_xid::text {_OPEN} AND state = 'idle in transaction'"),
                {"names": [name]},
            ).scalars()
            return sorted(set(idle) & set(still))
        time.sleep(PAUSE)


def _jobs_held(db: Connection, xids: Sequence[str]) -> frozenset[int]:
    """Return the jobs that these transactions have locked, directly or by a row of a claim, Pod, execution or account.

    A row that is locked or changed has the id of the transaction in its `xmax`, unless several transactions locked it.
    """
    rows = db.execute(
        text("""
            WITH held AS (SELECT id FROM claims WHERE xmax::text = ANY(:xids)
                          UNION SELECT c.id FROM claims c JOIN runner_pods p ON p.id = c.runner_pod_id
                          WHERE c.ended_at IS NULL AND p.xmax::text = ANY(:xids))
            SELECT id FROM jobs WHERE xmax::text = ANY(:xids)
            UNION SELECT job_id FROM claims WHERE id IN (SELECT id FROM held) AND job_id IS NOT NULL
            UNION SELECT job_id FROM executions WHERE xmax::text = ANY(:xids) OR claim_id IN (SELECT id FROM held)
            UNION SELECT j.id FROM jobs j JOIN accounts a ON a.id = j.account_id WHERE a.xmax::text = ANY(:xids)
        """),
        {"xids": list(xids)},
    )
    return frozenset(rows.scalars())


def _runners_of(db: Connection, jobs: Collection[int]) -> frozenset[str]:
    """Return the runners of the claims for these jobs. GitHub might have given the runners other jobs."""
    rows = db.execute(
        text("""
            SELECT m.runner_name FROM mint_attempts m JOIN claims c ON c.id = m.claim_id
            WHERE c.job_id = ANY(CAST(:jobs AS bigint[]))
        """),
        {"jobs": sorted(jobs)},
    )
    return frozenset(rows.scalars())


def _holds_a_sweep(db: Connection, xids: Sequence[str]) -> bool:
    statement = text("SELECT EXISTS (SELECT FROM sweeps WHERE xmax::text = ANY(:xids))")
    return bool(db.execute(statement, {"xids": list(xids)}).scalar_one())

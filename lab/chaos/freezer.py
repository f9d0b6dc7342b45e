"""Freezes: a web or worker process is stopped (SIGSTOP) while one of its sessions has locked rows.

A migrating virtual machine, a throttled cgroup or a lost node also stops a client of Postgres. The transaction of the
client stays open and its rows stay locked until the client resumes or Postgres ends the session.
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
"""Seconds for which one call searches for an open transaction."""

SETTLES_WITHIN = 0.5
"""Seconds within which Postgres finishes the running statement of a stopped process."""

PAUSE = 0.0005


@dataclass(slots=True)
class Freeze:
    """One freeze of a process, in Unix seconds.

    A webhook that names one of `jobs` or `runners` needs a row that the process had locked. `of_a_sweep` says that the
    process had locked the row of a sweep, so that no other process could run that sweep. `ended` is None while the
    process is frozen.
    """

    process: str
    pid: int
    began: float
    jobs: frozenset[int] = frozenset()
    runners: frozenset[str] = frozenset()
    of_a_sweep: bool = False
    ended: float | None = None

    def overlaps(self, since: float, until: float) -> bool:
        """Return whether the process was frozen at any time between `since` and `until`."""
        return self.began < until and (self.ended is None or self.ended > since)


class Freezer:
    """Freezes processes of a system with `Options.own_roles`. Use it in the thread that reads `freezes`."""

    def __init__(self, system: System) -> None:
        self.freezes: list[Freeze] = []
        self._system = system
        self._engine = create_engine(system.postgres.url("ostler"), pool_pre_ping=True, isolation_level="AUTOCOMMIT")

    def close(self) -> None:
        """Resume every process, and close the connection."""
        self.thaw_all()
        self._engine.dispose()

    def thaw_all(self) -> None:
        """Resume every process."""
        for freeze in self.freezes:
            self.thaw(freeze)

    def freeze(self, names: Sequence[str], *, any_rows: bool) -> Freeze | None:
        """Freeze one of these processes inside a transaction that has locked rows.

        Return None if no such transaction was found within `TRIES_FOR` seconds.

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
        """Resume a process, unless it was killed during the freeze."""
        if freeze.ended is not None:
            return
        child = self._system.children[freeze.process]
        if child.running() and child.pid == freeze.pid:
            child.send(signal.SIGCONT)
        freeze.ended = time.time()

    def _stop(self, db: Connection, name: str) -> Freeze | None:
        """Stop a process. Resume it and return None if its transaction has ended by then."""
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
"""Sessions that have locked or written rows. Postgres assigns a transaction id at the first such operation."""


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
    """Return the ids of the transactions that a stopped process holds open, after its running statements have ended."""
    end = time.monotonic() + SETTLES_WITHIN
    while True:
        rows = db.execute(
            text(f"SELECT backend_xid::text AS xid, state {_OPEN}"),
            {"names": [name]},
        ).all()
        idle = [row.xid for row in rows if row.state == "idle in transaction"]
        # The process might have sent a commit before the stop. A transaction that is open in two reads, a moment apart,
        # stays open.
        if len(idle) == len(rows) or time.monotonic() > end:
            time.sleep(SETTLES_WITHIN / 10)
            still = db.execute(
                text(f"SELECT backend_xid::text {_OPEN} AND state = 'idle in transaction'"),
                {"names": [name]},
            ).scalars()
            return sorted(set(idle) & set(still))
        time.sleep(PAUSE)


def _jobs_held(db: Connection, xids: Sequence[str]) -> frozenset[int]:
    """Return the jobs that these transactions block, by a lock on a row of the job or of one of its related objects.

    Related objects are the job's claim, Pod, execution and account. A locked or changed row has the id of the
    transaction in its `xmax`, unless several transactions have locked it.
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
    """Return the runners that were minted for these jobs. GitHub might have given them other jobs."""
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

"""Freezes: a web or worker process is stopped (SIGSTOP) while one of its sessions has locked rows.

It is what a virtual machine that migrates, a throttled cgroup or a lost node does to a client of Postgres: its
transaction stays open, and its rows stay locked, until it goes on or Postgres ends the session.
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
"""Seconds for which one call looks for an open transaction."""

SETTLES_WITHIN = 0.5
"""Seconds within which Postgres finishes the statement of a process that was stopped."""

PAUSE = 0.0005


@dataclass(slots=True)
class Freeze:
    """One process that was frozen, in Unix time.

    `jobs` and `runners`: the webhooks that name one of them need a row that it held locked. `of_a_sweep`: it held the
    row of a sweep, which nobody else ran meanwhile.
    """

    process: str
    pid: int
    began: float
    jobs: frozenset[int] = frozenset()
    runners: frozenset[str] = frozenset()
    of_a_sweep: bool = False
    ended: float | None = None

    def overlaps(self, since: float, until: float) -> bool:
        """Return whether it was frozen at any time of a span."""
        return self.began < until and (self.ended is None or self.ended > since)


class Freezer:
    """Freezes processes of a system whose `Options.own_roles` is set. Use it from the thread that reads `freezes`."""

    def __init__(self, system: System) -> None:
        self.freezes: list[Freeze] = []
        self._system = system
        self._engine = create_engine(system.postgres.url("ostler"), pool_pre_ping=True, isolation_level="AUTOCOMMIT")

    def close(self) -> None:
        """Let every process go on, and close the connection."""
        self.thaw_all()
        self._engine.dispose()

    def thaw_all(self) -> None:
        """Let every process go on."""
        for freeze in self.freezes:
            self.thaw(freeze)

    def freeze(self, names: Sequence[str], *, any_rows: bool) -> Freeze | None:
        """Freeze one of these processes inside a transaction that has locked rows; None when none had one in time.

        Without `any_rows` it must be one that locks rows of the claim path.
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
        """Let a process go on, unless it was killed meanwhile."""
        if freeze.ended is not None:
            return
        child = self._system.children[freeze.process]
        if child.running() and child.pid == freeze.pid:
            child.send(signal.SIGCONT)
        freeze.ended = time.time()

    def _stop(self, db: Connection, name: str) -> Freeze | None:
        """Stop a process; let it go on again when it had ended its transaction by then."""
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
"""Sessions that have locked or written rows: Postgres numbers a transaction when it does so first."""


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
    """Return the numbers of the transactions that a stopped process holds open, once no statement of it runs."""
    end = time.monotonic() + SETTLES_WITHIN
    while True:
        rows = db.execute(
            text(f"SELECT backend_xid::text AS xid, state {_OPEN}"),
            {"names": [name]},
        ).all()
        idle = [row.xid for row in rows if row.state == "idle in transaction"]
        # The signal may have come after a commit was sent: what is open twice, a moment apart, stays open.
        if len(idle) == len(rows) or time.monotonic() > end:
            time.sleep(SETTLES_WITHIN / 10)
            still = db.execute(
                text(f"SELECT backend_xid::text {_OPEN} AND state = 'idle in transaction'"),
                {"names": [name]},
            ).scalars()
            return sorted(set(idle) & set(still))
        time.sleep(PAUSE)


def _jobs_held(db: Connection, xids: Sequence[str]) -> frozenset[int]:
    """Return the jobs whose own row, or that of their claim, Pod, execution or account, these transactions hold.

    A row that is locked or changed has the number of the transaction in its `xmax`, unless several have locked it.
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
    """Return the runners of the claims for these jobs: GitHub may have given them other jobs."""
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

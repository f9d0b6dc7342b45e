"""Numbers for the gauges of the metrics. Completed jobs and ended claims are not counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from models.browse.fleet import AccountLine, PoolLine, account_lines, pool_lines
from models.claims import runner_failures
from models.claims.matching import WEB_ALIVE
from models.db import epochs
from models.db.sql import text
from models.pools import runner_versions, scaling
from models.routing import usage
from models.state import stalls
from models.sweeps import catch_up, redelivery, sweep_runs
from models.upstream import backoffs, gates
from rules.claims.stalls import Cause


@dataclass(frozen=True, slots=True)
class Statistics:
    """The present numbers. Ages are in seconds.

    - `jobs`: how many jobs there are, by state and hold reason. The hold reason is None for jobs that are not held.
    - `claims`: how many claims there are, by purpose and state.
    - `claim_seconds`: the longest time since the last transition of a claim, by purpose and state.
    - `offered_pods`: how many Pods have an offer of a live web process.
    - `oldest_queued_seconds`: the age of the oldest queued job that is not held.
    - `closed_seconds`: the time since each gate tripped, by upstream. The time is 0 for a gate that is ok.
    - `stalled_seconds`: the age of the oldest stall, by cause.
    - `last_tick`: the time at which the last tick of any sweep began, without dry runs, or None if no sweep has run.
    - `catch_up`: how many repositories the sweep `catch_up` had to check, and how many of these are covered
      (see `catch_up.COVERED_WITHIN`).
    - `deliveries_read`: when GitHub's list of deliveries was last read completely (see `redelivery.read_until`).
    - `epoch`: the epoch of Postgres, and whether Postgres might be older than the cluster.
    - `scaling`: the last decision on each autoscaled pool.
    - `ending`: how many Pods have a job that is over, by account. Accounts without such Pods are left out.
    - `braked`: the pools whose runners never execute their jobs.
    - `versions`: the runner version of each pool.
    - `backoffs`: how many backoffs are still in force, by kind. A success ends a backoff.
    - `pools`: the queue and the Pods of each pool.
    - `accounts`: the use and the queue of each account with jobs, claims or Pods. It is empty if they were not read.
    """

    jobs: Mapping[tuple[str, str | None], int]
    claims: Mapping[tuple[str, str], int]
    claim_seconds: Mapping[tuple[str, str], float]
    offered_pods: int
    oldest_queued_seconds: float
    closed_seconds: Mapping[str, float]
    stalled_seconds: Mapping[Cause, float]
    last_tick: datetime | None
    catch_up: catch_up.Coverage
    deliveries_read: Mapping[str, datetime | None]
    epoch: epochs.EpochSeen
    scaling: Sequence[scaling.Decision]
    ending: Mapping[int, int]
    braked: Sequence[runner_failures.Braked]
    versions: Sequence[runner_versions.PoolVersion]
    backoffs: Mapping[str, int]
    pools: Sequence[PoolLine]
    accounts: Sequence[AccountLine] = ()


@dataclass(frozen=True, slots=True)
class ClaimCount:
    """The number of live claims with one purpose and state. `oldest` is the time of their oldest last transition."""

    purpose: str
    state: str
    claims: int
    oldest: datetime


def live_claims(db: Connection) -> Sequence[ClaimCount]:
    """Return the numbers of live claims by purpose and state."""
    rows = db.execute(
        text("""
            SELECT purpose, state, count(*), min(changed_at) FROM claims
            WHERE ended_at IS NULL GROUP BY purpose, state
        """)
    )
    return [ClaimCount(*row) for row in rows]


def read(db: Connection, *, now: datetime, accounts: bool = False) -> Statistics:
    """Return the present numbers. `accounts` is True if the numbers of each account are read too."""
    db.execute(text("SET LOCAL statement_timeout = 2000"))
    jobs = db.execute(
        text("""
            SELECT state, hold_reason, count(*) AS jobs, min(queued_at) AS oldest FROM jobs
            WHERE state <> 'completed' GROUP BY state, hold_reason
        """)
    ).all()
    claims = live_claims(db)
    offered: int = db.execute(
        text("""
            SELECT count(*) FROM offers o JOIN web_instances w ON w.id = o.web_id AND w.beat_at > :alive
            WHERE o.until > :now
        """),
        {"now": now, "alive": now - WEB_ALIVE},
    ).scalar_one()
    oldest = [row.oldest for row in jobs if row.state == "queued" and row.hold_reason is None]
    return Statistics(
        jobs={(row.state, row.hold_reason): row.jobs for row in jobs},
        claims={(row.purpose, row.state): row.claims for row in claims},
        claim_seconds={(row.purpose, row.state): max(0.0, (now - row.oldest).total_seconds()) for row in claims},
        offered_pods=offered,
        oldest_queued_seconds=max(0.0, (now - oldest[0]).total_seconds()) if oldest else 0.0,
        closed_seconds={
            row.upstream: 0.0 if row.open else max(0.0, (now - row.closed_at).total_seconds()) for row in gates.read(db)
        },
        stalled_seconds=stalls.oldest(db, now=now),
        last_tick=sweep_runs.last_tick(db),
        catch_up=catch_up.coverage(db, now=now),
        deliveries_read=redelivery.read_until(db),
        epoch=epochs.read(db, now=now),
        scaling=scaling.decisions(db),
        ending=usage.ending_pods(db),
        braked=runner_failures.brakes(db),
        versions=runner_versions.read(db),
        backoffs=Counter(each.kind for each in backoffs.in_force(db, now=now)),
        pools=pool_lines(db),
        accounts=account_lines(db) if accounts else (),
    )

"""Queries and repairs of the sweeps over claims.

The leases and ticks of the sweeps are in `models.sweeps.sweep_runs`. The ledger is in `models.sweeps.repairs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection

from models.claims import runner_failures
from models.claims.names import INSTALLATION_NOW, SCOPE_NOW, RunnerClaim
from models.claims.releases import apply_job_outcome, lock_job
from models.db.sql import text
from models.state import claim_jobs, claim_transitions, executions, job_transitions
from rules.claims.job_outcomes import JobOutcome


@dataclass(frozen=True, slots=True)
class StaleClaim:
    """A live claim that was not delivered."""

    id: int
    job_id: int | None
    pod_uid: str
    state: str


def never_delivered(db: Connection, *, older_than: float, now: datetime) -> list[StaleClaim]:
    """Return live claims for jobs and registrations that are older than `older_than` seconds and were not delivered."""
    rows = db.execute(
        text("""
            SELECT id, job_id, pod_uid, state FROM claims
            WHERE ended_at IS NULL AND purpose <> 'retire' AND state IN ('claimed', 'minted') AND created_at < :before
            ORDER BY id LIMIT 1000
        """),
        {"before": now - timedelta(seconds=older_than)},
    )
    return [StaleClaim(*row) for row in rows]


@dataclass(frozen=True, slots=True)
class LivePod:
    """A live claim for a job or a registration, with its Pod."""

    claim_id: int
    state: str
    account_id: int | None
    pool_id: int
    namespace: str
    pod_name: str
    pod_uid: str
    job_id: int | None


_LIVE_PODS = """
    SELECT c.id, c.state, c.account_id, c.pool_id, p.namespace, p.name, c.pod_uid, c.job_id
    FROM claims c JOIN runner_pods p ON p.id = c.runner_pod_id
    WHERE c.ended_at IS NULL AND c.purpose <> 'retire'
"""


def live_pods(db: Connection) -> list[LivePod]:
    """Return the Pods of all live claims for jobs and registrations."""
    return [LivePod(*row) for row in db.execute(text(f"{_LIVE_PODS} ORDER BY c.id"))]


def live_pod(db: Connection, claim_id: int) -> LivePod | None:
    """Return a live claim for a job or a registration with its Pod, or None if there is no such claim."""
    row = db.execute(text(f"{_LIVE_PODS} AND c.id = :id"), {"id": claim_id}).one_or_none()
    return None if row is None else LivePod(*row)


def delivered_to(db: Connection, uids: Sequence[str], *, before: datetime, now: datetime) -> list[LivePod]:
    """Return the live claims of these Pods that were delivered at or before `before` and are not being released.

    A claim is left out if its stamp was removed on purpose and the time to add the stamp again has not come.
    """
    rows = db.execute(
        text(f"""
            {_LIVE_PODS} AND c.pod_uid = ANY(:uids) AND c.state IN ('delivered', 'executing')
            AND c.delivered_at <= :before AND (c.stamp_after IS NULL OR c.stamp_after <= :now)
        """),
        {"uids": list(uids), "before": before, "now": now},
    )
    return [LivePod(*row) for row in rows]


def lacks_its_stamp(db: Connection, claim_id: int) -> bool:
    """Return True if a claim is live and delivered, so that its Pod must carry the stamp."""
    found = db.execute(
        text("SELECT 1 FROM claims WHERE id = :id AND ended_at IS NULL AND delivered_at IS NOT NULL"), {"id": claim_id}
    ).one_or_none()
    return found is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveredClaim(RunnerClaim):
    """A delivered claim whose runner might be unused. `runs` is True if neither the Pod nor its runner has ended.

    `unlabelled` is True if the job of the claim has no labels. `since` is the time since which the runner should have
    begun a job.
    """

    job_id: int | None
    repository: str | None
    spare_since: datetime | None
    runner_absent_at: datetime | None
    since: datetime
    runs: bool
    unlabelled: bool


def unused(
    db: Connection, *, older_than: float, polling_older_than: float, spares_older_than: float, now: datetime
) -> list[DeliveredClaim]:
    """Return the delivered claims without an execution and the spares that are old enough to be checked.

    The three limits are in seconds. A spare is returned if it has been a spare for more than `spares_older_than`. Any
    other claim is returned if its time `since` is more than `older_than` ago. `since` depends on the Pod's poller:

    - If the poller has ended, `since` is the end of the poller or the time of the delivery, whichever is later.
    - If the poller still runs, `since` is `polling_older_than` seconds after the delivery. During this time, the Pod
      might poll again and fetch its JIT again.

    Claims without an installation are left out.
    """
    rows = db.execute(
        text(f"""
            SELECT c.id, c.job_id, c.pod_uid, {INSTALLATION_NOW} AS installation_id, {SCOPE_NOW} AS scope,
                   c.runner_name, c.spare_since, c.runner_absent_at, c.pool_id, j.repository, u.since,
                   p.terminal_at IS NULL AND p.gone_at IS NULL AND p.runner_exit_code IS NULL AS runs,
                   coalesce(j.labels = '{{}}', false) AS unlabelled
            FROM claims c JOIN runner_pods p ON p.id = c.runner_pod_id LEFT JOIN jobs j ON j.id = c.job_id
            CROSS JOIN LATERAL (SELECT CASE WHEN coalesce(p.poller_ended_at, p.terminal_at) IS NULL
                                            THEN c.delivered_at + :polling
                                            ELSE greatest(c.delivered_at, coalesce(p.poller_ended_at, p.terminal_at))
                                            END AS since) u
            WHERE c.ended_at IS NULL AND c.state = 'delivered' AND c.purpose = 'job'
              AND ((c.spare_since IS NULL AND u.since < :before) OR c.spare_since < :spare_before)
            -- In a fixed order, claims that cannot be checked would always be the first (law L14).
            ORDER BY random() LIMIT 1000
        """),
        {
            "before": now - timedelta(seconds=older_than),
            "polling": timedelta(seconds=polling_older_than),
            "spare_before": now - timedelta(seconds=spares_older_than),
        },
    ).mappings()
    return [DeliveredClaim(**row) for row in rows if row["installation_id"] is not None]


def set_executing(
    db: Connection,
    claim_id: int,
    *,
    job_id: int | None,
    job_outcome: JobOutcome | None,
    now: datetime,
    who: str,
    why: str,
) -> bool:
    """Record that a claim executes, because GitHub shows its runner as busy.

    If `job_outcome` is None, the runner executes the claim's own job, and an execution of this job is recorded.
    Otherwise the runner executes another job. A webhook might name this other job later. The claim's own job then gets
    `job_outcome`. The caller has read this outcome from GitHub (law L4). Return False if the claim has changed since
    the caller read it.
    """
    if job_id is not None:
        lock_job(db, job_id)
    keeps = job_outcome is None or job_id is None
    moved = claim_transitions.execute_busy(db, claim_id, job_id=job_id, keeps_job=keeps, now=now, who=who, why=why)
    if moved:
        runner_failures.executed(db, [claim_id], now=now)
    if not moved or job_id is None:
        return moved
    if job_outcome is not None:
        apply_job_outcome(db, job_id, job_outcome, now=now, who=who)
        return True
    job_transitions.run(db, job_id, now=now, who=who, why=why)
    executions.insert_for_claim(db, claim_id, job_id=job_id, now=now)
    return True


def make_spare(db: Connection, claim_id: int, *, job_id: int, job_outcome: JobOutcome, now: datetime, who: str) -> bool:
    """Turn a claim into a spare, because the claim's job no longer needs a runner.

    The spare still counts against the budget of its account. In the same transaction, the job gets `job_outcome`.
    Otherwise the job would stay claimed without a claim (law L4). The caller has read this outcome from GitHub. Return
    False if the claim has changed since the caller read it.
    """
    lock_job(db, job_id)
    taken = claim_jobs.take_job(db, claim_id, job_id=job_id, now=now)
    if taken:
        apply_job_outcome(db, job_id, job_outcome, now=now, who=who)
    return taken

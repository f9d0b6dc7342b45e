"""Queries for jobs: a list of jobs, and one job with its history and the facts that explain its state."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, cast

from sqlalchemy import Connection, Row

from models.browse.accounts import held_by
from models.browse.claims import claim_events, step_of
from models.browse.claims import shown as shown_claim
from models.browse.page import OF_ACCOUNTS, Order, Page, read
from models.browse.timeline import Moment, in_order, repairs_of, with_deliveries
from models.browse.waits import expected
from models.claims import pod_ends, registrations, runner_failures
from models.claims.matching import offered
from models.claims.queue_heads import heads_beside, one_of
from models.db import epochs
from models.db.sql import text
from models.pools import failing_calls
from models.pools.pool_mirror import spec_of
from models.pools.pool_plans import starts_of
from models.pools.pools import routes
from models.routing.usage import usage_of
from models.state.pools import Pool
from models.upstream import gates
from ostler.timings import Timings
from ostler.upstreams import Upstream
from rules.claims.fairness import Budget, Turn, turn_of
from rules.claims.machines import ClaimState, EndReason, JobState, Stamp
from rules.claims.pod_ends import describe
from rules.pools.failing_calls import lasting
from rules.routing.access import Access
from rules.routing.holds import HoldReason
from rules.waiting.closest import closest_pool
from rules.waiting.facts import ClaimFacts, JobFacts, LostPod, SupplyFacts, TopAccount
from rules.waiting.jobs import explain
from rules.waiting.steps import Explanation

MOST_EVENTS = 500
EXPECTED_OF = timedelta(hours=1)
"""Span of the completed jobs that the expected wait of a job is computed from."""
FURTHEST = 1000
"""Maximum number of jobs that are counted as ahead of a job."""

_FAILED = "'failure', 'timed_out', 'startup_failure'"

_COLUMNS = """
    t.id, t.account_id, (SELECT login FROM accounts WHERE id = t.account_id) AS account, t.repository, t.run_id,
    t.run_attempt, t.name, t.workflow_name, t.head_branch, t.labels, t.state, t.conclusion, t.pool_id,
    (SELECT name FROM pools WHERE id = t.pool_id) AS pool, t.hold_reason, t.hold_detail, t.not_before, t.priority,
    t.queued_at, t.started_at, t.completed_at, t.changed_at,
    (SELECT runner_name FROM executions WHERE job_id = t.id) AS runner
"""


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Filter for jobs. None in a field selects all values of that field."""

    state: JobState | None = None
    hold_reason: HoldReason | None = None
    held: bool | None = None
    account_id: int | None = None
    pool_id: int | None = None
    repository: str | None = None
    workflow: str | None = None
    since: datetime | None = None
    label: str | None = None
    """A label that the job asks for, in upper or lower case."""
    failed: bool | None = None
    accounts: Collection[int] | None = None
    """The ids of the accounts that the caller may see. None means all accounts."""


def list_jobs(
    db: Connection, wanted: JobFilter, *, order: Order = Order.NEWEST, after: int | None = None, limit: int
) -> Page:
    """Return one page of jobs in the order of their ids, which GitHub counts upwards."""
    conditions: dict[str, Any] = {
        "t.state = :value": wanted.state,
        "t.hold_reason = :value": wanted.hold_reason,
        "t.account_id = :value": wanted.account_id,
        "t.pool_id = :value": wanted.pool_id,
        "t.repository = :value": wanted.repository,
        "t.workflow_name = :value": wanted.workflow,
        OF_ACCOUNTS: None if wanted.accounts is None else list(wanted.accounts),
        "t.queued_at >= :value": wanted.since,
        "EXISTS (SELECT FROM unnest(t.labels) l WHERE lower(l) = lower(:value))": wanted.label,
        f"t.conclusion IN ({_FAILED})": True if wanted.failed else None,
        f"t.conclusion IS NULL OR t.conclusion NOT IN ({_FAILED})": True if wanted.failed is False else None,
        "t.hold_reason IS NOT NULL": True if wanted.held else None,
        "t.hold_reason IS NULL": True if wanted.held is False else None,
    }
    if wanted.state is not None and wanted.state is not JobState.COMPLETED:
        conditions["t.state <> :value"] = JobState.COMPLETED  # lets Postgres use the partial index
    return read(db, _COLUMNS, source="jobs t", conditions=conditions, order=order, after=after, limit=limit)


def job_name(db: Connection, job_id: int) -> str | None:
    """Return the repository and the name of a job, or None if there is no such job."""
    row = db.execute(text("SELECT repository, name FROM jobs WHERE id = :id"), {"id": job_id}).one_or_none()
    return None if row is None else f"{row.repository}: {row.name}"


@dataclass(frozen=True, slots=True)
class JobStory:
    """A job with its events and claims, its timeline, and the explanation of its present state."""

    job: Row[Any]
    events: Sequence[Row[Any]]
    claims: Sequence[Row[Any]]
    timeline: Sequence[Moment]
    facts: JobFacts

    @property
    def why(self) -> Explanation:
        """Return the explanation of the job's state."""
        return explain(self.facts)


def shown(job: Row[Any], *, now: datetime) -> dict[str, Any]:
    """Return a job of this module as the commands and the API show it."""
    ended = job.completed_at if job.state == JobState.COMPLETED and job.completed_at is not None else now
    return {**job._mapping, "age_seconds": max(timedelta(), ended - job.queued_at).total_seconds()}


def told(story: JobStory, *, now: datetime) -> dict[str, Any]:
    """Return a job with its story as the commands and the API show it."""
    return shown(story.job, now=now) | {
        "why": asdict(story.why),
        "claims": [shown_claim(claim) for claim in story.claims],
        "events": [dict(each._mapping) for each in story.events],
        "timeline": [asdict(each) for each in story.timeline],
    }


def job_story(
    db: Connection, job_id: int, *, timings: Timings, now: datetime, accounts: Collection[int] | None = None
) -> JobStory | None:
    """Return a job with its events and claims, or None if there is no such job.

    The oldest event and the oldest claim come first. If `accounts` is given, the result is None for jobs of other
    accounts. `timings` are those of the matcher.
    """
    job = db.execute(text(f"SELECT {_COLUMNS} FROM jobs t WHERE t.id = :id"), {"id": job_id}).one_or_none()
    if job is None or (accounts is not None and job.account_id not in accounts):
        return None
    events = db.execute(
        text("""
            SELECT at, transition, from_state, to_state, who, why, task_id, attempt, latency_ms FROM job_events
            WHERE job_id = :id ORDER BY id LIMIT :most
        """),
        {"id": job_id, "most": MOST_EVENTS},
    ).all()
    claims = db.execute(
        text(f"""
            SELECT c.id, c.state, c.stamp, c.created_at, c.minted_at, c.delivered_at, c.ended_at, c.end_reason,
                   c.runner_name, c.last_error, p.name AS pod, c.pod_uid,
                   p.terminal_at AS pod_over_at, p.gone_at AS pod_gone_at,
                   pod_end.*
            FROM claims c JOIN runner_pods p ON p.id = c.runner_pod_id {pod_ends.SEEN}
            WHERE c.job_id = :id ORDER BY c.id LIMIT :most
        """),
        {"id": job_id, "most": MOST_EVENTS, "seen": None if accounts is None else list(accounts)},
    ).all()
    facts = _facts(db, job, claims, accounts=accounts, timings=timings, now=now)
    # A repair can name what others have, so only readers of the whole fleet see it.
    repairs = repairs_of(db, job.id) if accounts is None else ()
    timeline = with_deliveries(db, in_order([*_timeline(db, events, claims), *repairs]), job_ids=[job.id])
    return JobStory(job, events, claims, timeline, facts)


def _timeline(db: Connection, events: Sequence[Row[Any]], claims: Sequence[Row[Any]]) -> list[Moment]:
    found = [Moment.of_event("job", event) for event in events]
    of_claims = claim_events(db, [claim.id for claim in claims])
    found += [Moment.of_event(f"claim {event.claim_id}", event) for event in of_claims]
    for claim in claims:
        if claim.pod_over is None:  # the end of the Pod is hidden, because a job of another account had the Pod then
            continue
        first = None if claim.deleted_first is False else claim.deletion_at
        at = first or claim.pod_over_at or claim.deletion_at or claim.pod_gone_at
        if at is not None:
            found.append(Moment(at, f"pod {claim.pod}", None, "ended", why=describe(pod_ends.end_of(claim))))
    return found


def _facts(
    db: Connection,
    job: Row[Any],
    claims: Sequence[Row[Any]],
    *,
    accounts: Collection[int] | None,
    timings: Timings,
    now: datetime,
) -> JobFacts:
    account = db.execute(
        text(f"""
            SELECT login, access, budget_count, budget_vcpu, budget_memory, NOT {epochs.CURRENT} AS database_older
            FROM accounts WHERE id = :id
        """),
        {"id": job.account_id},
    ).one()
    live = next((claim for claim in reversed(claims) if claim.ended_at is None), None)
    step = None if live is None or live.last_error is None else step_of(db, live.id)
    queued = job.state == JobState.QUEUED
    dispatchable = queued and job.hold_reason is None and job.pool_id is not None
    pool = None if job.pool_id is None else pool_facts(db, job.pool_id, job_id=job.id, accounts=accounts, now=now)
    turn = _turn(db, job, slots=pool.warm, timings=timings, now=now) if pool is not None and dispatchable else None
    return JobFacts(
        id=job.id,
        state=JobState(job.state),
        hold_reason=None if job.hold_reason is None else HoldReason(job.hold_reason),
        hold_detail=job.hold_detail,
        not_before=job.not_before,
        labels=tuple(job.labels),
        account_id=job.account_id,
        account=account.login,
        budget=Budget(
            count=account.budget_count,
            vcpu_millicores=account.budget_vcpu,
            memory_mib=account.budget_memory,
        ),
        usage=usage_of(db, [job.account_id])[job.account_id],
        held=None if account.access == Access.ALLOWED else held_by(db, job.account_id, accounts=accounts),
        pool=pool,
        ahead=_ahead(db, job) if dispatchable else None,
        claim=None
        if live is None
        else ClaimFacts(
            id=live.id,
            state=ClaimState(live.state),
            stamp=Stamp(live.stamp),
            pod=live.pod,
            runner=live.runner_name,
            last_error=None if step is None else step.error,
            postponed=None if step is None else step.postponed,
            due_at=None if step is None else step.due_at,
            created_at=live.created_at,
            minted_at=live.minted_at,
            delivered_at=live.delivered_at,
        ),
        runner=job.runner,
        conclusion=job.conclusion,
        turn=turn,
        reserved_for=None if turn is None or turn.reservation is None else _reserved_for(db, turn.reservation.job_id),
        lost=_lost(claims, over_at=job.completed_at),
        near=_near(db, job) if job.hold_reason in {HoldReason.NO_POOL, HoldReason.TWO_POOLS} else None,
        queued_at=job.queued_at,
        expected=expected(db, job.pool_id, since=now - EXPECTED_OF, accounts=accounts)
        if job.pool_id is not None and queued
        else None,
        database_older=account.database_older,
    )


def _turn(db: Connection, job: Row[Any], *, slots: int, timings: Timings, now: datetime) -> Turn | None:
    """Return the place of a dispatchable job in the plan that the matcher would make now for `slots` free Pods.

    Return None if the pool takes no job at all.
    """
    row = db.execute(
        text("""
            SELECT id, vcpu, memory, template_hash, wants_pods, autoscaled, registers_in, allowed_accounts FROM pools
            WHERE id = :id AND deleted_at IS NULL AND NOT draining AND registers_in IS NULL
        """),
        {"id": job.pool_id},
    ).one_or_none()
    if row is None:
        return None
    pool = cast("Pool", row)
    held = runner_failures.held(db, pool.id, pool.template_hash, now=now)
    heads = heads_beside(db, pool, held, timings, now=now)
    if held is not None and held.slots and held.account_id is not None:
        heads, _ = one_of(heads, held.account_id)
    return turn_of(
        job.id,
        job.account_id,
        heads.jobs,
        heads.accounts,
        totals=heads.totals,
        slots=slots,
        reservations=heads.reservations,
        last=heads.last,
    )


def _reserved_for(db: Connection, job_id: int) -> str:
    """Return the job of a reservation with its repository and its pool, for a sentence."""
    row = db.execute(
        text("SELECT j.repository, p.name FROM jobs j JOIN pools p ON p.id = j.pool_id WHERE j.id = :id"),
        {"id": job_id},
    ).one_or_none()
    return str(job_id) if row is None else f"{job_id} of {row.repository} in pool {row.name}"


def _lost(claims: Sequence[Row[Any]], *, over_at: datetime | None) -> LostPod | None:
    """Return the Pod that was lost while the job had a delivered claim on it, or None if no Pod was lost.

    Only the Pod of the last delivered claim of the job is checked. This Pod was lost if the claim ended because the Pod
    disappeared or was spent. The Pod was also lost if another client deleted it before the job was over.
    """
    claim = next((claim for claim in reversed(claims) if claim.delivered_at is not None), None)
    if claim is None:
        return None
    end = pod_ends.end_of(claim)
    if end.cut_job(over_at=over_at) or claim.end_reason in {EndReason.POD_GONE, EndReason.POD_SPENT}:
        return LostPod(claim.pod, end)
    return None


def pool_facts(
    db: Connection,
    pool_id: int,
    *,
    job_id: int | None = None,
    accounts: Collection[int] | None = None,
    now: datetime,
) -> SupplyFacts:
    """Return the facts about a pool, for the explanation of the job `job_id` or of the pool itself.

    `accounts` contains the ids of the accounts that the caller may see. If the pool has a brake, the failed runners of
    other accounts are left out of the facts about the brake. The account with the most Pods is left out if the caller
    must not see it.
    """
    row = db.execute(
        text("""
            SELECT p.*, p.rerouting_since IS NOT NULL
                       OR coalesce(CAST(:job AS bigint) = ANY(p.rerouting_jobs), false) AS rerouting,
                   (SELECT CAST(percentile_cont(0.5) WITHIN GROUP (
                        ORDER BY extract(epoch FROM r.first_polled_at - r.created_at)) AS float8)
                    FROM runner_pods r WHERE r.pool_id = p.id AND r.gone_at IS NULL) AS starts_in,
                   (SELECT count(*) FROM claims c
                    WHERE c.pool_id = p.id AND c.ended_at IS NULL AND c.purpose = 'job') AS taken
            FROM pools p WHERE p.id = :id
        """),
        {"id": pool_id, "job": job_id},
    ).one()
    top = db.execute(
        text("""
            SELECT a.id, a.login, t.pods,
                   (SELECT count(*) FROM jobs j
                    WHERE j.account_id = a.id AND j.pool_id = :id AND j.state = 'queued'
                      AND j.hold_reason IS NULL) AS queued
            FROM (SELECT account_id, count(*) AS pods FROM claims
                  WHERE pool_id = :id AND ended_at IS NULL AND purpose = 'job'
                  GROUP BY account_id ORDER BY 2 DESC, 1 LIMIT 1) t
            JOIN accounts a ON a.id = t.account_id
        """),
        {"id": row.id},
    ).one_or_none()
    pods = offered(db, row.id, now=now)
    brake = runner_failures.read(db, row.id, row.template_hash)
    pool = cast("Pool", row)
    starts = starts_of(pool)
    return SupplyFacts(
        id=row.id,
        spec=spec_of(pool),
        deleted=pool.deleted_at is not None,
        rerouting=row.rerouting,
        taken=row.taken,
        top=None
        if top is None or (accounts is not None and top.id not in accounts)
        else TopAccount(top.login, top.pods, top.queued),
        warm=pods.free,
        silent=pods.silent,
        trouble=None if starts.without_surge else starts.trouble,
        trouble_detail=starts.detail,
        starting=(row.status or {}).get("starting", 0),
        starts_in=row.starts_in,
        without_surge=starts.without_surge,
        failing=next((each.describe() for each in lasting(failing_calls.read(row)) if each.creates), None),
        gated=next(
            (
                each["message"]
                for each in (row.status or {}).get("conditions") or ()
                if (each["type"], each["reason"]) == ("Ready", "PodsGated")
            ),
            None,
        ),
        create_after=starts.create_after if starts.waits(now) else None,
        brake=None if brake is None else brake.seen_by(accounts),
        runners=registrations.runners_of_pool(db, row.id),
        cluster_gate=next(
            (each.why or "calls to Kubernetes fail" for each in gates.shut(db, Upstream.KUBERNETES)), None
        ),
    )


def _ahead(db: Connection, job: Row[Any]) -> int:
    """Return how many jobs of the same account and pool are ahead of this job. At most `FURTHEST` jobs are counted."""
    found: int = db.execute(
        text("""
            SELECT count(*) FROM (
                SELECT FROM jobs
                WHERE pool_id = :pool AND account_id = :account AND state = 'queued' AND hold_reason IS NULL
                  AND (-priority, queued_at, id) < (-:priority, CAST(:queued_at AS timestamptz), :id)
                LIMIT :most) ahead
        """),
        {
            "pool": job.pool_id,
            "account": job.account_id,
            "priority": job.priority,
            "queued_at": job.queued_at,
            "id": job.id,
            "most": FURTHEST,
        },
    ).scalar_one()
    return found


def _near(db: Connection, job: Row[Any]) -> str | None:
    names: dict[int, str] = {
        row.id: row.name for row in db.execute(text("SELECT id, name FROM pools WHERE deleted_at IS NULL"))
    }
    return closest_pool(
        [(names[pool.id], pool) for pool in routes(db) if pool.id in names],
        labels=job.labels,
        account_id=job.account_id,
        repository=job.repository,
    )

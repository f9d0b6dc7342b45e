"""`ostler.dispatch(pool_id)`: the matcher. It pairs queued jobs with offered Pods, and starts each claim's steps.

In a persistent pool, each offered Pod gets a registration claim instead, because GitHub gives its runners the jobs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import redis
import structlog
from celery import chain
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from models.claims import matching, registrations, runner_failures
from models.claims.queue_heads import QueueHeads, heads_beside, one_of
from models.db.engine import is_locked
from models.pools import pools
from models.state.pools import Pool
from models.upstream import backoffs
from ostler import task_names
from ostler.clock import utcnow
from ostler.reasons import reason_of
from ostler.settings import Settings
from rules.claims.fairness import AccountView, BatchPlan, JobHead, plan_batch
from tasks.claims.mint import mint
from tasks.claims.release import release
from tasks.claims.stamp import stamp
from tasks.worker.base import DISPATCH, task
from tasks.worker.named_pools import pools_meant
from tasks.worker.runtime import Runtime, runtime

log = structlog.get_logger(__name__)

ROUNDS = 4
"""Upper bound on runs of the matcher for one message. If work is left after the last run, the pool is woken again."""

SKIPPED_PAUSE = 0.2
"""Seconds until the matcher runs again if it skipped rows that another session had locked."""

BUSY_PAUSE = 0.5
"""Seconds until the matcher runs again if another transaction holds the lock of its pool."""


@dataclass(frozen=True, slots=True)
class Matched:
    """Result of one committed run of the matcher.

    `made`: the new claims. `to_spares`: number of jobs that were given to spares. `again`: True if an immediate further
    run might match more jobs. `skipped`: True if another session had locked rows that this run needed. `short`: True if
    jobs were left without Pods and the autoscaler might add Pods to this pool. In a persistent pool, every queued job
    counts, because GitHub gives the jobs to runners. `registrations`: the ids of the new
    registration claims.
    """

    made: Sequence[matching.Made]
    to_spares: int
    again: bool
    skipped: bool = False
    short: bool = False
    registrations: Sequence[int] = ()

    @property
    def claims(self) -> tuple[int, ...]:
        """Return the ids of the new claims."""
        return (*(made.claim_id for made in self.made), *self.registrations)


@task(task_names.DISPATCH, policy=DISPATCH)
def dispatch(*, pool_id: int | None = None, pool: str | None = None) -> None:
    """Match jobs with Pods in one pool.

    `pool_id`: id of the pool. `pool`: name of the pool, used if `pool_id` is None. The name is looked up in both
    namespaces of runners, and the jobs of every pool with this name are matched.
    """
    rt = runtime()
    for each in pools_meant(rt, pool_id=pool_id, pool=pool):
        match_rounds(rt, each)


def match_rounds(rt: Runtime, pool_id: int) -> None:
    """Run the matcher of a pool repeatedly until no work is left, but at most `ROUNDS` times.

    The pool is woken again if work is left after the last run, if another transaction holds the lock of the pool, or if
    the last run skipped rows that another session had locked.
    """
    for _ in range(ROUNDS):
        try:
            matched = run_matcher(rt, pool_id, now=utcnow())
        except OperationalError as error:
            if not is_locked(error):
                raise
            log.info("dispatch.postponed_because_pool_is_locked")
            # The wake key is cleared first. While the key is set, a wake counts as already sent and sends no message.
            clear_wake(rt, pool_id)
            rt.waker.wake(pool_id, after=BUSY_PAUSE)
            return
        start_chains(matched.claims, chain_no=1)
        log_result(matched)
        if matched.short:
            rt.waker.autoscale()
        if not matched.again:
            if matched.skipped:
                rt.waker.wake(pool_id, after=SKIPPED_PAUSE)  # other sessions have locked rows that this run needs
            return
    rt.waker.wake(pool_id)


def log_result(matched: Matched) -> None:
    """Log the claims of a run, and the jobs that it gave to spares."""
    if matched.made or matched.to_spares:
        log.info("dispatch.jobs_matched", claims_created=len(matched.made), jobs_assigned_to_spares=matched.to_spares)
    if matched.registrations:
        log.info("dispatch.registrations_begun", claims_created=len(matched.registrations))
    for made in matched.made:
        log.info("claim.created", claim=made.claim_id, job=made.job_id, pod_uid=made.pod_uid)


def run_matcher(rt: Runtime, pool_id: int, *, now: datetime) -> Matched:
    """Run the matcher of a pool once, in one transaction.

    A sender of a wake commits its rows first. The sender then sets the pool's wake key in Redis, and sends a message
    only if the key was not set yet. This run deletes the key after it has locked the pool's row and before it reads any
    other row. If a sender finds the key still set, this run therefore reads the rows of this sender, and no wake is
    lost.
    """

    def body(db: Connection) -> Matched:
        pool = matching.lock_pool(db, pool_id)
        clear_wake(rt, pool_id)
        if pool is None:
            return Matched((), 0, again=False)
        if pool.registers_in is not None:
            made = registrations.insert_for_offers(db, pool, due_after=rt.timings.due_after, now=now)
            short = pool.autoscaled and matching.has_queued_job(db, pool)
            return Matched((), 0, again=len(made) == registrations.MOST, short=short, registrations=made)
        return match(rt, db, pool, now=now)

    return rt.transaction(body)


def clear_wake(rt: Runtime, pool_id: int) -> None:
    """Delete the wake key of a pool. If Redis fails, the failure is logged, and the key expires by itself."""
    try:
        rt.wake_keys.clear_wake(pool_id)
    except redis.RedisError as error:
        log.warning("dispatch.redis_wake_key_not_deleted", error=reason_of(error))


def match(rt: Runtime, db: Connection, pool: Pool, *, now: datetime) -> Matched:
    """Choose jobs, lock rows, count usage and insert claims, in this order.

    Each step is a separate SQL statement. The count of usage therefore includes everything that was committed before
    the rows were locked (laws L1 and L2).
    """
    timings = rt.settings.timings
    seen = matching.outlook(db, pool, batch=timings.match_batch, spare_after=timings.spare_after, now=now)
    queue = _read_queue(rt, db, pool, seen, now=now)
    if not queue.heads.jobs:
        pools.set_wants_pods(db, pool, wants=False)
        return Matched((), 0, again=False)
    rows = _Rows(db, pool, queue.heads)
    # Jobs that spares might take are locked together with the planned jobs. A locked job might get neither a spare nor
    # a Pod. The commit unlocks such a job.
    first = rows.first_picks(queue.free)
    spares: frozenset[int] = frozenset()
    if seen.spares:
        spares = matching.spare_candidates(db, pool, queue.heads.jobs, spare_after=timings.spare_after, now=now)
    rows.lock_jobs(first | spares)
    pods = matching.lock_pods(db, pool, limit=len(first), now=now) if first else []
    rows.lock_accounts({job.account_id for job in rows.jobs})
    given = matching.give_to_spares(db, pool, rows.usable(spares), spare_after=timings.spare_after, now=now)
    plan = rows.plan(without=given, slots=len(pods))
    pairs = [(job.job_id, pod) for job, pod in zip(plan.picks, pods, strict=False)]
    claims = matching.insert_claims(db, pool, pairs, due_after=timings.due_after, now=now)
    left_without_pods = not queue.braked and len(queue.heads.jobs) - len(given) > queue.free
    news = pools.set_wants_pods(db, pool, wants=left_without_pods)
    skipped = rows.skipped or len(pods) < len(first)
    full = len(claims) == timings.match_batch
    # A Pod that polled before `wants_pods` was set did not wake the matcher, so the matcher must check once more.
    again = full or ((skipped or queue.left_out) and bool(claims)) or (news and left_without_pods)
    short = left_without_pods and pool.autoscaled
    return Matched(claims, len(given), again=again, skipped=skipped, short=short)


@dataclass(frozen=True, slots=True)
class _Queue:
    """The queue heads that one run may match, and the number of `free` Pods that it may claim.

    `braked`: True if the brake of the pool limits the claims of all accounts. Such a pool is not short of Pods: the
    reconciler wakes it for each claim that tests it. `left_out`: True if the brake of one account left out some of its
    jobs.
    """

    heads: QueueHeads
    free: int
    braked: bool = False
    left_out: bool = False


def _read_queue(rt: Runtime, db: Connection, pool: Pool, seen: matching.Outlook, *, now: datetime) -> _Queue:
    """Read the queue heads that the brake of the pool admits. If a test of failing mints is due, it is among them."""
    held = runner_failures.held(db, pool.id, pool.template_hash, now=now) if seen.free and seen.failures else None
    heads = heads_beside(db, pool, held, rt.settings.timings, now=now)
    if seen.free and seen.probes and probe_mints(rt.settings, db, pool, held, heads, now=now):
        heads = heads_beside(db, pool, held, rt.settings.timings, now=now)
    if held is None:
        return _Queue(heads, seen.free)
    if held.account_id is None:
        return _Queue(heads, min(seen.free, held.slots), braked=True)
    if not held.slots:
        return _Queue(heads, seen.free)
    heads, left_out = one_of(heads, held.account_id)
    return _Queue(heads, seen.free, left_out=left_out)


def probe_mints(
    settings: Settings,
    db: Connection,
    pool: Pool,
    held: runner_failures.Held | None,
    heads: QueueHeads,
    *,
    now: datetime,
) -> bool:
    """Lift the backoff hold of one job, whose mint then tests an installation with failing mints.

    Return True if the hold of a job was lifted; False otherwise. In all pools together, at most one such test of an
    installation is under way. A job that the brake of this pool excludes must not be the test, because the matcher
    would not match the job. If the brake applies to the whole pool, no hold is lifted in two cases. In the first case,
    the pool has queue heads, and the one claim that the brake allows goes to a queue head. In the second case, the
    brake allows no claim now.
    """
    braked = None if held is None else held.account_id
    holds = held is not None and (not held.slots or any(braked in {None, job.account_id} for job in heads.jobs))
    if holds and braked is None:
        return False
    let = backoffs.allow_probe(
        db, pool_id=pool.id, probe_every=settings.timings.probe_every, without=braked if holds else None, now=now
    )
    return let is not None


class _Rows:
    """The jobs and accounts that one run of the matcher has locked.

    The run first locks the rows of its plan. If another session has locked one of these rows, the run needs other jobs
    for the free Pods. The run then locks the first jobs in the queue of every account, and the accounts. The run does
    not wait for the lock of a job or an account. It skips a row that another session has locked. The commit releases
    all locks.
    """

    def __init__(self, db: Connection, pool: Pool, heads: QueueHeads) -> None:
        self.accounts: dict[int, AccountView] = {}
        self.skipped = False
        """True if another session has locked a row that this run would have used, or changed the row after this run
        read it."""
        self._db = db
        self._pool = pool
        self._heads = heads
        self._asked: set[int] = set()
        self._locked: set[int] = set()

    @property
    def jobs(self) -> list[JobHead]:
        """Return the locked queue heads, in their original order."""
        return [job for job in self._heads.jobs if job.job_id in self._locked]

    def first_picks(self, slots: int) -> set[int]:
        """Return the jobs that a plan over all queue heads picks for `slots` Pods, before anything is locked."""
        return {job.job_id for job in self._plan(self._heads.jobs, self._heads.accounts, slots).picks}

    def usable(self, job_ids: Collection[int]) -> list[int]:
        """Return the given jobs that are locked, and whose accounts are locked too."""
        return [job.job_id for job in self.jobs if job.job_id in job_ids and job.account_id in self.accounts]

    def lock_jobs(self, job_ids: set[int]) -> None:
        """Lock the given jobs. If any of them is locked by another session, lock all queue heads."""
        self._lock_jobs(job_ids)
        if self.skipped:
            self._lock_every_job()

    def lock_accounts(self, account_ids: set[int]) -> None:
        """Lock the given accounts.

        If another session has locked one of them, lock all queue heads and the accounts of these jobs.
        """
        self._lock_accounts(account_ids)
        if not account_ids <= self.accounts.keys():
            self.skipped = True
            self._lock_every_job()
            self._lock_accounts({job.account_id for job in self.jobs} - account_ids)

    def plan(self, *, without: Collection[int], slots: int) -> BatchPlan:
        """Plan a batch over the locked jobs and accounts.

        `without`: ids of the jobs to leave out. `slots`: number of Pods that can be claimed.
        """
        return self._plan([job for job in self.jobs if job.job_id not in without], self.accounts, slots)

    def _plan(self, jobs: Sequence[JobHead], accounts: Mapping[int, AccountView], slots: int) -> BatchPlan:
        return plan_batch(
            jobs,
            accounts,
            totals=self._heads.totals,
            slots=slots,
            reservations=self._heads.reservations,
            last=self._heads.last,
        )

    def _lock_every_job(self) -> None:
        self._lock_jobs({job.job_id for job in self._heads.jobs})

    def _lock_jobs(self, job_ids: set[int]) -> None:
        wanted = job_ids - self._asked
        if wanted:
            self._asked |= wanted
            got = matching.lock_jobs(self._db, self._pool, sorted(wanted))
            self.skipped |= got < wanted
            self._locked |= got

    def _lock_accounts(self, account_ids: set[int]) -> None:
        if account_ids:
            self.accounts |= matching.lock_accounts(self._db, account_ids)


def start_chains(claim_ids: Sequence[int], *, chain_no: int) -> None:
    """Send the chain `stamp → mint` for each claim, with `release` as the errback of the chain.

    A step that fails commits the release of its claim (`tasks.claims.postpone.release_on_failure`), and the errback
    continues this release. If a message is lost, the sweep `resume` sends the chain again.
    """
    for claim_id in claim_ids:
        chain(
            stamp.si(claim_id=claim_id, chain_no=chain_no),
            mint.si(claim_id=claim_id, chain_no=chain_no),
        ).apply_async(link_error=release.si(claim_id=claim_id, chain_no=chain_no))

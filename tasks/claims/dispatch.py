"""`ostler.dispatch(pool_id)`: the matcher. Pairs queued jobs with offered Pods and starts a chain per claim."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import redis
import structlog
from celery import chain
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from models.claims import matching, runner_failures
from models.claims.queue_heads import NOBODY, QueueHeads, read_queue_heads
from models.db.engine import is_locked
from models.pools import pools
from models.upstream import backoffs
from ostler.clock import utcnow
from ostler.reasons import reason_of
from ostler.settings import Settings
from ostler.wakes import AUTOSCALE
from rules.claims.fairness import AccountView, BatchPlan, JobHead, plan_batch
from tasks.claims.mint import mint
from tasks.claims.release import release
from tasks.claims.stamp import stamp
from tasks.worker.base import DISPATCH, task
from tasks.worker.named_pools import pools_meant
from tasks.worker.runtime import Runtime, runtime

log = structlog.get_logger(__name__)

ROUNDS = 4
"""Runs of the matcher in one message at most; what is left after them wakes the next."""

SKIPPED_PAUSE = 0.2
"""Seconds before rows that others held are checked again."""

BUSY_PAUSE = 0.5
"""Seconds before the matcher tries the lock of a pool again that another transaction held."""


@dataclass(frozen=True, slots=True)
class Matched:
    """What one run committed; `again`: there may be more to match at once; `skipped`: others held rows of it.

    `short`: jobs were left without Pods, in a pool that may be given more.
    """

    made: Sequence[matching.Made]
    to_spares: int
    again: bool
    skipped: bool = False
    short: bool = False

    @property
    def claims(self) -> tuple[int, ...]:
        """The ids of the claims."""
        return tuple(made.claim_id for made in self.made)


@task("dispatch", queue="dispatch", policy=DISPATCH)
def dispatch(*, pool_id: int | None = None, pool: str | None = None) -> None:
    """Match the pool of this id, or of this name in the runners' namespace where no id is given."""
    rt = runtime()
    for each in pools_meant(rt, pool_id=pool_id, pool=pool):
        match_rounds(rt, each)


def match_rounds(rt: Runtime, pool_id: int) -> None:
    """Match until nothing is left for this pool, at most `ROUNDS` times, then leave the rest to a wake."""
    for _ in range(ROUNDS):
        try:
            matched = run_matcher(rt, pool_id, now=utcnow())
        except OperationalError as error:
            if not is_locked(error):
                raise
            log.info("dispatch.busy")
            # Under its old key the next wake would be taken for one whose message is still to come.
            clear_wake(rt, pool_id)
            rt.waker.wake(pool_id, after=BUSY_PAUSE)
            return
        start_chains(matched.claims, chain_no=1)
        if matched.claims or matched.to_spares:
            log.info("dispatch.matched", count=len(matched.made), to_spares=matched.to_spares)
        for made in matched.made:
            log.info("claim.made", claim=made.claim_id, job=made.job_id, pod_uid=made.pod_uid)
        if matched.short:
            rt.waker.send(AUTOSCALE, queue="pools")
        if not matched.again:
            if matched.skipped:
                rt.waker.wake(pool_id, after=SKIPPED_PAUSE)  # others hold what it needs, for a moment
            return
    rt.waker.wake(pool_id)


def run_matcher(rt: Runtime, pool_id: int, *, now: datetime) -> Matched:
    """Run the matcher once.

    The wake key is deleted under the lock and before anything is read: whoever found it set had committed
    before this read.
    """

    def body(db: Connection) -> Matched:
        pool = matching.lock_pool(db, pool_id)
        clear_wake(rt, pool_id)
        return Matched((), 0, again=False) if pool is None else match(rt, db, pool, now=now)

    return rt.transaction(body)


def clear_wake(rt: Runtime, pool_id: int) -> None:
    """Delete the wake key; without Redis it expires by itself."""
    try:
        rt.wake_keys.clear_wake(pool_id)
    except redis.RedisError as error:
        log.warning("dispatch.wake_key_not_deleted", error=reason_of(error))


def match(rt: Runtime, db: Connection, pool: matching.PoolShape, *, now: datetime) -> Matched:
    """Choose, lock, count, insert: in that order, each in a statement of its own (laws L1 and L2)."""
    settings = rt.settings
    batch = settings.timings.match_batch
    seen = matching.outlook(db, pool, batch=batch, spare_after=settings.timings.spare_after, now=now)
    free = seen.free
    held = runner_failures.held(db, pool.id, pool.template_hash, now=now) if free and seen.failures else None
    heads = heads_beside(settings, db, pool, held, now=now)
    if free and seen.probes and probe_mints(settings, db, pool, held, heads, now=now):
        heads = heads_beside(settings, db, pool, held, now=now)
    probed = None if held is None or not held.slots else held.account_id
    jobs_left_out = False
    if probed is not None:
        heads, jobs_left_out = one_of(heads, probed)
    elif held is not None and held.account_id is None:
        free = min(free, held.slots)
    if not heads.jobs:
        pools.set_wants_pods(db, pool, wants=False)
        return Matched((), 0, again=False)
    # Jobs that spares may take are locked with the rest; those without a Pod are simply left again.
    first = plan_batch(
        heads.jobs, heads.accounts, totals=heads.totals, slots=free, reservations=heads.reservations, last=heads.last
    )
    spares: frozenset[int] = frozenset()
    if seen.spares:
        spares = matching.spare_candidates(db, pool, heads.jobs, spare_after=settings.timings.spare_after, now=now)
    rows = _Rows(db, pool, heads)
    rows.lock_jobs({job.job_id for job in first.picks} | spares)
    pods = matching.lock_pods(db, pool, limit=len(first.picks), now=now) if first.picks else []
    rows.lock_accounts({job.account_id for job in rows.jobs})
    given = matching.give_to_spares(
        db,
        pool,
        [job.job_id for job in rows.jobs if job.job_id in spares and job.account_id in rows.accounts],
        spare_after=settings.timings.spare_after,
        now=now,
    )
    plan = rows.plan(without=given, slots=len(pods))
    pairs = [(job.job_id, pod) for job, pod in zip(plan.picks, pods, strict=False)]
    claims = matching.insert_claims(db, pool, pairs, due_after=settings.timings.due_after, now=now)
    # A pool that is braked has the Pods, and is woken by the reconciler.
    braked = held is not None and held.account_id is None
    left_without_pods = not braked and len(heads.jobs) - len(given) > free
    news = pools.set_wants_pods(db, pool, wants=left_without_pods)
    skipped = rows.skipped or len(pods) < len(first.picks)
    full = len(claims) == batch
    # A poll that committed its offer before the flag was news did not wake us: look once more.
    again = full or ((skipped or jobs_left_out) and bool(claims)) or (news and left_without_pods)
    short = left_without_pods and pool.autoscaled
    return Matched(claims, len(given), again=again, skipped=skipped, short=short)


def heads_beside(
    settings: Settings, db: Connection, pool: matching.PoolShape, held: runner_failures.Held | None, *, now: datetime
) -> QueueHeads:
    """Read the heads of a pool, without those of an account that its brake holds back."""
    return read_queue_heads(
        db,
        pool,
        batch=settings.timings.match_batch,
        spare_after=settings.timings.spare_after,
        reserve_after=settings.timings.reserve_after,
        braked=NOBODY if held is None or held.slots or held.account_id is None else held.account_id,
        last=() if held is None else held.last,
        now=now,
    )


def probe_mints(
    settings: Settings,
    db: Connection,
    pool: matching.PoolShape,
    held: runner_failures.Held | None,
    heads: QueueHeads,
    *,
    now: datetime,
) -> bool:
    """Let one job past the backoff of an installation whose mints fail; return whether one was.

    At most one such probe is under way in all pools, so it must not be a job that the brake of this pool holds back.
    The one job that a brake lets go is any of the heads first, and a probe of the mints where there is none.
    """
    braked = None if held is None else held.account_id
    holds = held is not None and (not held.slots or any(braked in {None, job.account_id} for job in heads.jobs))
    if holds and braked is None:
        return False
    let = backoffs.allow_probe(
        db, pool_id=pool.id, probe_every=settings.timings.probe_every, without=braked if holds else None, now=now
    )
    return let is not None


def one_of(heads: QueueHeads, account_id: int) -> tuple[QueueHeads, bool]:
    """Return the heads with one job of an account, the first, as a probe; and whether others were left out."""
    own = [job for job in heads.jobs if job.account_id == account_id]
    jobs = tuple(job for job in heads.jobs if job.account_id != account_id or job is own[0])
    return replace(heads, jobs=jobs), len(own) > 1


class _Rows:
    """The jobs and accounts that one run of the matcher has locked.

    At first those of its plan. When another session holds one of these, all heads and their accounts, so that others
    take the places; nothing is ever waited for. The rest is free again with the commit.
    """

    def __init__(self, db: Connection, pool: matching.PoolShape, heads: QueueHeads) -> None:
        self.accounts: dict[int, AccountView] = {}
        self.skipped = False
        """Another session holds a row that this run would have used, or has moved it on."""
        self._db = db
        self._pool = pool
        self._heads = heads
        self._asked: set[int] = set()
        self._locked: set[int] = set()

    @property
    def jobs(self) -> list[JobHead]:
        """The heads that are locked, in the order of the heads."""
        return [job for job in self._heads.jobs if job.job_id in self._locked]

    def lock_jobs(self, job_ids: set[int]) -> None:
        """Lock these jobs; all heads when not all of these can be had."""
        self._lock_jobs(job_ids)
        if self.skipped:
            self._lock_every_job()

    def lock_accounts(self, account_ids: set[int]) -> None:
        """Lock these accounts; all heads with their accounts when not all of these can be had."""
        self._lock_accounts(account_ids)
        if not account_ids <= self.accounts.keys():
            self.skipped = True
            self._lock_every_job()
            self._lock_accounts({job.account_id for job in self.jobs} - account_ids)

    def plan(self, *, without: Collection[int], slots: int) -> BatchPlan:
        """Plan over what is locked, the jobs in `without` left out."""
        return plan_batch(
            [job for job in self.jobs if job.job_id not in without],
            self.accounts,
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
    """Send `stamp → mint` for each claim, with release as its errback. A lost one is `resume`'s."""
    for claim_id in claim_ids:
        chain(
            stamp.si(claim_id=claim_id, chain_no=chain_no),
            mint.si(claim_id=claim_id, chain_no=chain_no),
        ).apply_async(link_error=release.si(claim_id=claim_id, chain_no=chain_no))

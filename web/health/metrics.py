"""`GET /metrics` of the web process: the counters and queues in its memory, and gauges computed from database rows.

The load on Postgres does not depend on the number of clients that scrape. The rows are queried at most once in five
seconds, and the page is rendered at most once a second. If Postgres does not answer, the page has no gauges from rows,
and `ostler_database_up` is 0.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import Request
from starlette.responses import Response

from models.browse import statistics
from models.browse.fleet import AccountLine
from models.browse.statistics import Statistics
from models.upstream.backoffs import BASE
from ostler import telemetry
from ostler.clock import utcnow
from rules.claims.machines import ClaimState, JobState, Purpose
from rules.routing.holds import HoldReason
from web.api.database import Database
from web.api.problems import Refusal
from web.health.health import Kept
from web.health.watchdog import SweepStanding, Watchdog

EVERY = 5.0
"""Seconds for which the result of the queries to Postgres is cached."""

RENDERED = 1.0
"""Seconds for which a rendered page is cached. Rendering blocks the event loop for some milliseconds."""

WITHIN = 3.0
"""Seconds that a scrape waits for the result of the queries to Postgres."""

POLL_STATUSES = (200, 204, 401, 403, 408, 410, 413, 429, 503)
OTHER_ACCOUNTS = "(others)"
"""Label of the accounts without metrics of their own. No account has this name, because logins have no brackets."""

_DELIVERIES = ("first", "again", "moved_on", "locked")
_REVIEWS = ("missed", "refused")
_OPEN_JOBS = tuple(state for state in JobState if state is not JobState.COMPLETED)
_LIVE_CLAIMS = tuple(state for state in ClaimState if state is not ClaimState.ENDED)


@dataclass(frozen=True, slots=True)
class Held:
    """Numbers of polls, webhooks and messages that this process has in memory."""

    polls: int
    webhooks: int
    messages: int
    messages_dropped: int


@dataclass(frozen=True, slots=True)
class Found:
    """The statistics from the rows, and the state of the sweeps."""

    statistics: Statistics
    sweeps: Sequence[SweepStanding]


class Metrics:
    """The route `/metrics`."""

    def __init__(
        self,
        *,
        database: Database,
        watchdog: Watchdog,
        counts: Counter[str],
        held: Callable[[], Held],
        accounts: int = 0,
    ) -> None:
        """Prepare the route. `accounts` is the maximum number of accounts with metrics of their own."""
        self._database = database
        self._watchdog = watchdog
        self._counts = counts
        self._held = held
        self._accounts = accounts
        self._page = b""
        self._page_until = -math.inf
        self._kept: Kept[Found | None] = Kept(self._ask, silent=None, within=WITHIN, kept=EVERY)

    async def serve(self, _request: Request) -> Response:
        """Answer a scrape."""
        rows = await self._kept.get()
        now = time.monotonic()
        if now >= self._page_until:
            found = CollectorRegistry()
            found.register(Rows(rows, accounts=self._accounts))
            found.register(Memory(self._held(), self._counts))
            self._page = telemetry.exposition() + telemetry.exposition(found)
            self._page_until = now + RENDERED
        return Response(self._page, media_type=telemetry.CONTENT_TYPE)

    async def _ask(self) -> Found | None:
        try:
            found = await self._database.run(
                lambda db: Found(
                    statistics.read(db, now=utcnow(), accounts=self._accounts > 0), self._watchdog.check(db)
                )
            )
        except (SQLAlchemyError, Refusal):
            return None
        for pool in found.statistics.pools:
            telemetry.pool_served(pool.namespace, pool.name)
        return found


class Memory(Collector):
    """Metrics from the memory of this process."""

    def __init__(self, held: Held, counts: Counter[str]) -> None:
        self._held = held
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """Return the metric families."""
        held, counts = self._held, self._counts
        yield GaugeMetricFamily("ostler_polls_held", "Polls of runner Pods that web has not answered yet", held.polls)
        yield GaugeMetricFamily(
            "ostler_webhooks_waiting", "Webhooks about jobs that wait for their transaction", held.webhooks
        )
        yield GaugeMetricFamily("ostler_messages_waiting", "Wakes and tasks that wait to be sent", held.messages)
        yield CounterMetricFamily(
            "ostler_messages_dropped",
            "Wakes and tasks that were dropped because the buffer of the process was full",
            held.messages_dropped,
        )
        polls = CounterMetricFamily("ostler_polls", "Polls answered, by status", labels=("status",))
        for status in POLL_STATUSES:
            polls.add_metric((str(status),), counts[f"poll.{status}"])
        yield polls
        deliveries = CounterMetricFamily(
            "ostler_deliveries",
            "Attempts to deliver a JIT, by outcome; `moved_on`: the claim had changed, `locked`: tried again",
            labels=("outcome",),
        )
        for outcome in _DELIVERIES:
            deliveries.add_metric((outcome,), counts[f"delivery.{outcome}"])
        yield deliveries
        reviews = CounterMetricFamily(
            "ostler_token_reviews",
            "Token reviews that did not confirm the token of a Pod, by outcome",
            labels=("outcome",),
        )
        for outcome in _REVIEWS:
            reviews.add_metric((outcome,), counts[f"token_review.{outcome}"])
        yield reviews


class Rows(Collector):
    """Metrics computed from the database rows."""

    def __init__(self, found: Found | None, *, accounts: int = 0) -> None:
        self._found = found
        self._accounts = accounts

    def collect(self) -> Iterator[Metric]:
        """Return the metric families. If Postgres did not answer, return only `ostler_database_up`."""
        yield GaugeMetricFamily(
            "ostler_database_up", "1 if Postgres answered this process, else 0", 0 if self._found is None else 1
        )
        if self._found is None:
            return
        yield from _sweeps(self._found.sweeps)
        found = self._found.statistics
        jobs = GaugeMetricFamily("ostler_jobs", "Jobs that are not completed", labels=("state", "hold_reason"))
        for state in _OPEN_JOBS:
            for hold in (None, *HoldReason):
                jobs.add_metric((state, hold or "none"), found.jobs.get((state, hold), 0))
        yield jobs
        claims = GaugeMetricFamily("ostler_claims", "Live claims", labels=("purpose", "state"))
        oldest = GaugeMetricFamily(
            "ostler_oldest_claim_seconds",
            "Longest time since the last transition of a claim in this state, in seconds; 0 without a claim",
            labels=("purpose", "state"),
        )
        for purpose in Purpose:
            for claim_state in _LIVE_CLAIMS:
                claims.add_metric((purpose, claim_state), found.claims.get((purpose, claim_state), 0))
                oldest.add_metric((purpose, claim_state), found.claim_seconds.get((purpose, claim_state), 0))
        yield claims
        yield oldest
        waits = GaugeMetricFamily(
            "ostler_backoffs",
            "Active backoffs after mints that GitHub refused or did not answer, by kind",
            labels=("kind",),
        )
        for kind in BASE:
            waits.add_metric((kind,), found.backoffs.get(kind, 0))
        yield waits
        gates = GaugeMetricFamily(
            "ostler_gate_open", "1 while the gate of an upstream is ok, 0 while it is tripped", labels=("upstream",)
        )
        closed = GaugeMetricFamily(
            "ostler_gate_closed_seconds", "Seconds since the gate tripped; 0 while it is ok", labels=("upstream",)
        )
        for upstream, seconds in found.closed_seconds.items():
            gates.add_metric((upstream,), 0 if seconds else 1)
            closed.add_metric((upstream,), seconds)
        yield gates
        yield closed
        stalled = GaugeMetricFamily(
            "ostler_oldest_stall_seconds",
            "Age of the oldest stall in seconds, by cause; 0 without a stall",
            labels=("cause",),
        )
        for cause, age in found.stalled_seconds.items():
            stalled.add_metric((cause,), age)
        yield stalled
        yield GaugeMetricFamily(
            "ostler_last_tick_timestamp_seconds",
            "Unix time at which the last tick of any sweep began; 0 if there was none",
            0 if found.last_tick is None else found.last_tick.timestamp(),
        )
        yield from _coverage(found)
        yield from _pools(found, now=utcnow())
        yield from _accounts(found.accounts, most=self._accounts, now=utcnow())
        yield _scaling(found)
        yield _braked(found)
        yield _versions(found)
        yield GaugeMetricFamily(
            "ostler_epoch",
            "Epoch of Postgres, which increases every few seconds while the cluster can be read",
            found.epoch.epoch.number,
        )
        yield GaugeMetricFamily(
            "ostler_epoch_confirmed_timestamp_seconds",
            "Unix time of the last check that found Postgres as new as the cluster; 0 if there was none",
            0 if found.epoch.confirmed_at is None else found.epoch.confirmed_at.timestamp(),
        )
        yield GaugeMetricFamily(
            "ostler_database_older",
            "1 if Postgres was restored to an earlier state than the cluster has recorded, else 0",
            found.epoch.older_since is not None,
        )
        yield GaugeMetricFamily(
            "ostler_ending_pods",
            "Pods that are still running after their job and count in a budget until they end",
            sum(found.ending.values()),
        )
        yield GaugeMetricFamily(
            "ostler_ending_pods_most",
            "Largest number of ending Pods of one account",
            max(found.ending.values(), default=0),
        )
        yield GaugeMetricFamily(
            "ostler_offered_pods",
            "Runner Pods that poll now, including claimed Pods whose JIT is not delivered",
            found.offered_pods,
        )
        yield GaugeMetricFamily(
            "ostler_oldest_queued_job_seconds",
            "Age of the oldest queued job that is not held, in seconds; 0 without one",
            found.oldest_queued_seconds,
        )


def _braked(found: Statistics) -> Metric:
    braked = GaugeMetricFamily(
        "ostler_pool_braked",
        "Consecutive runners of a braked pool that did not execute a job, by cause",
        labels=("namespace", "pool", "why"),
    )
    for each in found.braked:
        why = "too_old" if each.brake.too_old else "never_executed"
        braked.add_metric((each.namespace, each.name, why), each.brake.pods)
    return braked


def _versions(found: Statistics) -> Metric:
    ends = GaugeMetricFamily(
        "ostler_runner_version_ends_timestamp_seconds",
        "Unix time at which GitHub begins to refuse the last known runner version of a pool; 0 if unknown",
        labels=("namespace", "pool", "version"),
    )
    for each in found.versions:
        at = 0 if each.ends_at is None else each.ends_at.timestamp()
        ends.add_metric((each.namespace, each.pool, each.version), at)
    return ends


def _pools(found: Statistics, *, now: datetime) -> Iterator[Metric]:
    jobs = GaugeMetricFamily(
        "ostler_pool_jobs", "Queued jobs of a pool, without and with a hold", labels=("namespace", "pool", "state")
    )
    oldest = GaugeMetricFamily(
        "ostler_pool_oldest_dispatchable_job_seconds",
        "Age in seconds of the oldest queued job that is not held and fits its account's budget; 0 without one",
        labels=("namespace", "pool"),
    )
    pods = GaugeMetricFamily(
        "ostler_pool_pods",
        "Pods of a pool that the reconciler counted last, by state",
        labels=("namespace", "pool", "state"),
    )
    ages = []
    for each in found.pools:
        place = (each.namespace, each.name)
        jobs.add_metric((*place, "queued"), each.queued)
        jobs.add_metric((*place, "held"), each.held)
        since = each.oldest_dispatchable_at
        ages.append(0.0 if since is None else max(0.0, (now - since).total_seconds()))
        oldest.add_metric(place, ages[-1])
        for state, many in (each.pods or {}).items():
            pods.add_metric((*place, state), many)
    yield from (jobs, oldest, pods)
    yield GaugeMetricFamily(
        "ostler_oldest_dispatchable_job_seconds",
        "Age in seconds of the oldest queued job that is not held and fits its account's budget; 0 without one",
        max(ages, default=0.0),
    )


def _accounts(lines: Sequence[AccountLine], *, most: int, now: datetime) -> Iterator[Metric]:
    jobs = GaugeMetricFamily(
        "ostler_account_jobs", "Jobs of an account that are queued, held or running", labels=("account", "state")
    )
    oldest = GaugeMetricFamily(
        "ostler_account_oldest_queued_job_seconds",
        "Age in seconds of the oldest queued job of an account that is not held; 0 without one",
        labels=("account",),
    )
    pods = GaugeMetricFamily(
        "ostler_account_pods", "Pods that an account uses, and the Pods of its budget", labels=("account", "is")
    )
    busiest = sorted(lines, key=lambda each: (-(each.queued + each.held + each.running + each.used_count), each.id))
    groups: dict[str, list[AccountLine]] = {}
    for number, each in enumerate(busiest):
        groups.setdefault(each.login if number < most else OTHER_ACCOUNTS, []).append(each)
    for name, group in groups.items():
        for state in ("queued", "held", "running"):
            jobs.add_metric((name, state), sum(getattr(each, state) for each in group))
        since = min((each.oldest_queued_at for each in group if each.oldest_queued_at is not None), default=now)
        oldest.add_metric((name,), max(0.0, (now - since).total_seconds()))
        pods.add_metric((name, "used"), sum(each.used_count for each in group))
        pods.add_metric((name, "budget"), sum(each.budget_count for each in group))
    yield from (jobs, oldest, pods)


def _scaling(found: Statistics) -> Metric:
    parts = GaugeMetricFamily(
        "ostler_pool_scaling",
        "Replicas of an autoscaled pool and the inputs of the autoscaler, by part",
        labels=("namespace", "pool", "part"),
    )
    for each in found.scaling:
        for part, many in each.parts.items():
            parts.add_metric((each.namespace, each.name, part), many)
    return parts


def _coverage(found: Statistics) -> Iterator[Metric]:
    repositories = GaugeMetricFamily(
        "ostler_catch_up_repositories",
        "Repositories that the last tick of `catch_up` had to check, and those of them that were checked recently",
        labels=("is",),
    )
    repositories.add_metric(("due",), found.catch_up.due)
    repositories.add_metric(("checked",), found.catch_up.checked_at)
    deliveries = GaugeMetricFamily(
        "ostler_redelivery_read_timestamp_seconds",
        "Unix time up to which GitHub's list of deliveries has been read; 0 if never",
        labels=("part",),
    )
    for part, until in found.deliveries_read.items():
        deliveries.add_metric((part,), 0 if until is None else until.timestamp())
    yield from (repositories, deliveries)


def _sweeps(sweeps: Sequence[SweepStanding]) -> Iterator[Metric]:
    lag = GaugeMetricFamily(
        "ostler_sweep_lag_seconds", "Seconds since the last successful tick of a sweep", labels=("sweep",)
    )
    late = GaugeMetricFamily(
        "ostler_sweep_late", "1 if a sweep missed three periods and is not paused, else 0", labels=("sweep",)
    )
    paused = GaugeMetricFamily(
        "ostler_sweep_paused", "1 if a sweep is paused by a command, the API or a setting, else 0", labels=("sweep",)
    )
    for each in sweeps:
        lag.add_metric((each.name,), each.lag)
        late.add_metric((each.name,), each.late)
        paused.add_metric((each.name,), each.paused)
    yield from (lag, late, paused)

"""Time of one run of the matcher, with few and many queued jobs, 1 and 1,000 accounts, and batches of 1 and of 100.

The matcher runs in this process with a real Postgres. Only its transaction is measured, without messages. After each
run, new jobs and Pods replace the paired ones, so that every run starts with the same numbers. The claims stay live.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from benchmarks.frame import Recorder, Target, Window
from benchmarks.load.tokens import BenchPod
from benchmarks.stage import Stage
from ostler.clock import utcnow
from ostler.settings import Settings
from ostler.timings import Timings
from tasks.claims.dispatch import run_matcher
from tasks.worker.transactions import Transactions

_WEB = "web-bench"
_PODS = 100
_CONNECTIONS = 4

# The writes of a batch without the decisions.
_SQL = """\
SELECT nextval('bench') * :batch AS n \\gset
BEGIN;
SELECT pg_advisory_xact_lock(1);
INSERT INTO claims (purpose, job_id, runner_pod_id, pod_uid, pool_id, account_id, scope, vcpu, memory, state,
                    created_at, changed_at, due_at)
    SELECT 'job', j.id, p.id, p.uid, j.pool_id, j.account_id, j.scope, 2000, 4096, 'claimed', now(), now(), now()
    FROM jobs j JOIN runner_pods p ON p.name = 'bound-' || j.id WHERE j.id >= :n AND j.id < :n + :batch;
INSERT INTO claim_events (claim_id, at, transition, to_state, who, why)
    SELECT id, now(), 'claim', 'claimed', 'w', 'q' FROM claims WHERE job_id >= :n AND job_id < :n + :batch;
UPDATE jobs SET state = 'claimed', changed_at = now() WHERE id >= :n AND id < :n + :batch AND state = 'queued';
INSERT INTO job_events (job_id, at, transition, to_state, who, why)
    SELECT id, now(), 'job_claim', 'claimed', 'w', 'q' FROM jobs WHERE id >= :n AND id < :n + :batch;
COMMIT;
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One case: the numbers of queued jobs and of accounts, and the largest number of claims per run (`batch`).

    `ending` is the number of Pods that still run after their job. They count in the accounts' budgets.
    """

    queued: int
    accounts: int
    batch: int
    ending: int = 0

    @property
    def name(self) -> str:
        """Return the name of the case."""
        beside = f", {self.ending:,} Pods ending" if self.ending else ""
        return f"batch of {self.batch}, {_of(self.accounts, 'account')}, {self.queued:,} queued{beside}"


def run(recorder: Recorder) -> None:
    """Run the benchmark and record its figures."""
    deep, many = recorder.size(100_000, 2000), recorder.size(1000, 200)
    shallow = {(1, 1): 10, (1, 100): 200, (many, 1): many, (many, 100): many}
    with Stage() as stage:
        matcher = Matcher(stage)
        for accounts in (1, many):
            for batch in (1, 100):
                for queued in (shallow[accounts, batch], deep):
                    _measure(recorder, matcher, Case(queued, accounts, batch))
                first, last = Case(shallow[accounts, batch], accounts, batch), Case(deep, accounts, batch)
                _ratio(recorder, first, last)
        ending = recorder.size(10_000, 500)
        for accounts in (1, many):
            for batch in (1, 100):
                _measure(recorder, matcher, Case(shallow[accounts, batch], accounts, batch, ending))
        _bound(recorder, stage)
        recorder.lab = {
            "Pods": f"{_PODS} offered and free at the start of each run; up to 1,900 live claims, all made in the same "
            "round",
            "short queues": "1 account: 10 jobs for a batch of 1, 200 jobs for a batch of 100; 1,000 accounts: one job "
            "of each account",
            "Redis": "not used; the deletion of the wake key is a no-op",
        }


class _Runtime(SimpleNamespace, Transactions):
    """The parts of a worker's runtime that the matcher uses."""


class _Keys:
    """Wake keys in memory."""

    def clear_wake(self, _pool_id: int) -> None:
        """Delete a key."""


class Matcher:
    """One pool with its offered Pods, and the runs of its matcher."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.pool = stage.add_pool("bench")
        stage.rows(
            "INSERT INTO web_instances (id, started_at, beat_at) VALUES (:web, now(), now() + interval '1 day')",
            web=_WEB,
        )
        stage.rows("CREATE SEQUENCE made")
        self.offer(stage.add_pods(self.pool, _PODS))

    def fill(self, case: Case) -> None:
        """Create exactly this number of queued jobs, spread over the accounts in random order."""
        rows = self.stage.rows
        rows("TRUNCATE claims, claim_events, jobs, job_events, accounts, executions, mint_attempts CASCADE")
        rows(
            """
            INSERT INTO accounts (id, login, budget_count, budget_vcpu, budget_memory, created_at)
            SELECT n, 'org-' || n, 100000, 1000000000, 1000000000, now() FROM generate_series(1, :accounts) n
            """,
            accounts=case.accounts,
        )
        rows(
            """
            INSERT INTO jobs (id, account_id, installation_id, repository, scope, run_id, run_attempt, name, labels,
                              state, pool_id, priority, queued_at, changed_at)
            SELECT n, 1 + n % :accounts, 1, 'org/app', 'orgs/org', 1, 1, 'build', '{}', 'queued', :pool, 0,
                   now() - random() * interval '1 hour', now()
            FROM generate_series(1, :queued) n ORDER BY random()
            """,
            accounts=case.accounts,
            queued=case.queued,
            pool=self.pool,
        )
        rows("DELETE FROM runner_pods WHERE charged_account_id IS NOT NULL")
        rows(
            """
            INSERT INTO runner_pods (pool_id, namespace, name, uid, attempt_id, template_hash, created_at,
                                     charged_account_id, charged_vcpu, charged_memory)
            SELECT :pool, 'n', 'ending-' || n, 'ending-' || n, 'a', 'h', now(), 1 + n % :accounts, 2000, 4096
            FROM generate_series(1, :ending) n
            """,
            pool=self.pool,
            accounts=case.accounts,
            ending=case.ending,
        )

    def complete(self, count: int) -> None:
        """Insert jobs that were executed and completed just now."""
        self.stage.rows(
            """
            WITH made AS (
                INSERT INTO jobs (id, account_id, installation_id, repository, scope, run_id, run_attempt, name, labels,
                                  state, pool_id, priority, queued_at, completed_at, changed_at)
                SELECT 9000000 + n, 1, 1, 'org/app', 'orgs/org', 1, 1, 'build', '{}', 'completed', :pool, 0,
                       now() - interval '5 min', now(), now()
                FROM generate_series(1, :count) n RETURNING id)
            INSERT INTO executions (job_id, runner_name, account_id, vcpu, memory, started_at, ended_at)
            SELECT id, 'r-' || id, 1, 1, 1, now() - interval '4 min', now() FROM made
            """,
            pool=self.pool,
            count=count,
        )

    def once(self, batch: int) -> float:
        """Run the matcher once and return its seconds. Then replace the paired jobs and Pods with new ones.

        Raises RuntimeError if the matcher did not make `batch` claims.
        """
        timings = Timings(match_batch=batch)
        settings = Settings.model_construct(
            **{name: field.default for name, field in Settings.model_fields.items()} | {"timings": timings}
        )
        runtime = _Runtime(engine=self.stage.engine, settings=settings, timings=timings, wake_keys=_Keys(), who="bench")
        began = time.perf_counter()
        matched = run_matcher(cast("Any", runtime), self.pool, now=utcnow())
        seconds = time.perf_counter() - began
        if len(matched.claims) != batch:
            raise RuntimeError(f"the matcher made {len(matched.claims)} claims instead of {batch}")
        self._replenish(list(matched.claims))
        return seconds

    def calm(self) -> None:
        """Delete every claim, and update the statistics of Postgres."""
        self.stage.rows("DELETE FROM claims")
        self.stage.system("VACUUM ANALYZE jobs, accounts, claims, offers, runner_pods")

    def _replenish(self, claims: list[int]) -> None:
        rows = self.stage.rows
        rows(
            """
            INSERT INTO jobs (id, account_id, installation_id, repository, scope, run_id, run_attempt, name, labels,
                              state, pool_id, priority, queued_at, changed_at)
            SELECT 1000000 + nextval('made'), account_id, installation_id, repository, scope, 1, 1, 'build', '{}',
                   'queued', pool_id, 0, now(), now()
            FROM jobs WHERE id IN (SELECT job_id FROM claims WHERE id = ANY(:claims))
            """,
            claims=claims,
        )
        rows("DELETE FROM offers WHERE pod_uid IN (SELECT pod_uid FROM claims WHERE id = ANY(:claims))", claims=claims)
        self.offer(self.stage.add_pods(self.pool, len(claims)))

    def offer(self, pods: list[BenchPod]) -> None:
        """Offer Pods for a day."""
        self.stage.rows(
            "INSERT INTO offers (pod_uid, pool_id, web_id, poll_id, until) "
            "SELECT uid, pool_id, :web, 'p', now() + interval '1 day' FROM runner_pods WHERE uid = ANY(:uids)",
            web=_WEB,
            uids=[pod.uid for pod in pods],
        )


def _measure(recorder: Recorder, matcher: Matcher, case: Case) -> None:
    recorder.say(case.name)
    matcher.fill(case)
    for _ in range(recorder.size(3, 1)):
        matcher.calm()
        for _ in range(_CONNECTIONS):  # each connection reads the catalogue again after a VACUUM
            matcher.once(case.batch)
        with recorder.window() as window:
            times = [matcher.once(case.batch) for _ in range(recorder.size(15, 2))]
        most = _most(case)
        recorder.add(
            case.name,
            "ms",
            [seconds * 1000 for seconds in times],
            window,
            targets=() if most is None else (Target("p50", "≤", most),),
            bounds=(f"raw SQL, batch of {case.batch}",),
        )


def _most(case: Case) -> float | None:
    """Return the target of a case in milliseconds, or None if it has none.

    A batch of 100 must reach 5,000 claims a second with one account and 2,500 with more. A single claim must take at
    most 6 and 20 ms. Beside Pods that are ending, only the cases with one account have targets.
    """
    one_account = case.accounts == 1
    if case.ending:
        return (20 if case.batch == 1 else 40) if one_account else None
    if case.batch == 1:
        return 6 if one_account else 20
    return case.batch / (5000 if one_account else 2500) * 1000


def _ratio(recorder: Recorder, few: Case, many: Case) -> None:
    last = recorder.figures[many.name].rounds[-1]
    window = Window(seconds=last.seconds, load=last.load, others=last.others)
    ratio = recorder.figures[many.name].value("p50") / recorder.figures[few.name].value("p50")
    recorder.add(
        f"batch of {few.batch}, {_of(few.accounts, 'account')}: {many.queued:,} queued ÷ {few.queued:,}",
        "ratio",
        ratio,
        window,
        targets=(Target("median", "≤", 1.5),),
    )


def _bound(recorder: Recorder, stage: Stage) -> None:
    """Insert the same rows with raw SQL that makes no decisions, as the bound."""
    stage.rows("CREATE SEQUENCE bench")
    stage.rows("DELETE FROM offers")
    stage.rows("TRUNCATE runner_pods CASCADE")
    stage.rows(
        """
        INSERT INTO runner_pods (pool_id, namespace, name, uid, attempt_id, template_hash, created_at)
        SELECT pool_id, 'n', 'bound-' || id, 'bound-' || id, 'a', 'h', now() FROM jobs
        """
    )
    stage.rows("ANALYZE runner_pods")
    for batch in (1, 100):  # this order matches no job twice
        for _ in range(recorder.size(3, 1)):
            with recorder.window() as window:
                times, _ = stage.pgbench(
                    _SQL.replace(":batch", str(batch)), clients=1, transactions=recorder.size(50, 3)
                )
            recorder.add(f"raw SQL, batch of {batch}", "ms", times, window, is_bound=True)


def _of(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")

"""Webhooks, releases, bindings, polls and dispatch at full speed together: no deadlock reaches a caller."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from github_adapters.endpoints.runners import Jit
from k8s_adapters.names import CLAIM_ANNOTATION
from models.claims import deliver, releases, resume
from models.db.engine import StartOver, transaction
from models.intake import intake
from models.state import offers
from models.sweeps import rematch
from models.upstream import backoffs
from ostler.clock import utcnow
from ostler.encryption import Cipher
from ostler.errors import Busy, Gone
from ostler.secrets import Secret
from rules.claims.fairness import Budget
from rules.claims.job_outcomes import JobOutcome, NextStep
from tasks.claims.mint import mint
from tasks.claims.retire import retire
from tasks.claims.stamp import stamp
from tasks.worker.runtime import install
from tasks.worker.transactions import Transactions
from tests.database import Database
from tests.integration.matching.stage import WEB, Stage, make_stage
from tests.integration.models.webhook_rows import QUEUED
from tests.releases import release_claim

ACCOUNTS = (1, 2, 3)
BUDGET = Budget(count=6, vcpu_millicores=1_000_000, memory_mib=1_000_000)
PODS_AT_ONCE = 12
JOBS_AT_ONCE = 40
SLOWLY = 180.0
"""Extra seconds that a busy machine may take until everything has happened at least once."""

_BUSY = "55P03"  # lock_not_available: a matcher that did not get its pool within 2 s is expected to say so


class _Runtime(SimpleNamespace, Transactions):
    """The runtime of the tasks."""


class _Cluster:
    """A cluster in which every Pod is as requested, and is gone when it is deleted."""

    timing = SimpleNamespace(clock=time.monotonic, sleep=lambda _seconds: None)

    def request(self, method: str, path: str, *, body: Any = None, **_rest: Any) -> Any:
        if method != "PATCH":
            raise Gone(path)
        uid, value = body[0]["value"], body[2]["value"]
        return {"metadata": {"uid": uid, "annotations": {CLAIM_ANNOTATION: value}}}


class _GitHub:
    """A GitHub that creates every runner, finds none by name, and refuses to delete busy ones."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def mint(self, *, name: str, **_rest: Any) -> Jit:
        return Jit(runner_id=next(self._numbers), runner_name=name, config=Secret("jit"))

    def find_runner(self, **_rest: Any) -> None:
        return None

    def delete_runner(self, *, runner_id: int, **_rest: Any) -> None:
        if runner_id % 5 == 0:
            raise Busy("422")

    def get_job(self, *, job_id: int, **_rest: Any) -> Any:
        status = ("queued", "completed", "in_progress")[job_id % 3]
        return SimpleNamespace(status=status, conclusion=None, run_id=job_id, run_attempt=1, runner_name=None)

    def get_run(self, *, run_id: int, **_rest: Any) -> Any:
        return SimpleNamespace(over=run_id % 2 == 0, conclusion="startup_failure", attempt=1)


class _Waker:
    """A waker that does nothing, because every thread runs all the time."""

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_arguments, **_named: None


@dataclass
class Traffic:
    """State that all threads share."""

    stage: Stage
    pools: list[int]
    until: float
    done: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    numbers: Any = field(default_factory=lambda: itertools.count(1))

    def run(self, name: str, body: Callable[[random.Random], None], number: int) -> None:
        """Repeat a body until the test is over or a body has failed."""
        chance = random.Random(f"{name}-{number}")  # noqa: S311
        while not self.over.is_set() and not self.failures:
            try:
                body(chance)
                self.done[name] += 1
            except StartOver:
                self.done["start over"] += 1  # its batch is applied one by one by the intake
            except deliver.ClaimLocked:
                self.done["locked claim"] += 1  # web keeps the poll and tries again
            except DBAPIError as error:
                code = getattr(error.orig, "pgcode", None)
                if code == _BUSY and name == "dispatch":
                    self.done["busy pool"] += 1
                else:
                    self.failures.append(f"{name}: {code}: {error.orig}")
            except Exception as error:  # noqa: BLE001  the test shows it
                self.failures.append(f"{name}: {error!r}")

    def ends(self) -> set[str]:
        """Return the end reasons of claims until now."""
        return {row.end_reason for row in self.stage.rows("SELECT DISTINCT end_reason FROM claims")}

    def has_met_itself(self) -> bool:
        """Return whether every body ran, and claims ended in each possible way."""
        return all(self.done[name] > 0 for name in WORKERS) and self.ends() >= {"released", "completed", "retired"}

    def commit(self, body: Callable[[Connection], Any]) -> Any:
        """Run one transaction."""
        return transaction(self.stage.engine, body)

    def live(self, *states: str) -> list[Any]:
        """Return live job claims in these states."""
        return list(
            self.stage.rows(
                "SELECT * FROM claims WHERE ended_at IS NULL AND purpose = 'job' AND state = ANY(:states)",
                states=list(states),
            )
        )

    # Bodies

    def webhooks(self, chance: random.Random) -> None:
        """Queue, start and end jobs, on their own runners and on others, many at once and twice."""
        jobs = self.stage.rows("SELECT id, account_id, pool_id, state FROM jobs WHERE state <> 'completed'")
        runners = [row.runner_name for row in self.live("delivered", "executing", "releasing")]
        events = []
        for _ in range(chance.randint(1, 8)):
            if len(jobs) < JOBS_AT_ONCE and chance.random() < 0.5:
                account = chance.choice(ACCOUNTS)
                pool = chance.choice(self.pools)
                event = replace(QUEUED, job_id=next(self.numbers), labels=(f"pool-{pool}",), owner_id=account)
                events.append(event)
            elif jobs:
                job = chance.choice(jobs)
                action = chance.choice(("in_progress", "completed"))
                runner = chance.choice([*runners, None, "foreign"]) if runners else None
                events.append(
                    replace(
                        QUEUED,
                        job_id=job.id,
                        labels=(f"pool-{job.pool_id}",),
                        owner_id=job.account_id,
                        action=action,
                        status=action,
                        runner_name=runner,
                        conclusion="success" if action == "completed" else None,
                    )
                )
        received = [intake.Received(f"guid-{next(self.numbers)}", event) for event in events]
        if received:
            self.commit(lambda db: intake.apply(db, received, budget=BUDGET, now=utcnow()))

    def dispatch(self, chance: random.Random) -> None:
        self.stage.match(chance.choice(self.pools), now=utcnow())

    def chains(self, chance: random.Random) -> None:
        """Stamp, mint and deliver one claim."""
        claims = self.live("claimed", "minted")
        if not claims:
            return
        claim = chance.choice(claims)
        stamp.run(claim_id=claim.id, chain_no=claim.chain_no)
        mint.run(claim_id=claim.id, chain_no=claim.chain_no)
        self.commit(
            lambda db: deliver.deliver(
                db, claim_id=claim.id, pod_uid=claim.pod_uid, poll_id=claim.pod_uid, now=utcnow(), who="test"
            )
        )

    def releases(self, chance: random.Random) -> None:
        """Release one claim. GitHub and the cluster answer at once."""
        claims = self.live("claimed", "minted", "delivered", "releasing")
        if claims:
            release_claim(self.stage.engine, chance.choice(claims).id)

    def retirements(self, chance: random.Random) -> None:
        """Retire a Pod, end retirements, and end executing claims whose Pods are gone."""
        pods = self.stage.rows("SELECT id FROM runner_pods WHERE gone_at IS NULL")
        if pods:
            pod_id, now = chance.choice(pods).id, utcnow()
            self.commit(
                lambda db: releases.insert_retire(db, pod_id, now=now, who="test", why="too many", due_after=10)
            )
        for row in self.stage.rows("SELECT id FROM claims WHERE ended_at IS NULL AND purpose = 'retire' LIMIT 5"):
            retire.run(claim_id=row.id)
        executing = self.live("executing")
        if executing:
            claim = chance.choice(executing)
            job_outcome = JobOutcome(chance.choice(list(NextStep)), "test", "unknown")
            self.commit(
                lambda db: releases.end_without_pod(
                    db, claim.id, job_id=claim.job_id, job_outcome=job_outcome, spent=True, now=utcnow(), who="test"
                )
            )

    def polls(self, chance: random.Random) -> None:
        """Create Pods, and offer those that poll."""
        pool = chance.choice(self.pools)
        pods = self.stage.rows(
            """
            SELECT uid, name FROM runner_pods p WHERE pool_id = :pool AND gone_at IS NULL AND NOT EXISTS (
                SELECT FROM claims c WHERE c.pod_uid = p.uid AND (c.delivered_at IS NOT NULL OR c.purpose = 'retire'))
            """,
            pool=pool,
        )
        if len(pods) < PODS_AT_ONCE:
            self.stage.pod(pool, web=None)
        now = utcnow()
        polling = [
            offers.Polling(
                pod_uid=pod.uid,
                namespace="runners",
                pod_name=pod.name,
                poll_id=pod.uid,
                until=now.replace(year=now.year + 1),
                again=False,
            )
            for pod in pods
        ]

        def offer(db: Connection) -> None:
            offers.beat(db, web_id=WEB, now=now)
            offers.offer(db, polling, web_id=WEB, now=now)

        self.commit(offer)

    def sweeps(self, chance: random.Random) -> None:
        """Resume, rematch, and back off as after a refused mint."""
        now = utcnow()
        self.commit(lambda db: resume.claim_due(db, due_after=0.1, heads={}, now=now))
        self.commit(lambda db: resume.begin_unstamps(db, unstamp_after=0.1, now=now, who="test"))
        self.commit(lambda db: rematch.rematch_page(db, rematch.accounts_to_rematch(db), limit=50, now=now))
        if chance.random() < 0.1:
            account = str(chance.choice(ACCOUNTS))
            self.commit(lambda db: backoffs.record_failure(db, kind="account", key=account, reason="test", now=now))
            self.commit(lambda db: backoffs.delete(db, [("account", account)]))
            self.commit(_end_waits)


def _end_waits(db: Connection) -> None:
    """Let held jobs be matched again at once, in the usual lock order."""
    db.execute(
        text("""
            UPDATE jobs SET not_before = NULL WHERE id IN (
                SELECT id FROM jobs WHERE hold_reason = 'backoff' ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)
        """)
    )


WORKERS = {
    "webhooks": 3,
    "dispatch": 3,
    "chains": 3,
    "releases": 2,
    "retirements": 1,
    "polls": 2,
    "sweeps": 1,
}


@pytest.mark.parametrize("seconds", [12, pytest.param(60, marks=pytest.mark.slow)])
def test_no_deadlock_reaches_a_caller(database: Database, seconds: int) -> None:
    stage = make_stage(database, match_batch=5)
    pools = [stage.pool() for _ in range(3)]
    with stage.engine.begin() as db:
        db.execute(text("UPDATE pools SET labels = ARRAY['pool-' || id]"))
    cipher = Cipher([Secret(Fernet.generate_key().decode())])
    runtime = _Runtime(
        engine=stage.engine,
        settings=stage.settings,
        timings=stage.settings.timings,
        who="worker",
        cipher=cipher,
        wake_keys=stage.wake_keys,
        waker=_Waker(),
        events=SimpleNamespace(record=lambda *_recorded: None),
        kube=_Cluster(),
        github=_GitHub(),
    )
    install(cast("Any", runtime))
    traffic = Traffic(stage, pools, time.monotonic() + seconds)
    threads = [
        threading.Thread(target=traffic.run, args=(name, getattr(traffic, name), number), name=f"{name}-{number}")
        for name, count in WORKERS.items()
        for number in range(count)
    ]
    for thread in threads:
        thread.start()
    while not traffic.failures and not (time.monotonic() > traffic.until and traffic.has_met_itself()):
        assert time.monotonic() < traffic.until + SLOWLY, f"it goes too slowly: {traffic.done}, {traffic.ends()}"
        time.sleep(0.5)
    traffic.over.set()
    for thread in threads:
        thread.join()
    install(None)
    assert traffic.failures == []
    assert traffic.has_met_itself()
    over = stage.rows("""
        SELECT a.id FROM accounts a JOIN claims c ON c.account_id = a.id AND c.ended_at IS NULL
        GROUP BY a.id, a.budget_count HAVING count(*) > a.budget_count
    """)
    assert over == [], "a budget that was never lowered is never exceeded"

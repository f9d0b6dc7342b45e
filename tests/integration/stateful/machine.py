"""The rules of the stateful test: everything that can happen to the claim path, in any order.

Jobs, Pods and pools are created and deleted. Webhooks and messages arrive late, twice and out of order. Budgets change,
GitHub gives jobs to any runner that fits, persistent runners register and end, answers are lost, calls are applied
after their timeout, and processes die between the begin and the finish of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from sqlalchemy import Connection, Engine, text

from models.claims import releases
from models.db.engine import transaction
from models.intake import intake
from models.pools import pool_mirror
from models.routing import accounts
from models.routing.accounts import NewAccount
from models.state import claim_transitions, offers
from models.sweeps.requeues import requeue
from ostler.settings import Settings
from ostler.task_names import RELEASE, REMATCH, RETIRE
from rules.changes import Author, Via
from rules.claims.fairness import Budget
from rules.claims.poll_answers import Verdict, answer
from rules.intake.events import WorkflowJobEvent
from rules.routing.scopes import Scope
from tests.integration.stateful.cluster import NAMESPACE, Pod
from tests.integration.stateful.github import ACCOUNTS, MOODS, is_registration
from tests.integration.stateful.invariants import Laws
from tests.integration.stateful.steps import CallOutcome
from tests.integration.stateful.world import Message, World, empty_tables, later
from tests.rows import mirror_pool, pool_spec

T = TypeVar("T")

OUT_OF_TURN = {
    "claimed": ("mint", "stamp", "release", "mint"),
    "minted": ("release", "unstamp", "release", "mint"),
}
"""Steps that can arrive for a claim in this state although the claim waits for another step or for none."""

SWEEPS = (
    "resume",
    "rematch",
    "stale_claims",
    "missing_pods",
    "missing_stamps",
    "unused_runners",
    "persistent_runners",
    "unresolved_jobs",
)
BUDGET = Budget(count=2, vcpu_millicores=6000, memory_mib=20_000)
LABELS = (("linux",), ("linux", "big"), ("linux", "kept"))
"""Labels of an ordinary job, of a job for the pool `large` only, and of a job for the persistent pool only.

Runners of all three pools fit an ordinary job.
"""
WEBS = ("web-1", "web-2")
MOST_PODS = 8
REGISTERS_FOR = 300.0
"""Seconds for which a Pod tries to register its runner (`poller/register.sh`)."""
MOST_JOBS = 30
LEFT = 4
"""Number of queued jobs that still run at the end of an example. The others are cancelled."""
ROUNDS = 12
"""Rounds of 400 s after which the system must be idle if nothing fails."""

REGISTERED = 77
"""The account to whose jobs GitHub gives persistent runners."""

POOLS = {
    name: pool_spec(name, uid=f"{name}-1", namespace=NAMESPACE, labels=labels)
    for name, labels in (("small", ("linux",)), ("large", ("linux", "big")))
}
POOLS["static"] = pool_spec(
    "static",
    uid="static-1",
    namespace=NAMESPACE,
    labels=("linux", "kept"),
    registers_in=Scope.organization(ACCOUNTS[REGISTERED]),
    routing_priority=-1,
)

WEIGHTS = {
    "nearly_all_goes_well_for_a_while": 8,
    "a_step_is_overtaken": 5,
    "an_unstamp_is_overtaken": 2,
    "a_job_is_queued": 5,
    "an_environment_lets_a_job_go": 1,
    "github_gives_a_job": 6,
    "a_job_ends": 4,
    "a_job_is_cancelled": 2,
    "webhooks_arrive": 6,
    "github_refuses_the_next_mint": 1,
    "a_pod_comes": 3,
    "a_pod_polls": 5,
    "held_polls_are_answered": 3,
    "runners_connect": 1,
    "a_pod_is_to_be_retired": 2,
    "a_persistent_runner_works": 5,
    "a_persistent_runner_is_to_leave": 3,
    "a_person_queues_a_job_again": 2,
    "a_pod_vanishes": 1,
    "a_message_is_run": 12,
    "a_message_comes_out_of_turn": 8,
    "a_message_is_lost": 1,
    "a_stopped_step_goes_on": 6,
    "a_late_call_is_applied": 6,
    "a_sweep_runs": 6,
    "the_reconciler_runs": 2,
    "time_passes": 6,
    "a_budget_changes": 1,
    "a_pool_changes": 1,
}
"""Frequency of each event. One rule draws the event, because separate rules would all be equally likely."""

QUIET = {
    "a_job_is_queued",
    "an_environment_lets_a_job_go",
    "a_job_is_cancelled",
    "github_gives_a_job",
    "a_job_ends",
    "github_refuses_the_next_mint",
    "a_message_is_lost",
    "runners_connect",
    "time_passes",
}
"""Events that change neither a row nor a live Pod."""

outcomes = st.sampled_from(
    [
        *([CallOutcome.ANSWERED] * 3),
        *([CallOutcome.HELD] * 3),
        CallOutcome.LOST,
        CallOutcome.FAILED,
        CallOutcome.LATE,
        CallOutcome.LATE,
        CallOutcome.KILLED,
    ]
)


@dataclass(frozen=True)
class Draw:
    """The random values of one event. Each event uses those that it needs."""

    pick: int
    other: int
    flag: bool
    outcome: CallOutcome
    at: int
    wait: int

    def one(self, among: Sequence[T]) -> T:
        """Return one of the given values."""
        return among[self.pick % len(among)]


draws = st.builds(
    Draw,
    pick=st.integers(0, 23),
    other=st.integers(0, 23),
    flag=st.booleans(),
    outcome=outcomes,
    at=st.sampled_from([1, 1, 1, 2, 3]),
    wait=st.sampled_from([0, 0, 0, 3, 12]),
)


class ClaimPath(RuleBasedStateMachine):
    """One example. A subclass provides the engine."""

    engine: ClassVar[Engine]
    settings: ClassVar[Settings]
    worlds: ClassVar[list[World]] = []
    prepare: ClassVar[list[Callable[[World], None]]] = []
    holds = False
    """True if every law held until now. Only then is the end of the example judged."""

    @initialize(
        jobs=st.lists(st.tuples(st.sampled_from(sorted(ACCOUNTS)), st.sampled_from(LABELS)), min_size=1, max_size=5),
        rounds=st.integers(0, 2),
    )
    def begin(self, jobs: list[tuple[int, tuple[str, ...]]], rounds: int) -> None:
        empty_tables(self.engine)
        self.world = World(self.engine, self.settings)
        self.worlds[:] = [self.world]
        for prepare in self.prepare:
            prepare(self.world)
        self.world.cluster.deleting = self._deleting
        self.laws = Laws(self.world)
        self.pools = dict(POOLS)
        self.numbers = 0
        transaction(
            self.engine,
            lambda db: accounts.ensure_accounts(
                db,
                [NewAccount(id=i, login=login, installation_id=i + 100) for i, login in ACCOUNTS.items()],
                budget=BUDGET,
                now=self.world.now,
            ),
        )
        self._mirror()
        for name in POOLS:
            self._add_pod(name)
        for account, labels in jobs:
            self.world.github.add_job(account, labels, waiting=False)
        for _ in range(rounds):
            self._all_goes_well()
        self.laws.check()
        self.holds = True

    @rule(event=st.sampled_from([name for name, weight in WEIGHTS.items() for _ in range(weight)]), draw=draws)
    def happens(self, event: str, draw: Draw) -> None:
        self.world.now = later(self.world.now, draw.wait)
        self.holds = False
        getattr(self, event)(draw)
        if event not in QUIET:
            self.laws.check()
        self.holds = True

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            if self.holds:
                self._comes_to_rest()
        finally:
            self.world.kill_all()

    # GitHub and its users

    def a_job_is_queued(self, draw: Draw) -> None:
        account = sorted(ACCOUNTS)[draw.pick % 2]
        waiting = draw.other % 5 == 0
        if len(self.world.github.jobs) < MOST_JOBS:
            self.world.github.add_job(account, LABELS[draw.other % 3 if draw.flag else 0], waiting=waiting)

    def an_environment_lets_a_job_go(self, draw: Draw) -> None:
        waiting = [job_id for job_id, job in self.world.github.jobs.items() if job.status == "waiting"]
        if waiting:
            self.world.github.let_go(draw.one(waiting))

    def github_gives_a_job(self, draw: Draw) -> None:
        self._connect()
        github = self.world.github
        fits = [(i, r) for i, job in github.jobs.items() for r in github.runners.values() if github.fits(job, r)]
        if fits:
            github.give(*draw.one(fits))

    def a_job_ends(self, draw: Draw) -> None:
        running = [job_id for job_id, job in self.world.github.jobs.items() if job.status == "in_progress"]
        if running:
            self._end(draw.one(running))

    def a_job_is_cancelled(self, draw: Draw) -> None:
        queued = [job_id for job_id, job in self.world.github.jobs.items() if job.status in {"queued", "waiting"}]
        if queued:
            self.world.github.finish(draw.one(queued), "cancelled")

    def webhooks_arrive(self, draw: Draw) -> None:
        """Deliver some webhooks together, from any place in the queue. Some of them can stay and arrive again."""
        hooks = self.world.github.webhooks
        if not hooks:
            return
        start = draw.pick % len(hooks)
        end = start + 1 + draw.other % 3
        self._intake(hooks[start:end])
        if not draw.flag:
            del hooks[start:end]

    def github_refuses_the_next_mint(self, draw: Draw) -> None:
        self.world.github.mood = draw.one(sorted(MOODS))

    # Pods

    def a_pod_comes(self, draw: Draw) -> None:
        if len(self.world.cluster.pods) < MOST_PODS:
            self._add_pod(draw.one(sorted(POOLS)))

    def a_pod_polls(self, draw: Draw) -> None:
        polling = [pod for pod in self.world.cluster.pods.values() if pod.polls]
        web = WEBS[draw.other % 2]
        if polling:
            self._poll(polling if draw.flag else [draw.one(polling)], web, draw.outcome, draw.at)

    def held_polls_are_answered(self, draw: Draw) -> None:
        self._answer_held(WEBS[draw.other % 2], draw.outcome, draw.at)

    def runners_connect(self, _draw: Draw) -> None:
        self._connect()

    def a_pod_is_to_be_retired(self, draw: Draw) -> None:
        rows = self.world.rows("SELECT id FROM runner_pods WHERE gone_at IS NULL AND uid IS NOT NULL ORDER BY id")
        if rows:
            claim_id = transaction(
                self.engine,
                lambda db: releases.insert_retire(
                    db, draw.one(rows).id, now=self.world.now, who="test", why="too many", due_after=10
                ),
            )
            if claim_id is not None:
                self.world.send(RETIRE, claim_id=claim_id)

    def a_persistent_runner_works(self, draw: Draw) -> None:
        """Give a persistent runner a job of its pool, and perhaps end the job. Its webhooks arrive now or later."""
        github = self.world.github
        self._connect()
        self._sweep("persistent_runners", CallOutcome.ANSWERED)
        idle = [each for each in github.runners.values() if each.persistent and each.online and each.job is None]
        if not idle or len(github.jobs) >= MOST_JOBS:
            return
        github.add_job(77, LABELS[2], waiting=False)
        job_id = len(github.jobs)
        github.give(job_id, draw.one(idle))
        if draw.other % 3:
            while github.webhooks:
                self._intake([github.webhooks.pop(0)])
        if draw.flag:
            self._end(job_id)

    def a_persistent_runner_is_to_leave(self, draw: Draw) -> None:
        rows = self.world.rows(
            "SELECT id FROM claims WHERE purpose = 'register' AND state = 'delivered' AND online_at IS NOT NULL "
            "ORDER BY id"
        )
        if rows:
            claim_id = draw.one(rows).id
            if self._ask_for_release(claim_id):
                self.world.send(RELEASE, claim_id=claim_id)

    def a_person_queues_a_job_again(self, draw: Draw) -> None:
        rows = self.world.rows("SELECT id FROM jobs WHERE state <> 'completed' ORDER BY id")
        if not rows:
            return
        by = Author("test", Via.SHELL, self.world.now)
        done = transaction(self.engine, partial(requeue, job_id=draw.one(rows).id, by=by))
        if done is not None and done.releases is not None:
            self.world.send(RELEASE, claim_id=done.releases)
        if done is not None and done.wakes is not None:
            self.world.wake(done.wakes)

    def a_pod_vanishes(self, draw: Draw) -> None:
        pods = list(self.world.cluster.pods.values())
        if pods:
            pod = draw.one(pods)
            del self.world.cluster.pods[pod.name]
            for runner in self.world.github.runners.values():
                if runner.name in self._runners_of(pod):
                    runner.online = False

    # Workers and their broker

    def a_message_is_run(self, draw: Draw) -> None:
        """Run a message, which might be a repeated one, up to or past an outside call with the drawn outcome."""
        messages = self.world.messages
        if not messages:
            return
        message = draw.one(messages)
        if not draw.flag:
            messages.remove(message)
        self._run(message, draw)

    def a_message_comes_out_of_turn(self, draw: Draw) -> None:
        """Run a step that no claim waits for. It might belong to an older chain (L6)."""
        claims = self.world.rows(
            "SELECT id, state, chain_no FROM claims "
            "ORDER BY state NOT IN ('claimed', 'minted', 'releasing'), id DESC LIMIT 4"
        )
        if claims:
            claim = draw.one(claims)
            name = OUT_OF_TURN.get(claim.state, ("release", "stamp", "mint", "retire"))[draw.other % 4]
            chained = (
                {} if name in {"unstamp", "retire"} or draw.flag else {"chain_no": claim.chain_no - draw.other // 12}
            )
            self._run(Message(f"ostler.{name}", {"claim_id": claim.id, **chained}), draw)

    def a_message_is_lost(self, draw: Draw) -> None:
        if self.world.messages:
            self.world.messages.remove(draw.one(self.world.messages))

    def a_stopped_step_goes_on(self, draw: Draw) -> None:
        if self.world.stopped:
            self.world.go_on(draw.one(self.world.stopped), draw.outcome)

    def a_late_call_is_applied(self, draw: Draw) -> None:
        if self.world.cluster.late:
            self._apply_late(draw.pick)

    def a_sweep_runs(self, draw: Draw) -> None:
        self._sweep(draw.one(SWEEPS), draw.outcome, draw.at)

    def the_reconciler_runs(self, draw: Draw) -> None:
        self._reconcile(draw.outcome, draw.at)

    def time_passes(self, draw: Draw) -> None:
        self.world.now = later(self.world.now, draw.one((1, 4, 12, 25, 70, 400)))

    # Operators

    def a_budget_changes(self, draw: Draw) -> None:
        self._budget(sorted(ACCOUNTS)[draw.pick % 2], draw.other % 5)

    def a_pool_changes(self, draw: Draw) -> None:
        name = draw.one(sorted(POOLS))
        pool = self.pools.get(name)
        change = ("go", "again", "labels", "draining")[draw.other % 4]
        if pool is None or change == "again":
            self.numbers += 1
            self.pools[name] = replace(POOLS[name], uid=f"{name}-{self.numbers}x")
        elif change == "go":
            del self.pools[name]
        elif change == "labels":
            other = POOLS[name].labels if pool.labels != POOLS[name].labels else (*POOLS[name].labels, "new")
            self.pools[name] = replace(pool, labels=other)
        else:
            self.pools[name] = replace(pool, deleted_at=None if pool.terminating else self.world.now)
        self._mirror()

    # Many good things at once, so that examples reach deep

    def nearly_all_goes_well_for_a_while(self, draw: Draw) -> None:
        """Run all messages. One call has the drawn outcome, and the others succeed."""
        for number in range(1 + draw.other % 3):
            self._all_goes_well(draw if number == 0 else None)

    def a_step_is_overtaken(self, draw: Draw) -> None:
        """Halt a step of a new claim, let everything else continue until its lease is over, and let the step finish."""
        self._all_goes_well(draw, only="ostler.dispatch")
        claims = self.world.rows("SELECT id FROM claims WHERE state IN ('claimed', 'minted') ORDER BY id DESC LIMIT 2")
        if not claims:
            return
        claim_id = draw.one(claims).id
        name = ("stamp", "release", "mint", "release")[draw.other % 4]
        if name == "mint" or (name == "release" and draw.flag):
            self._step("stamp", claim_id, CallOutcome.ANSWERED, 1)
        if name == "release":  # only a row begins a release (L6), so it has to say so first
            self._ask_for_release(claim_id)
        self._step(name, claim_id, (CallOutcome.HELD, CallOutcome.LATE)[draw.pick % 2], 1 + draw.pick // 12)
        self.laws.check()
        self.world.now = later(self.world.now, 25)
        if draw.other % 3 == 0:
            self._step("mint", claim_id, CallOutcome.ANSWERED, 1)
            self.laws.check()
        self._sweep("resume", CallOutcome.ANSWERED)
        for _ in range(2):
            self._all_goes_well()
            self.laws.check()
        while self.world.stopped:
            self.world.go_on(self.world.stopped[0], CallOutcome.ANSWERED)
            self.laws.check()
        while self.world.cluster.late:
            self._apply_late(0)
            self.laws.check()

    def an_unstamp_is_overtaken(self, draw: Draw) -> None:
        """Let the un-stamp of a release reach the cluster when the Pod serves its next job."""
        self._all_goes_well(draw, only="ostler.dispatch")
        claims = self.world.rows(
            "SELECT id, job_id FROM claims WHERE state = 'claimed' AND job_id IS NOT NULL ORDER BY id DESC LIMIT 2"
        )
        if not claims:
            return
        claim, github = draw.one(claims), self.world.github
        self._step("stamp", claim.id, CallOutcome.ANSWERED, 1)
        event = github.jobs[claim.job_id].event
        github.finish(claim.job_id, "cancelled")
        self._deliver_webhooks()
        self._step("release", claim.id, CallOutcome.LATE, 2)  # the first call reads the Pod
        self.laws.check()
        self.world.now = later(self.world.now, 25)
        self._sweep("resume", CallOutcome.ANSWERED)
        github.add_job(event.owner_id, event.labels, waiting=False)
        for _ in range(3):
            self._all_goes_well()
            self.laws.check()
        while self.world.cluster.late:
            self._apply_late(0)
            self.laws.check()

    # The end of each example

    def _comes_to_rest(self) -> None:
        """Let nothing fail any more: every job ends, and every claim except those of idle persistent runners (L4).

        Lost messages stay lost, so the sweeps must find the waiting work.
        """
        github, cluster = self.world.github, self.world.cluster
        github.mood = "well"
        for name, pool in POOLS.items():
            self.numbers += 1
            uid = self.pools[name].uid if name in self.pools else f"{name}-{self.numbers}x"
            self.pools[name] = replace(pool, uid=uid)
        self._mirror()
        for account in ACCOUNTS:
            self._budget(account, BUDGET.count)
        waiting = {i: job.event for i, job in github.jobs.items() if job.status in {"queued", "waiting"}}
        served = [i for i, job in waiting.items() if job.labels != LABELS[2] or job.owner_id == REGISTERED]
        for job_id in waiting.keys() - served[:LEFT]:
            github.finish(job_id, "cancelled")
        for job_id in [job_id for job_id, job in github.jobs.items() if job.status == "waiting"]:
            github.let_go(job_id)
        while self.world.stopped:
            self.world.go_on(self.world.stopped[0], CallOutcome.ANSWERED)
        while cluster.late:
            self._apply_late(0)
        restless: list[str] = []
        for _ in range(ROUNDS):
            self.world.now = later(self.world.now, 400)
            self._one_round()
            restless = self.laws.restless()
            if not restless:
                return
        raise AssertionError(f"{ROUNDS} rounds without a fault left: {'; '.join(restless)}")

    def _one_round(self) -> None:
        """Assign jobs to fitting runners, end running jobs, and run one tick of every sweep."""
        github, cluster = self.world.github, self.world.cluster
        rows = self.world.rows(
            "SELECT uid FROM runner_pods WHERE pool_id IN (SELECT id FROM pools WHERE deleted_at IS NULL)"
        )
        kept = {row.uid for row in rows}
        for name in POOLS:
            free = any(pod.polls and pod.pool == name and pod.uid in kept for pod in cluster.pods.values())
            if not (any(runner.persistent for runner in github.runners.values()) if name == "static" else free):
                self._add_pod(name)
        self._all_goes_well()
        self._connect()
        for job_id, job in github.jobs.items():
            runner = next((each for each in github.runners.values() if github.fits(job, each)), None)
            if runner is not None:
                github.give(job_id, runner)
        for job_id in [job_id for job_id, job in github.jobs.items() if job.status == "in_progress"]:
            self._end(job_id)
        for name in SWEEPS:
            self._sweep(name, CallOutcome.ANSWERED)
        self._reconcile(CallOutcome.ANSWERED, 1)
        self._all_goes_well()
        self.laws.check()

    # What rules are made of

    def _ask_for_release(self, claim_id: int) -> bool:
        ask = partial(
            claim_transitions.request_release, claim_id=claim_id, reason="test", now=self.world.now, who="test"
        )
        return transaction(self.engine, ask)

    def _step(self, name: str, claim_id: int, outcome: CallOutcome, at: int) -> None:
        message = Message(f"ostler.{name}", {"claim_id": claim_id})
        self.world.begin(message.name, self.world.runs(message), outcome, at=at)

    def _all_goes_well(self, but: Draw | None = None, *, only: str | None = None) -> None:
        cluster, github = self.world.cluster, self.world.github
        if but is not None:
            self._reconcile(CallOutcome.ANSWERED, 1)
            self._connect()
            self._sweep("persistent_runners", CallOutcome.ANSWERED)
            for name in POOLS:
                # A persistent runner stays, so its pool has enough with two.
                has = [pod for pod in cluster.pods.values() if pod.alive and pod.pool == name]
                if not any(pod.polls for pod in has) and not (name == "static" and len(has) > 1):
                    self._add_pod(name)
            if sum(job.status == "queued" for job in github.jobs.values()) < 2:
                github.add_job(sorted(ACCOUNTS)[but.other % 2], LABELS[but.pick % 3], waiting=False)
        self._deliver_webhooks()
        self._poll([pod for pod in self.world.cluster.pods.values() if pod.polls], WEBS[0], CallOutcome.ANSWERED, 1)
        for number in range(len(self.world.messages) + 8):
            waiting = [message for message in self.world.messages if only in {None, message.name}]
            if waiting:
                message = waiting[0]
                self.world.messages.remove(message)
                if but is not None and only is None and number == but.pick % 8:
                    self._run(message, but)
                else:
                    self.world.begin(message.name, self.world.runs(message), CallOutcome.ANSWERED)
        if but is None or not (but.flag or only):
            self._answer_held(WEBS[0], CallOutcome.ANSWERED, 1)

    def _run(self, message: Message, draw: Draw) -> None:
        if draw.outcome is CallOutcome.HELD and draw.other % 2:
            self.world.stop_before(message.name, self.world.runs(message), at=draw.at)
        else:
            self.world.begin(message.name, self.world.runs(message), draw.outcome, at=draw.at)

    def _deleting(self, pod: Pod) -> None:
        claims = self.world.rows(
            "SELECT 1 FROM claims WHERE pod_uid = :uid AND purpose = 'retire' AND ended_at IS NULL", uid=pod.uid
        )
        assert claims, f"{pod.name} is deleted without a retire claim"
        for jit in pod.jits:
            runner = self.world.github.named(self.world.github.name_of(jit))
            assert runner is None or runner.job is None, f"{pod.name} is deleted while its runner is busy"

    def _add_pod(self, name: str) -> None:
        if name not in self.pools:
            return
        self.numbers += 1
        self.world.cluster.add_pod(name, number=self.numbers, now=self.world.now)
        self._reconcile(CallOutcome.ANSWERED, 1)

    def _reconcile(self, outcome: CallOutcome, at: int) -> None:
        # The newest first: new Pods belong to it, not to a deleted pool of the same name.
        for row in reversed(transaction(self.engine, lambda db: pool_mirror.mirrored_pools(db, namespace=NAMESPACE))):
            message = Message("ostler.reconcile", {"pool_id": row.id})
            self.world.begin(message.name, self.world.runs(message), outcome, at=at)

    def _sweep(self, name: str, outcome: CallOutcome, at: int = 1) -> None:
        message = Message(f"ostler.{name}", {})
        self.world.begin(message.name, self.world.runs(message), outcome, at=at)

    def _mirror(self) -> None:
        changed = False
        for pool in self.pools.values():
            changed |= transaction(self.engine, partial(mirror_pool, pool=pool, now=self.world.now))
        kept = {pool.uid for pool in self.pools.values()}
        for row in transaction(self.engine, lambda db: pool_mirror.live_pools(db, namespace=NAMESPACE)):
            if row.uid not in kept:
                changed = True
                transaction(self.engine, partial(pool_mirror.end_pool, pool_id=row.id, now=self.world.now))
        if changed:
            self.world.send(REMATCH)
            self._reconcile(CallOutcome.ANSWERED, 1)  # moves the jobs of changed pools

    def _budget(self, account: int, count: int) -> None:
        with self.engine.begin() as db:
            db.execute(
                text("UPDATE accounts SET budget_count = :count WHERE id = :id"), {"count": count, "id": account}
            )

    def _intake(self, hooks: list[tuple[str, WorkflowJobEvent]]) -> None:
        received = [intake.Received(guid, event) for guid, event in hooks]
        applied = transaction(self.engine, lambda db: intake.apply(db, received, budget=BUDGET, now=self.world.now))
        for pool_id in sorted(applied.wakes):
            self.world.wake(pool_id)
        for claim_id in applied.releases:
            self.world.send(RELEASE, claim_id=claim_id)

    def _deliver_webhooks(self) -> None:
        while self.world.github.webhooks:
            self._intake([self.world.github.webhooks.pop(0)])

    def _poll(self, pods: Sequence[Pod], web: str, outcome: CallOutcome, at: int) -> None:
        """Let Pods poll. A minted JIT is handed over at once, and an answer that ends a poller ends it."""
        for pod in pods:
            pod.poll_no += 1
        polls = [
            offers.Polling(
                pod_uid=pod.uid,
                namespace=NAMESPACE,
                pod_name=pod.name,
                poll_id=f"{pod.uid}-{pod.poll_no}",
                until=later(self.world.now, 60),
                again=False,
            )
            for pod in pods
        ]

        def offer(db: Connection) -> list[offers.PolledPod]:
            offers.beat(db, web_id=web, now=self.world.now)
            return offers.offer(db, polls, web_id=web, now=self.world.now)

        by_uid = {pod.uid: pod for pod in pods}
        for polled in transaction(self.engine, offer):
            pod = by_uid[polled.pod_uid]
            if polled.wakes and polled.pool_id is not None:
                self.world.wake(polled.pool_id)
            said = answer(polled.facts)
            if said.claim_id is not None:
                again = said.verdict is Verdict.DELIVER_AGAIN
                body = self.world.hands_over(said.claim_id, pod.uid, f"{pod.uid}-{pod.poll_no}", again=again)
                self.world.begin(f"poll of {pod.name}", body, outcome, at=at)
            elif said.verdict in {Verdict.REPLACE, Verdict.REFUSE}:
                pod.poller_exit = 10 if said.verdict is Verdict.REPLACE else 1
                pod.phase = "Succeeded"

    def _answer_held(self, web: str, outcome: CallOutcome, at: int) -> None:
        minted, _ = transaction(self.engine, lambda db: offers.unanswered(db, web_id=web))
        for offer in minted:
            pod = self.world.cluster.by_uid(offer.pod_uid)
            if pod is not None and pod.polls and offer.poll_id == f"{pod.uid}-{pod.poll_no}":
                body = self.world.hands_over(offer.claim_id, pod.uid, offer.poll_id, again=False)
                self.world.begin(f"held poll of {pod.name}", body, outcome, at=at)

    def _connect(self) -> None:
        for pod in self.world.cluster.pods.values():
            if not pod.alive or not pod.jits:
                continue
            github, jit = self.world.github, pod.jits[0]
            runner = github.named(github.name_of(jit))
            if runner is None and self._registers(pod):
                runner = github.register(jit)
            if runner is None:
                pod.phase = "Failed"
            else:
                runner.online = pod.registered = True

    def _registers(self, pod: Pod) -> bool:
        if pod.registered or pod.given_at is None or not is_registration(pod.jits[0]):
            return False
        return (self.world.now - pod.given_at).total_seconds() < REGISTERS_FOR

    def _runners_of(self, pod: Pod) -> set[str]:
        return {self.world.github.name_of(jit) for jit in pod.jits}

    def _end(self, job_id: int) -> None:
        runner = self.world.github.finish(job_id, "success")
        for pod in self.world.cluster.pods.values():
            if runner is not None and not runner.persistent and runner.name in self._runners_of(pod):
                pod.phase = "Succeeded"

    def _apply_late(self, pick: int) -> None:
        late = self.world.cluster.late
        try:
            late.pop(pick % len(late))()
        except Exception as error:
            if isinstance(error, AssertionError):
                raise

"""Invariants that are checked after every rule: the laws, read from the real tables and the cluster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import text

from rules.claims.machines import Machine, allowed
from tests.integration.stateful.cluster import Pod
from tests.integration.stateful.world import World

_USAGE = """
    SELECT a.id, a.budget_count, a.budget_vcpu, a.budget_memory, count(u.vcpu) AS used,
           coalesce(sum(u.vcpu), 0) AS vcpu, coalesce(sum(u.memory), 0) AS memory
    FROM accounts a LEFT JOIN (
        SELECT account_id, vcpu, memory FROM claims WHERE ended_at IS NULL AND purpose = 'job'
        UNION ALL SELECT account_id, vcpu, memory FROM executions e WHERE ended_at IS NULL AND NOT EXISTS (
            SELECT FROM claims c WHERE c.id = e.claim_id AND c.ended_at IS NULL AND c.purpose = 'job')
        UNION ALL SELECT c.account_id, c.vcpu, c.memory FROM claims c JOIN runner_pods p ON p.id = c.runner_pod_id
        WHERE c.purpose = 'job' AND c.ended_at IS NOT NULL AND c.delivered_at IS NOT NULL
          AND p.terminal_at IS NULL AND p.gone_at IS NULL
          AND NOT EXISTS (SELECT FROM executions e WHERE e.claim_id = c.id AND e.ended_at IS NULL)
    ) u ON u.account_id = a.id GROUP BY a.id
"""


class Laws:
    """Facts that must not change from one check to the next."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._events: dict[int, list[Any]] = defaultdict(list)
        self._last_event = 0
        self._claims_seen = 0
        self._completed: set[int] = set()

    def check(self) -> None:
        """Raise AssertionError for the first broken law."""
        with self._world.engine.connect() as db:
            claims = db.execute(text("SELECT * FROM claims ORDER BY id")).all()
            jobs = db.execute(text("SELECT id, state, hold_reason FROM jobs")).all()
            executions = db.execute(text("SELECT job_id FROM executions WHERE ended_at IS NULL")).scalars().all()
            events = db.execute(
                text("SELECT * FROM claim_events WHERE id > :last ORDER BY id"), {"last": self._last_event}
            ).all()
            inserted = {row.account_id for row in claims if row.id > self._claims_seen and row.purpose == "job"}
            usage = db.execute(text(_USAGE)).all() if inserted else []
        for event in events:
            self._events[event.claim_id].append(event)
            self._last_event = event.id
        self._claims_seen = max((row.id for row in claims), default=self._claims_seen)
        live = [row for row in claims if row.ended_at is None]
        _one_claim(live)
        _budgets([row for row in usage if row.id in inserted])
        _nothing_lost(live, jobs, set(executions))
        self._order(claims)
        self._stick(jobs)
        _used_pods(claims)
        self._pods(claims, live)
        self._registered(claims)

    def restless(self) -> list[str]:
        """Return one line for each thing that still must happen although nothing fails any more.

        A runner that a late call registered stays: the sweep `orphaned_runners` removes it, and does not run here.
        """
        claims = self._world.rows(
            "SELECT id, purpose, state, stamp, online_at IS NOT NULL AS online FROM claims WHERE ended_at IS NULL"
        )
        jobs = self._world.rows("SELECT id, state, hold_reason FROM jobs WHERE state <> 'completed'")
        return [
            *(f"claim {row.id} ({row.purpose}) is {row.state}" for row in claims if not _idle(row)),
            *(f"job {row.id} is {row.state} ({row.hold_reason})" for row in jobs),
            *(
                f"job {job_id} is {job.status} at GitHub"
                for job_id, job in self._world.github.jobs.items()
                if job.status != "completed"
            ),
        ]

    def _order(self, claims: Sequence[Any]) -> None:
        """L5: every claim followed the table: stamped (or given up) before it was minted, and delivered after that."""
        for claim in claims:
            state, stamp, stamped = None, "none", False
            for event in self._events[claim.id]:
                transition = allowed(event.transition)
                if transition.machine is Machine.STAMP:
                    assert event.from_state == stamp or event.from_state in transition.sources, f"{event}"
                    stamp, stamped = event.to_state, True
                    continue
                assert event.from_state == state, f"claim {claim.id}: {event.transition} left {state}"
                if state is not None:
                    assert state in transition.sources, f"claim {claim.id}: {event.transition} from {state}"
                assert event.transition != "mint" or stamped, f"claim {claim.id} was minted before its stamp"
                state = event.to_state
            assert claim.state == state, f"claim {claim.id} is {claim.state}, its events say {state}"
            if claim.jit is not None:
                assert claim.state in {"minted", "delivered", "releasing"}, f"claim {claim.id} keeps its JIT"

    def _stick(self, jobs: Sequence[Any]) -> None:
        completed = {job.id for job in jobs if job.state == "completed"}
        assert self._completed <= completed, f"revived: {self._completed - completed}"
        self._completed = completed

    def _pods(self, claims: Sequence[Any], live: Sequence[Any]) -> None:
        """The cluster agrees with the rows: `delivered` came first, and no late stamp or un-stamp won."""
        by_pod = {claim.pod_uid: claim for claim in live}
        delivered = {claim.pod_uid for claim in claims if claim.delivered_at is not None}
        for pod in self._world.cluster.pods.values():
            assert len(pod.jits) <= 1, f"{pod.name} was handed two JITs"
            if pod.jits:
                assert pod.uid in delivered, f"{pod.name} has a JIT that was never committed as delivered"
            if pod.alive:
                _stamped(pod, by_pod.get(pod.uid), ever_delivered=pod.uid in delivered)

    def _registered(self, claims: Sequence[Any]) -> None:
        """L3: the claim of a persistent runner ends after GitHub has removed the runner, so never during a job."""
        github, cluster = self._world.github, self._world.cluster
        for claim in claims:
            if claim.purpose == "register":
                assert claim.job_id is None, f"claim {claim.id} has a job, and GitHub gives its runner jobs"
                pod = cluster.by_uid(claim.pod_uid)
                runner = github.named(claim.runner_name) if claim.runner_name else None
                if claim.ended_at is not None and pod is not None and pod.alive:
                    assert runner is None, f"claim {claim.id} has ended, and its runner is still registered"


def _idle(claim: Any) -> bool:
    """Return True if a claim is that of a persistent runner that waits for its next job."""
    return claim.purpose == "register" and claim.state in {"delivered", "executing"} and claim.online


def _one_claim(live: Sequence[Any]) -> None:
    """L1: one live claim per Pod and per job."""
    pods = [claim.pod_uid for claim in live]
    jobs = [claim.job_id for claim in live if claim.job_id is not None]
    assert len(pods) == len(set(pods)), f"two live claims on a Pod: {pods}"
    assert len(jobs) == len(set(jobs)), f"two live claims for a job: {jobs}"


def _budgets(usage: Sequence[Any]) -> None:
    """L2: the account of a claim that was just inserted is within its current budget."""
    for row in usage:
        fits = row.used <= row.budget_count and row.vcpu <= row.budget_vcpu and row.memory <= row.budget_memory
        assert fits, f"account {row.id} is over its budget: {row}"


def _nothing_lost(live: Sequence[Any], jobs: Sequence[Any], executions: set[int]) -> None:
    """L4: every job can continue, and for every live claim a process continues it."""
    claimed = {claim.job_id for claim in live}
    for job in jobs:
        if job.state == "claimed":
            assert job.id in claimed, f"job {job.id} is claimed by nobody"
        elif job.state == "running":
            known = job.id in executions or job.id in claimed or job.hold_reason == "ask_github"
            assert known, f"job {job.id} runs nowhere"
    for claim in live:
        if claim.state not in {"delivered", "executing"}:
            assert claim.due_at is not None, f"claim {claim.id} ({claim.state}) is nobody's"


def _used_pods(claims: Sequence[Any]) -> None:
    """A Pod that ever got a JIT or a registration gets no further one."""
    used: dict[str, int] = {}
    for claim in claims:
        if claim.purpose != "retire":
            assert claim.pod_uid not in used, f"{claim.pod_uid} was claimed again after claim {used[claim.pod_uid]}"
            if claim.delivered_at is not None:
                used[claim.pod_uid] = claim.id


def _stamped(pod: Pod, claim: Any, *, ever_delivered: bool) -> None:
    if claim is None and not ever_delivered:
        assert pod.owner is None, f"{pod.name} is stamped ({pod.stamp}) and nobody's"
    if claim is not None and claim.purpose != "retire" and claim.stamp == "on" and claim.state != "releasing":
        assert pod.owner == claim.account_id, f"{pod.name} is not stamped ({pod.stamp}), claim {claim.id} believes it"

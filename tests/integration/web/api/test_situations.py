"""Situations in which a job waits or has failed: the API names the step, the cause and a cure.

Each situation is the rows that the product writes in it; the tests of the sweeps, the reconciler and the watch show
that it writes them. The last test compares the situations with the steps and the holds, so that none is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update

from models.schema import metadata
from models.state.claim_leases import WAITS
from ostler.clock import utcnow
from rules.claims.mint_questions import QUOTA_REACHED
from rules.claims.runner_brakes import TOO_OLD
from rules.pools.starts import Trouble
from rules.routing.holds import HoldReason
from rules.token_scopes import TokenScope
from rules.waiting.steps import Result, Step
from tests.integration.models.webhook_rows import add_claim
from tests.integration.web.api.conftest import Stage
from tests.integration.web.api.test_failures_of_others import fail

Arrange = Callable[[Stage, int], None]
JOB, OURS, THEIRS = 100, 7, 8


@pytest.fixture
def pool_id(stage: Stage) -> int:
    stage.account(OURS, "acme")
    stage.account(THEIRS, "globex")
    pool_id = stage.pool()
    stage.job(JOB, pool_id=pool_id, queued_at=utcnow() - timedelta(minutes=7))
    return pool_id


def change(stage: Stage, table: str, row_id: int, **columns: Any) -> None:
    """Change columns of one row."""
    found = metadata.tables[table]
    with stage.engine.begin() as db:
        db.execute(update(found).where(found.c.id == row_id).values(**columns))


def held(reason: HoldReason, detail: str = "", *, until: timedelta | None = None) -> Arrange:
    def arrange(stage: Stage, _pool_id: int) -> None:
        stage.execute(
            "UPDATE jobs SET hold_reason = :reason, hold_detail = :detail, not_before = :until WHERE id = :id",
            id=JOB,
            reason=reason,
            detail=detail,
            until=None if until is None else utcnow() + until,
        )

    return arrange


def of_pool(**columns: Any) -> Arrange:
    """Return an arrangement that changes columns of the pool's row."""

    def arrange(stage: Stage, pool_id: int) -> None:
        change(stage, "pools", pool_id, **columns)

    return arrange


def trouble(kind: Trouble, detail: str) -> Arrange:
    return of_pool(
        start_trouble=kind,
        start_detail=detail,
        failed_starts=3,
        failed_at=utcnow(),
        create_after=utcnow() + timedelta(days=1),
    )


def offered(stage: Stage, pool_id: int) -> None:
    """Let one Pod of the pool poll a live web process."""
    stage.execute("INSERT INTO web_instances (id, started_at, beat_at) VALUES ('web', now(), now() + interval '1 h')")
    stage.execute(
        "INSERT INTO runner_pods (pool_id, namespace, name, uid, attempt_id, template_hash, created_at)"
        " VALUES (:pool, 'runners', 'free-1', 'free-1', 'a', 'h', now())",
        pool=pool_id,
    )
    stage.execute(
        "INSERT INTO offers (pod_uid, pool_id, web_id, poll_id, until)"
        " VALUES ('free-1', :pool, 'web', 'p', now() + interval '1 min')",
        pool=pool_id,
    )


def turn_of_another(stage: Stage, pool_id: int) -> None:
    offered(stage, pool_id)
    stage.job(101, pool_id=pool_id, account_id=THEIRS, queued_at=utcnow() - timedelta(hours=1))
    add_claim(stage.engine, pool_id, None, state="executing", account_id=OURS)


def no_budget(stage: Stage, _pool_id: int) -> None:
    stage.execute("UPDATE accounts SET budget_vcpu = 1000 WHERE id = :id", id=OURS)


def restored(stage: Stage, _pool_id: int) -> None:
    stage.execute("UPDATE epochs SET older_since = now(), why = 'restored'")


def gate_closed(stage: Stage, pool_id: int) -> None:
    of_pool(autoscaled=True, max_replicas=9, replicas=0)(stage, pool_id)
    stage.execute("INSERT INTO gates (upstream, closed_at, why) VALUES ('kubernetes', now(), '9 of 10 calls failed')")


def too_old(stage: Stage, pool_id: int) -> None:
    fail(stage, pool_id, 1, account=OURS, ago=10, why="ended", code=TOO_OLD)


def ended(
    *, state: str = "completed", conclusion: str | None = "failure", end: str = "pod_gone", **columns: Any
) -> Arrange:
    """Return an arrangement in which the job began on a Pod that then ended as the columns say."""

    def arrange(stage: Stage, pool_id: int) -> None:
        claim = add_claim(stage.engine, pool_id, JOB, state="executing", account_id=OURS)
        (pod_id,) = (row.id for row in stage.execute("SELECT runner_pod_id AS id FROM claims WHERE id = :id", id=claim))
        change(stage, "runner_pods", pod_id, **columns)
        stage.execute(
            "UPDATE claims SET state = 'ended', ended_at = now(), end_reason = :end WHERE id = :id", id=claim, end=end
        )
        stage.execute(
            "UPDATE jobs SET state = :state, conclusion = :conclusion, completed_at = now() WHERE id = :id",
            state=state,
            conclusion=conclusion,
            id=JOB,
        )

    return arrange


def claimed(state: str, *, attempt: str | None = None, **columns: Any) -> Arrange:
    """Return an arrangement in which the job has a claim, and its mint an attempt with this outcome."""

    def arrange(stage: Stage, pool_id: int) -> None:
        claim = add_claim(stage.engine, pool_id, JOB, state=state, account_id=OURS)
        change(stage, "claims", claim, **columns)
        stage.execute("UPDATE jobs SET state = 'claimed' WHERE id = :id", id=JOB)
        if attempt is not None:
            stage.execute(
                "INSERT INTO mint_attempts (claim_id, runner_name, outcome, created_at, closed_at) "
                "VALUES (:claim, 'r', :outcome, now(), now())",
                claim=claim,
                outcome=attempt,
            )

    return arrange


FAILING = {
    "call": "POST pods",
    "failures": 3,
    "since": "2026-11-29T12:00:00+00:00",
    "at": "2026-11-29T12:00:00+00:00",
    "words": "failed calling webhook",
}
GATED = {
    "conditions": [
        {
            "type": "Ready",
            "status": "False",
            "reason": "PodsGated",
            "message": "2 Pods wait for the gate kueue/admission",
        }
    ]
}
NOW = utcnow()

SITUATIONS: dict[str, tuple[Arrange, Step | None, str]] = {
    "no pool has the labels": (held(HoldReason.NO_POOL), Step.POOL, "No pool serves the job"),
    "two pools are equal": (held(HoldReason.TWO_POOLS, "pools with the ids 1, 2"), Step.POOL, "equally well"),
    "no pool may serve it": (
        held(HoldReason.NOT_ALLOWED, "pool small: its allowForks is false"),
        Step.POOL,
        "its allowForks is false",
    ),
    "its origin is unknown": (held(HoldReason.ORIGIN_UNKNOWN, "it is unknown"), Step.POOL, "Ostler asks GitHub once"),
    "the account is not allowed": (held(HoldReason.UNKNOWN_ACCOUNT), Step.ACCOUNT, "is not allowed"),
    "the runner group refuses it": (
        held(HoldReason.RUNNER_GROUP, "no group ci", until=timedelta(minutes=1)),
        Step.RUNNER_GROUP,
        "no group ci",
    ),
    "GitHub refused the mint": (
        held(HoldReason.BACKOFF, "403", until=timedelta(minutes=1)),
        Step.BACKOFF,
        "could not get a runner",
    ),
    "its runners ended before it": (
        held(HoldReason.SET_ASIDE, "3 runners ended before it began", until=timedelta(hours=1)),
        Step.BACKOFF,
        "was set aside",
    ),
    "its result is unknown": (held(HoldReason.ASK_GITHUB, "no answer"), Step.ANSWER, "Ostler asks GitHub"),
    "the budget is 0": (held(HoldReason.BUDGET_ZERO), Step.BUDGET, "allows no job at all"),
    "the budget is full": (no_budget, Step.BUDGET, "has no room in its budget"),
    "another account comes first": (turn_of_another, Step.TURN, "jobs that come first"),
    "the image cannot be pulled": (
        trouble(Trouble.IMAGE, "ErrImagePull: not found"),
        Step.POD,
        "cannot pull its image (ErrImagePull: not found)",
    ),
    "no node has room": (trouble(Trouble.UNSCHEDULABLE, "0/3 nodes"), Step.POD, "no node accepts its Pods (0/3 nodes)"),
    "a ResourceQuota is used up": (
        trouble(Trouble.QUOTA, "exceeded quota"),
        Step.POD,
        "ResourceQuota of its namespace",
    ),
    "a start of Pods backs off": (trouble(Trouble.CONTAINER, "exit 1"), Step.POD, "the next Pod is not created before"),
    "a webhook of the cluster fails": (
        of_pool(failing_calls=[FAILING]),
        Step.POD,
        "the API server does not create its Pods",
    ),
    "Pods have a scheduling gate": (of_pool(status=GATED), Step.POD, "wait for the gate kueue"),
    "the pool is paused": (of_pool(paused=True), Step.POD, "the pool is paused"),
    "the gate of Kubernetes is tripped": (gate_closed, Step.POD, "while the gate of Kubernetes is tripped"),
    "the runner is too old": (too_old, Step.RUNNERS, "too old"),
    "the pool drains": (of_pool(draining=True), Step.POOL, "takes no new jobs"),
    "the pool is routed again": (of_pool(rerouting_since=NOW), Step.POOL, "is routing the jobs of the pool again"),
    "Postgres was restored": (restored, Step.RECORDS, "restored to an earlier state"),
    "an environment holds it": (
        lambda stage, _: stage.execute("UPDATE jobs SET state = 'waiting' WHERE id = :id", id=JOB),
        Step.ENVIRONMENT,
        "GitHub holds the job for an environment",
    ),
    "its Pod is not stamped yet": (claimed("claimed", stamp="none"), Step.STAMP, "about to be stamped"),
    "GitHub has not answered the mint": (claimed("claimed", stamp="on"), Step.MINT, "asking GitHub"),
    "GitHub's quota is used up for a while": (
        claimed("claimed", attempt="refused", stamp="on", last_error=WAITS, due_at=NOW + timedelta(minutes=2)),
        Step.MINT,
        "The step waits: GitHub's rate limit is reached",
    ),
    "GitHub's quota is used up for long": (
        held(HoldReason.BACKOFF, QUOTA_REACHED, until=timedelta(minutes=40)),
        Step.BACKOFF,
        "GitHub's rate limit is reached",
    ),
    "the limit of mints is reached": (
        claimed("claimed", stamp="on", last_error=WAITS, due_at=NOW + timedelta(seconds=9)),
        Step.MINT,
        "OSTLER_GITHUB_MINTS_PER_MINUTE is reached",
    ),
    "GitHub has not answered a mint": (
        claimed("claimed", stamp="on", last_error="no answer within 10 s", due_at=NOW + timedelta(seconds=9)),
        Step.MINT,
        "The last try failed: no answer within 10 s",
    ),
    "its Pod has not fetched the JIT": (claimed("minted", stamp="on"), Step.DELIVERY, "has not fetched"),
    "its runner has not begun": (claimed("delivered", stamp="on"), Step.START, "has not reported yet"),
    "GitHub gave its runner another job": (
        claimed("executing", stamp="on"),
        Step.START,
        "the runner of the Pod executes a job",
    ),
    "its claim is released": (claimed("releasing", stamp="on"), Step.RELEASE, "is being released"),
    "a person deleted its Pod": (
        ended(deletion_at=NOW, deleted_first=True, gone_at=NOW),
        None,
        "was deleted",
    ),
    "its Pod was killed for lack of memory": (
        ended(exit_reason="OOMKilled", runner_exit_code=137, terminal_at=NOW),
        None,
        "killed for lack of memory",
    ),
    "its Pod was evicted": (
        ended(exit_reason="Evicted", runner_exit_code=137, terminal_at=NOW),
        None,
        "evicted by the kubelet",
    ),
    "its node was drained": (
        ended(exit_reason="EvictionByEvictionAPI", deletion_at=NOW, deleted_first=True, gone_at=NOW),
        None,
        "evicted through the eviction API, as `kubectl drain` does",
    ),
    "its node was lost": (ended(exit_reason="NodeLost", gone_at=NOW), None, "lost with its node"),
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_api_names_the_cause_of_a_situation(stage: Stage, pool_id: int, name: str) -> None:
    arrange, step, words = SITUATIONS[name]
    arrange(stage, pool_id)

    answer = stage.get(f"/jobs/{JOB}/explanation")

    assert answer.status_code == 200, answer.text
    why = answer.json()
    assert words in why["summary"]
    waits = [each["step"] for each in why["checks"] if each["result"] == Result.WAITS]
    assert waits[:1] == ([] if step is None else [step])
    assert why == stage.get(f"/jobs/{JOB}").json()["why"]


def test_a_webhook_that_was_lost_is_told_as_an_unknown_job(stage: Stage) -> None:
    answer = stage.get("/jobs/4711/explanation")
    assert (answer.status_code, "job" in answer.json()["title"]) == (404, True)
    assert "its webhook was lost: the sweeps redelivery and catch_up find the job" in answer.json()["detail"]


def test_a_drained_pool_and_a_next_try_have_a_time(stage: Stage, pool_id: int) -> None:
    held(HoldReason.BACKOFF, "403", until=timedelta(minutes=1))(stage, pool_id)
    found = stage.get(f"/jobs/{JOB}/explanation").json()
    assert datetime.fromisoformat(found["next_at"]) > utcnow()


def test_the_usual_wait_comes_from_the_jobs_of_the_last_hour_that_the_token_sees(stage: Stage, pool_id: int) -> None:
    for number in range(30):
        began = utcnow() - timedelta(minutes=30)
        owner = OURS if number < 20 else THEIRS
        stage.job(
            200 + number,
            pool_id=pool_id,
            account_id=owner,
            state="completed",
            queued_at=began - timedelta(seconds=10 if owner == OURS else 100),
            completed_at=utcnow() - timedelta(minutes=1),
        )
        stage.execute(
            "INSERT INTO executions (runner_name, account_id, job_id, vcpu, memory, started_at, ended_at) "
            "VALUES (:name, :account, :job, 1, 1, :at, now())",
            name=f"r-{number}",
            account=owner,
            job=200 + number,
            at=began,
        )
    assert stage.get(f"/jobs/{JOB}/explanation").json()["expected"] == {"jobs": 30, "p50": 10.0, "p90": 100.0}
    limited = stage.token(TokenScope.READ, accounts=[OURS])
    answer = stage.client.call("GET", f"/api/v1/jobs/{JOB}/explanation", token=limited)
    assert answer.json()["expected"] == {"jobs": 20, "p50": 10.0, "p90": 10.0}


def test_every_step_and_every_hold_has_a_situation(stage: Stage, pool_id: int) -> None:
    assert {step for _, step, _ in SITUATIONS.values() if step is not None} == set(Step)
    found = set()
    for arrange, _, _ in SITUATIONS.values():
        if arrange.__qualname__.startswith("held."):
            arrange(stage, pool_id)
            found |= {row.hold_reason for row in stage.execute("SELECT hold_reason FROM jobs WHERE id = :id", id=JOB)}
    assert found == set(HoldReason)

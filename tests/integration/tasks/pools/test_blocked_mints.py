"""A pool whose mints back off reports in its condition the account or group, GitHub's words, and the next try."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import Connection, event

from lab.chaos.fleets import CAUSES
from models.db.engine import transaction
from models.pools.blocked_mints import blocked_mints
from models.upstream import backoffs
from ostler.clock import utcnow
from rules.claims.mint_questions import group_key
from tasks.pools.reconcile import reconcile
from tests.integration.tasks.conftest import Stage
from tests.integration.tasks.pools.fleet import condition, kept, polls, the_pool

WORDS = "GitHub answers 403 to a mint: Resource not accessible by integration"


def refused(stage: Stage, *, kind: str = "account", key: str = "1") -> None:
    """Record the refusal of a mint."""

    def body(db: Connection) -> None:
        backoffs.record_failure(db, kind=kind, key=key, reason=WORDS, now=utcnow())

    transaction(stage.rt.engine, body)


@pytest.fixture
def pool(stage: Stage) -> Stage:
    """A pool with a Pod that polls and a queued job of the account `acme`."""
    stage.pool(replicas=1)
    kept(stage)
    polls(stage)
    stage.job(11, state="queued")
    return stage


def test_refused_mints_degrade_their_pool_with_githubs_words(pool: Stage) -> None:
    assert condition(pool, "Degraded")["reason"] == "AsExpected"
    refused(pool)

    found = condition(pool, "Degraded")

    assert (found["status"], found["reason"]) == ("True", "MintsRefused")
    assert f"1 job of account acme waits: account 1: {WORDS}; queued at 20" in found["message"]
    assert "next try at 20" in found["message"]
    assert re.search(CAUSES["refused"].reported, found["message"])
    assert condition(pool, "Ready")["status"] == "True", "its Pods serve other accounts"


def test_pool_with_one_failing_account_says_that_others_go_on(pool: Stage) -> None:
    pool.rows("INSERT INTO accounts VALUES (2, 'other', 1, 10, 100000, 100000, '[]', now())")
    for job_id in (12, 13):
        pool.job(job_id, state="queued")
    pool.rows("UPDATE jobs SET account_id = 2, installation_id = 502 WHERE id = 13")
    refused(pool)

    message = condition(pool, "Degraded")["message"]

    assert message.startswith("2 jobs of account acme wait: ")
    assert message.endswith("; not affected: 0 Pods with a job and 1 queued job")


@pytest.mark.parametrize("kind", ["runner_group", "repository", "installation"])
def test_every_kind_of_backoff_is_told(pool: Stage, kind: str) -> None:
    keys = {"runner_group": group_key(501, 7), "repository": "acme/shop", "installation": "501"}
    pool.rows("UPDATE pools SET runner_group_id = 7, runner_group_name = NULL")
    refused(pool, kind=kind, key=keys[kind])
    now = utcnow()

    found = transaction(pool.rt.engine, lambda db: blocked_mints(db, the_pool(pool).id, now=now))

    assert found is not None
    assert (found.kind, found.jobs, found.account) == (kind, 1, "acme")
    assert found.reason == ("MintsBackOff" if kind == "installation" else "MintsRefused")
    assert f"next try {'by' if kind == 'installation' else 'at'} " in found.describe(busy=0, now=now)


def test_backoff_of_another_pool_or_without_jobs_is_not_told(pool: Stage) -> None:
    refused(pool, kind="runner_group", key=group_key(501, 9))
    refused(pool, key="2")
    assert condition(pool, "Degraded")["reason"] == "AsExpected"


@pytest.mark.parametrize("state", ["queued", "claimed"])
def test_condition_stays_while_the_only_job_is_the_probe(pool: Stage, state: str) -> None:
    refused(pool)
    before = condition(pool, "Degraded")
    pool.rows("UPDATE jobs SET hold_reason = NULL, hold_detail = NULL, not_before = NULL, state = :state", state=state)
    pool.rows("UPDATE backoffs SET probe_job_id = 11, not_before = now() - interval '1 s'")

    found = condition(pool, "Degraded")

    assert found["reason"] == "MintsRefused"
    assert found["lastTransitionTime"] == before["lastTransitionTime"]
    assert "the next try is due now" in found["message"]


def test_condition_ends_with_the_first_mint_that_succeeds(pool: Stage) -> None:
    refused(pool)
    assert condition(pool, "Degraded")["status"] == "True"
    transaction(pool.rt.engine, lambda db: backoffs.delete(db, [("account", "1")]))
    assert condition(pool, "Degraded")["reason"] == "AsExpected"


def test_backoffs_cost_a_reconcile_one_statement(pool: Stage) -> None:
    refused(pool)
    refused(pool, kind="repository", key="acme/shop")
    asked: list[str] = []

    def note(*args: object) -> None:
        asked.append(str(args[2]))

    event.listen(pool.rt.engine, "before_cursor_execute", note)
    try:
        reconcile.run(pool_id=the_pool(pool).id)
    finally:
        event.remove(pool.rt.engine, "before_cursor_execute", note)
    assert len([each for each in asked if "FROM backoffs" in each]) == 1
    assert "; 1 more backoff delays jobs" in condition(pool, "Degraded")["message"]


def test_missing_runner_group_is_named_in_the_condition_until_no_job_waits_for_it(pool: Stage) -> None:
    pool.job(12, state="queued")
    missing = "runner group 'gpu' does not exist in organisation acme"
    pool.rows(
        """
        UPDATE jobs SET hold_reason = 'runner_group', hold_detail = :why, not_before = now() + interval '10 min'
        WHERE id = 11
        """,
        why=missing,
    )

    found = condition(pool, "Degraded")

    assert (found["status"], found["reason"]) == ("True", "MintsRefused")
    assert found["message"].startswith(f"1 job of account acme waits: {missing}; queued at 20")
    assert "next try at 20" in found["message"]
    assert found["message"].endswith("not affected: 0 Pods with a job and 1 queued job")
    pool.rows("UPDATE jobs SET hold_reason = NULL, hold_detail = NULL, not_before = NULL")
    assert condition(pool, "Degraded")["reason"] == "AsExpected"

"""Choice of a Pod for a job: spares before warm Pods, the current template first, and only Pods with a live web."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from tests.database import Database
from tests.integration.matching.stage import Stage, make_stage


@pytest.fixture
def stage(database: Database) -> Stage:
    return make_stage(database)


def _wants_pods(stage: Stage, pool: int) -> bool:
    return bool(stage.rows("SELECT wants_pods FROM pools WHERE id = :id", id=pool)[0].wants_pods)


def _pods(stage: Stage) -> list[str]:
    return [row.pod_uid for row in stage.rows("SELECT pod_uid FROM claims WHERE ended_at IS NULL ORDER BY id")]


def test_a_spare_takes_the_next_job_before_any_warm_pod_and_without_a_mint(stage: Stage) -> None:
    pool, account = stage.pool(), stage.account(1)
    job = stage.job(account, pool)
    spare = stage.spare(account, pool)
    with stage.engine.begin() as db:
        db.execute(text("UPDATE claims SET runner_absent_at = now() - interval '1 h', runner_idle_at = now()"))
    stage.pod(pool)
    matched = stage.match(pool)
    assert (list(matched.claims), matched.to_spares) == ([], 1)
    claim = stage.rows("SELECT * FROM claims")[0]
    assert (claim.id, claim.job_id, claim.state, claim.spare_since) == (spare, job, "delivered", None)
    assert (claim.runner_absent_at, claim.runner_idle_at) == (None, None)  # checks it as a spare
    assert stage.rows("SELECT state FROM jobs WHERE id = :id", id=job)[0].state == "claimed"


def test_a_spare_serves_an_account_whose_budget_is_full(stage: Stage) -> None:
    pool, account = stage.pool(), stage.account(1, count=1)
    job = stage.job(account, pool)
    stage.spare(account, pool)
    stage.match(pool)
    assert stage.claimed() == [job]


@pytest.mark.parametrize("other", ["account", "scope", "pool", "old"])
def test_a_spare_serves_only_its_own_account_scope_and_pool_and_only_while_young(stage: Stage, other: str) -> None:
    pool, account = stage.pool(), stage.account(1)
    stage.account(2)
    job = stage.job(account, pool)
    stage.spare(
        2 if other == "account" else account,
        stage.pool() if other == "pool" else pool,
        scope="repos/org-1/app" if other == "scope" else None,
        age=stage.settings.timings.spare_after + 1 if other == "old" else 10,
    )
    matched = stage.match(pool)
    assert matched.to_spares == 0
    stage.pod(pool)
    stage.match(pool)
    assert stage.claimed() == [job]


@pytest.mark.parametrize(("repository", "serves"), [(5, 1), (6, 0), (None, 0)])
def test_a_spare_serves_no_repository_that_took_the_name_of_its_own(
    stage: Stage, repository: int | None, serves: int
) -> None:
    pool, account = stage.pool(), stage.account(1)
    stage.job(account, pool, scope="repos/org-1/app")
    stage.spare(account, pool, scope="repos/org-1/app")
    with stage.engine.begin() as db:
        db.execute(text("UPDATE jobs SET repository_id = 5"))
        db.execute(text("UPDATE claims SET repository_id = :id"), {"id": repository})

    assert stage.match(pool).to_spares == serves


@pytest.mark.parametrize(("scope", "kept"), [("repos/org-1/app", 5), ("orgs/org-1", None)])
def test_a_claim_keeps_the_id_of_the_repository_that_its_scope_is(stage: Stage, scope: str, kept: int | None) -> None:
    pool, account = stage.pool(), stage.account(1)
    job = stage.job(account, pool, scope=scope)
    with stage.engine.begin() as db:
        db.execute(text("UPDATE jobs SET repository_id = 5"))
    stage.pod(pool)

    stage.match(pool)

    assert [(row.job_id, row.repository_id) for row in stage.rows("SELECT * FROM claims")] == [(job, kept)]


@pytest.mark.parametrize("ago", [16, 3600])
def test_offers_of_a_web_process_that_stopped_beating_are_ignored(stage: Stage, ago: float) -> None:
    pool, account = stage.pool(), stage.account(1)
    stage.beats("dead", ago=ago)
    stage.job(account, pool)
    stage.pod(pool, web="dead")
    stage.pod(pool, web="never seen")
    stage.match(pool)
    assert stage.claimed() == []
    assert _wants_pods(stage, pool)


def test_an_offer_that_ran_out_is_ignored(stage: Stage) -> None:
    pool, account = stage.pool(), stage.account(1)
    stage.job(account, pool)
    stage.pod(pool)
    with stage.engine.begin() as db:
        db.execute(text("UPDATE offers SET until = until - interval '1 minute'"))
    stage.match(pool)
    assert stage.claimed() == []


def test_a_pod_that_ever_had_a_jit_is_not_claimed_again(stage: Stage) -> None:
    pool, account = stage.pool(), stage.account(1)
    stage.job(account, pool)
    uid = stage.pod(pool)
    stage.match(pool)
    stage.job(account, pool)
    with stage.engine.begin() as db:
        db.execute(text("UPDATE claims SET state = 'ended', ended_at = changed_at, delivered_at = changed_at"))
    stage.match(pool)
    assert stage.claimed() == []
    with stage.engine.begin() as db:
        db.execute(text("UPDATE claims SET delivered_at = NULL WHERE pod_uid = :uid"), {"uid": uid})
    stage.match(pool)
    assert len(stage.claimed()) == 1, "one that never left us makes the Pod warm again"


def test_pods_of_the_current_template_come_first(stage: Stage) -> None:
    pool, account = stage.pool(template="new"), stage.account(1)
    old = [stage.pod(pool, template="old") for _ in range(2)]
    new = [stage.pod(pool, template="new") for _ in range(2)]
    for _ in range(3):
        stage.job(account, pool)
    stage.match(pool)
    assert set(_pods(stage)) == {*new, old[0]}


def test_wants_pods_says_whether_jobs_were_left_without_pods(stage: Stage) -> None:
    pool, account = stage.pool(), stage.account(1)
    for _ in range(2):
        stage.job(account, pool)
    stage.pod(pool)
    first = stage.match(pool)
    assert _wants_pods(stage, pool)
    assert first.again, "a poll that came before the flag did not wake us"
    assert not stage.match(pool).again, "no news, no further run"
    stage.pod(pool)
    stage.match(pool)
    stage.match(pool)
    assert not _wants_pods(stage, pool)


def test_an_autoscaled_pool_tells_when_jobs_were_left_without_pods(stage: Stage) -> None:
    pool, by_hand, account = stage.pool(autoscaled=True), stage.pool(), stage.account(1)
    stage.job(account, by_hand)
    stage.job(account, pool)
    assert not stage.match(by_hand).short
    assert stage.match(pool).short
    assert stage.match(pool).short, "more may wait by now"
    stage.pod(pool)
    assert not stage.match(pool).short


def test_a_capped_account_asks_for_no_pods(stage: Stage) -> None:
    pool, account = stage.pool(autoscaled=True), stage.account(1, count=1)
    for _ in range(3):
        stage.job(account, pool)
    stage.pod(pool)
    stage.match(pool)
    assert not stage.match(pool).short


@pytest.mark.parametrize("column", ["draining = true", "deleted_at = now()"])
def test_a_pool_that_takes_no_new_jobs_is_not_matched(stage: Stage, column: str) -> None:
    pool, account = stage.pool(), stage.account(1)
    stage.job(account, pool)
    stage.pod(pool)
    with stage.engine.begin() as db:
        db.execute(text(f"UPDATE pools SET {column}"))  # noqa: S608
    stage.match(pool)
    assert stage.claimed() == []


def test_batches_of_a_run_follow_one_another_until_nothing_is_left(database: Database) -> None:
    stage = make_stage(database, match_batch=2)
    pool, account = stage.pool(), stage.account(1)
    for _ in range(5):
        stage.job(account, pool)
        stage.pod(pool)
    sizes = [len(stage.match(pool).claims) for _ in range(4)]
    assert sizes == [2, 2, 1, 0]

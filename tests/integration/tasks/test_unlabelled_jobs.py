"""Jobs without labels: one pool serves them, and a job that GitHub gives to no runner costs the pool nothing."""

from __future__ import annotations

from typing import Any

from models.claims import runner_failures
from models.db.engine import transaction
from models.pools.blocked_mints import blocked_mints
from models.pools.pools import routes
from ostler.clock import utcnow
from rules.routing.holds import HoldReason
from tasks.sweeps.rematch import rematch
from tasks.sweeps.unused_runners import unused_runners
from tests.integration.tasks.conftest import RUNNER, Stage, StubGitHub
from tests.integration.tasks.pools.fleet import condition, kept, new_tick, spec


def unlabelled(stage: Stage, number: int = 7, *, state: str = "claimed") -> None:
    stage.job(number, state=state)
    stage.rows("UPDATE jobs SET labels = '{}' WHERE id = :id", id=number)


def served(stage: Stage) -> set[str]:
    return {each.name for each in transaction(stage.rt.engine, routes) if each.serves_unlabelled}


def test_a_second_pool_is_refused_by_name_and_follows_when_the_first_gives_up(stage: Stage) -> None:
    stage.pool("first", replicas=1, serveUnlabelled=True)
    kept(stage)
    stage.pool("second", replicas=1, serveUnlabelled=True)
    stage.pool("third", replicas=1, serveUnlabelled=True, allowedRepositories=["globex/*"])
    kept(stage)
    assert served(stage) == {"first"}
    refused = condition(stage, "Degraded", "second")
    assert refused["status"] == "True"
    assert "pool first already serves the jobs without labels" in refused["message"]
    assert {each.pool for each in stage.pods().values()} == {"first"}

    spec(stage, "first", serveUnlabelled=False)
    for _ in range(2):
        kept(stage)
        new_tick(stage)
    # Of the two that remain, the later one is refused.
    assert served(stage) == {"second"}
    assert condition(stage, "Degraded", "second")["status"] == "False"
    assert "pool second already" in condition(stage, "Degraded", "third")["message"]


def test_pool_that_was_created_again_is_not_refused_because_of_its_old_row(stage: Stage) -> None:
    stage.pool("first", replicas=1, serveUnlabelled=True)
    kept(stage)
    # The object was deleted with its finalizer removed by hand, so its row is neither draining nor deleted.
    stage.rows("UPDATE pools SET uid = 'of-the-old-object' WHERE name = 'first'")
    new_tick(stage)
    kept(stage)
    assert served(stage) == {"first"}
    assert condition(stage, "Degraded", "first")["status"] == "False"


def not_given(stage: Stage, pod: str, github: StubGitHub, *, age: float = 130) -> Any:
    """Let a runner be idle for `age` seconds while its job without labels is queued, and return the claim."""
    unlabelled(stage)
    claim = stage.claim(pod, job_id=7, state="delivered", age=age, runner=RUNNER)
    github.runner = "idle"
    unused_runners.run()
    stage.released()
    return stage.see(claim)


def test_job_that_no_runner_gets_frees_its_pod_and_brakes_nothing(stage: Stage, pod: str, github: StubGitHub) -> None:
    stage.rows("UPDATE pools SET runner_group_name = 'builders'")
    after = not_given(stage, pod, github)
    assert (after.state, after.end_reason, after.job_state) == ("ended", "never_started", "queued")
    assert after.hold_reason == HoldReason.RUNNER_GROUP
    (job,) = stage.rows("SELECT hold_detail, not_before > now() AS waits FROM jobs")
    assert "runner group builders, and the workflow probably names another group" in job.hold_detail
    assert job.waits
    assert github.deleted == [77]
    assert stage.rows("SELECT 1 FROM claims WHERE purpose = 'retire'")
    assert not transaction(stage.rt.engine, runner_failures.brakes)
    assert stage.rows("SELECT 1 FROM runner_failures") == []
    (pool,) = stage.rows("SELECT id FROM pools")
    assert transaction(stage.rt.engine, lambda db: blocked_mints(db, pool.id, now=utcnow())) is None


def test_young_claim_of_a_job_without_labels_waits(stage: Stage, pod: str, github: StubGitHub) -> None:
    assert not_given(stage, pod, github, age=110).state == "delivered"


def test_another_group_in_the_pool_continues_the_job(stage: Stage, pod: str, github: StubGitHub) -> None:
    spec(stage, serveUnlabelled=True)
    kept(stage)
    not_given(stage, pod, github)
    rematch.run()
    assert stage.rows("SELECT hold_reason FROM jobs")[0].hold_reason == HoldReason.RUNNER_GROUP
    spec(stage, serveUnlabelled=True, runnerGroup=5)
    kept(stage)
    rematch.run()
    (job,) = stage.rows("SELECT hold_detail, not_before FROM jobs")
    assert "probably names another group" not in (job.hold_detail or "")

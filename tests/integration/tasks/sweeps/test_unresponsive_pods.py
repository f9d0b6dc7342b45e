"""Pods that do not poll are retired, a few at a time, and only if their silence proves something about them."""

from __future__ import annotations

import pytest

from rules.sweeps.orphans import judge_unresponsive
from tasks.pools.mirror_pools import pools
from tasks.pools.reconcile import reconcile
from tasks.sweeps import unresponsive_pods as module
from tasks.sweeps.unresponsive_pods import unresponsive_pods
from tests.integration.tasks.conftest import RUNNER, Stage, StubGitHub

pytestmark = pytest.mark.usefixtures("github")


def fill(stage: Stage, *, replicas: int) -> None:
    stage.pool(replicas=replicas)
    pools.run()
    for message in stage.outbox.take("ostler.reconcile"):
        reconcile.run(**message)
    stage.rows("UPDATE runner_pods SET first_polled_at = created_at")
    stage.outbox.sent.clear()


def beat(stage: Stage) -> None:
    """Record heartbeats of a web process for the past and the next hour, because the test might take long."""
    stage.rows("""
        INSERT INTO web_instances VALUES ('w', now() - interval '1 hour', now() + interval '1 hour')
        ON CONFLICT DO NOTHING
    """)


def retirements(stage: Stage) -> list[str]:
    rows = stage.rows("SELECT release_reason FROM claims WHERE purpose = 'retire' ORDER BY id")
    return [row.release_reason for row in rows]


def test_pods_that_do_not_poll_go_a_few_in_a_tick_however_many_pools_they_are_of(stage: Stage) -> None:
    fill(stage, replicas=7)
    stage.rows("UPDATE pools SET start_timeout = 0")
    beat(stage)
    unresponsive_pods.run()
    assert retirements(stage) == ["the Pod does not poll"] * 5
    assert len(stage.outbox.take("ostler.retire")) == 5
    (run,) = stage.rows("SELECT * FROM sweep_runs")
    assert (run.listed, run.found, run.repaired, run.overflow) == (7, 7, 5, 2)
    for row in stage.rows("SELECT * FROM repairs"):
        assert (row.kills, row.before, row.after, row.expects) == (True, "unresponsive", "retiring", "pod_gone")
        assert [each.partition(":")[0] for each in row.witnesses] == ["postgres", "kubernetes"]


def test_the_silence_of_pods_says_nothing_while_no_web_process_beats(stage: Stage) -> None:
    fill(stage, replicas=2)
    stage.rows("UPDATE pools SET start_timeout = 0")
    unresponsive_pods.run()
    assert retirements(stage) == []


def test_a_pod_that_is_young_or_was_heard_stays(stage: Stage) -> None:
    fill(stage, replicas=1)
    beat(stage)
    unresponsive_pods.run()
    assert retirements(stage) == []
    stage.rows("UPDATE pools SET start_timeout = 0")
    stage.rows("UPDATE runner_pods SET polled_at = now()")  # noted once a minute
    unresponsive_pods.run()
    assert retirements(stage) == []


def test_a_pool_with_a_long_start_timeout_keeps_its_unresponsive_pods_longer(stage: Stage) -> None:
    fill(stage, replicas=1)
    stage.with_settings(start_timeout=0)
    stage.rows("UPDATE pools SET start_timeout = 3600")
    beat(stage)
    unresponsive_pods.run()
    assert retirements(stage) == []


def test_a_pod_that_polls_stays(stage: Stage) -> None:
    fill(stage, replicas=1)
    stage.rows("UPDATE pools SET start_timeout = 0")
    beat(stage)
    stage.rows("""
        INSERT INTO offers (pod_uid, pool_id, web_id, poll_id, until)
        SELECT uid, pool_id, 'w', 'p', now() + interval '1 hour' FROM runner_pods
    """)
    unresponsive_pods.run()
    assert retirements(stage) == []


@pytest.mark.parametrize("upstream", ["kubernetes", "github"])
def test_a_pod_whose_poller_failed_goes_when_the_gates_are_open(stage: Stage, upstream: str) -> None:
    fill(stage, replicas=1)
    stage.finish(min(stage.pods()), phase="Running", poller=1, runner=None)
    stage.rows("INSERT INTO gates (upstream, closed_at, why) VALUES (:upstream, now(), 'x')", upstream=upstream)
    unresponsive_pods.run()
    assert retirements(stage) == []
    stage.rows("UPDATE gates SET closed_at = NULL")
    unresponsive_pods.run()
    assert retirements(stage) == ["the poller of the Pod failed"]


def test_a_pod_whose_poller_wrote_a_jit_or_that_was_ever_given_one_stays(stage: Stage) -> None:
    fill(stage, replicas=2)
    stage.rows("UPDATE pools SET start_timeout = 0")
    beat(stage)
    first, second = sorted(stage.pods())
    stage.finish(first, phase="Running", poller=0, runner=None)
    stage.job(7)
    stage.claim(second, job_id=7, state="delivered", runner=RUNNER)
    stage.rows("UPDATE claims SET state = 'ended', ended_at = now() - interval '1 h', end_reason = 'completed'")
    unresponsive_pods.run()
    assert retirements(stage) == []


def test_a_pod_whose_claim_has_just_ended_may_have_been_cut_off_by_it(stage: Stage) -> None:
    fill(stage, replicas=1)
    stage.rows("UPDATE pools SET start_timeout = 0")  # the Pod itself is young
    beat(stage)
    stage.job(7)
    stage.claim(min(stage.pods()), job_id=7, state="claimed")
    stage.rows("UPDATE claims SET state = 'ended', ended_at = now() + interval '1 h', end_reason = 'released'")
    unresponsive_pods.run()
    assert retirements(stage) == []
    stage.rows("UPDATE claims SET ended_at = now() - interval '1 s'")
    unresponsive_pods.run()
    assert retirements(stage) == ["the Pod does not poll"]


def test_a_pod_that_is_heard_between_the_verdict_and_the_action_stays(
    stage: Stage, github: StubGitHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    del github
    fill(stage, replicas=1)
    stage.rows("UPDATE pools SET start_timeout = 0")
    beat(stage)

    def heard(*args: object, **kwargs: object) -> object:
        stage.rows("UPDATE runner_pods SET polled_at = now()")
        return judge_unresponsive(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "judge_unresponsive", heard)
    unresponsive_pods.run()
    assert retirements(stage) == []
    assert [row.moved_on for row in stage.rows("SELECT moved_on FROM sweep_runs")] == [1]

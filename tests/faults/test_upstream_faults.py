"""Faults of the parts around Ostler: Redis, Postgres, replies of GitHub and of web, stamps, Pods. Nothing is lost.

One system runs for the whole module. After each fault it must recover by itself. Then the whole run is judged by the
lab's logs and by the laws.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text

from k8s_adapters.runners.pods import list_pods
from lab.control_plane import ClusterAccess
from lab.faults import Fault
from lab.system import read_log, read_log_lines
from tests.faults.scenarios import a_pod_deleted_too_early, a_refused_stamp
from tests.faults.stage import DISPATCH, POOL, Stage, running

pytestmark = [pytest.mark.timeout(1200), pytest.mark.cluster]  # a long story


@pytest.fixture(scope="module")
def stage(control_plane: ClusterAccess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A system with two beats, one of them active."""
    folder = tmp_path_factory.mktemp("upstream-faults")
    with running(folder, control_plane, f"upstream-{secrets.token_hex(4)}", workers=2, beats=2) as stage:
        yield stage


def test_a_lost_reply_of_a_mint_costs_no_runner_and_no_job(stage: Stage) -> None:
    fault = {"method": "POST", "path_regex": "generate-jitconfig", "after_apply": True, "reset": True, "times": 2}
    stage.system.lab("POST", "/faults", fault)

    jobs = stage.send(2)
    stage.until(lambda: stage.are_over(jobs), what="the end of the jobs")

    assert stage.system.lab("GET", "/faults")["faults"][0]["hits"] == 2
    stage.system.lab("DELETE", "/faults")
    stage.assert_whole()


def test_a_pod_whose_jit_was_lost_on_its_way_is_handed_the_same_again(stage: Stage) -> None:
    def handed(jobs: list[int]) -> list[Any]:
        log = read_log_lines(stage.system.folder / "web-0.log")
        return [event for event in log if event["event"] == "claim.delivered" and event["job"] in jobs]

    stage.line.cut()
    stage.line.mend(Fault(kind="reset_after", method_regex="POST", path_regex=DISPATCH))  # every poll, until it is seen
    proxy = stage.line.proxy

    jobs = stage.send(2)
    stage.until(lambda: bool(handed(jobs)), what="a delivery")
    proxy.clear()
    stage.until(lambda: stage.are_over(jobs), what="the end of the jobs")

    assert proxy.counts["reset_after"] >= 1
    assert [event for event in handed(jobs) if event["repeated"]]
    stage.assert_whole()


def test_a_stamp_that_is_refused_for_the_whole_claim_holds_no_job_up(stage: Stage) -> None:
    with a_refused_stamp(stage) as jobs:
        stage.until(lambda: stage.is_through_with(jobs), what="the end of the jobs and of their claims")

    with stage.engine.connect() as db:
        stamped = db.execute(
            text("""
                SELECT DISTINCT e.transition FROM claim_events e JOIN claims c ON c.id = e.claim_id
                WHERE c.job_id = ANY(:jobs) AND e.transition LIKE 'stamp%'
            """),
            {"jobs": jobs},
        ).scalars()
        assert list(stamped) == ["stamp_gave_up"]
    stage.assert_whole()


def test_a_flushed_redis_costs_seconds_and_no_job(stage: Stage) -> None:
    early = stage.send(3, seconds=1)
    stage.until(lambda: bool(stage.claims(early)) or stage.are_over(early), what="a claim")

    stage.system.redis.flush()
    jobs = early + stage.send(3)

    stage.until(lambda: stage.are_over(jobs), what="the end of the jobs")
    # Only the reconciler sees this, and only beat wakes the reconciler.
    stage.scale(POOL.replicas - 1)
    stage.until(
        lambda: len(list_pods(stage.kube, namespace=stage.system.namespace)) == POOL.replicas - 1,
        what="a smaller pool",
    )
    stage.scale(POOL.replicas)
    assert all(child.running() for name, child in stage.system.children.items() if name.startswith("beat"))
    stage.assert_whole()


def test_a_restarted_postgres_costs_seconds_and_no_job(stage: Stage) -> None:
    early = stage.send(3, seconds=2)
    stage.until(lambda: bool(stage.claims(early)) or stage.are_over(early), what="a claim")

    stage.system.postgres.restart()
    jobs = early + stage.send(3)

    stage.until(lambda: stage.are_over(jobs), what="the end of the jobs")
    stage.assert_whole()


def test_webhook_is_redelivered_when_its_web_process_was_killed_before_the_commit(stage: Stage) -> None:
    stage.arm({"job_seen.before_commit"})
    (job,) = stage.send(1)
    stage.until(lambda: stage.all_reached() and stage.are_over([job]), what="a kill and the end of the job")

    attempts = [
        event
        for event in read_log(stage.system.github_log)
        if event["event"].startswith("webhook") and (event["job"], event["action"]) == (job, "queued")
    ]
    asked = [
        event["delivery"]
        for path in stage.system.folder.glob("worker-*.log")
        for event in read_log_lines(path)
        if event["event"] == "redelivery.requested"
    ]
    assert [attempts[0]["event"], attempts[-1]["event"]] == ["webhook_lost", "webhook_sent"]
    assert attempts[0]["guid"] in asked
    stage.assert_whole()


def test_a_pod_deleted_before_its_jit_gives_its_job_to_another(stage: Stage) -> None:
    with a_pod_deleted_too_early(stage) as jobs:
        stage.until(lambda: stage.are_over(jobs), what="the end of the jobs")

    assert not stage.cut_short().intersection(jobs)
    stage.assert_whole()


def test_pod_deleted_before_its_assigned_job_starts_costs_no_job_and_no_runner(
    stage: Stage,
) -> None:
    lost = {"method": "GET", "path_regex": "_runner/sessions/.*/message", "after_apply": True, "reset": True}
    stage.system.lab("POST", "/faults", lost | {"times": 100_000})
    stage.system.lab("POST", "/settings", {"requeue_after": 8})

    (job,) = stage.send(1)
    stage.until(lambda: stage.is_assigned(job), what="the assignment of the job")
    stage.delete_pods({claim.pod_uid: claim.pod_name for claim in stage.claims([job])})
    stage.system.lab("DELETE", "/faults")
    stage.until(lambda: stage.are_over([job]), what="the end of the job")

    assert not stage.cut_short().intersection([job])
    stage.assert_whole()
    stage.system.lab("POST", "/settings", {"requeue_after": 60})

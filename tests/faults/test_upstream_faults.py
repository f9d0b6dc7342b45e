"""What Ostler leans on breaks: Redis, Postgres, replies of GitHub and of web, stamps, Pods. Nothing is lost.

One system runs for the whole module. After each fault it has to come to rest by itself, and then everything that has
happened so far is judged: by the lab's logs, and by the laws.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator

import pytest
from sqlalchemy import text

from k8s_adapters.pods import get_pod, list_pods
from lab.control_plane import ClusterAccess
from lab.faults import Fault
from tests.faults.invariants import broken
from tests.faults.scenarios import a_pod_deleted_too_early, a_refused_stamp
from tests.faults.stage import DISPATCH, POOL, Stage, nothing, read_log_lines, running

pytestmark = pytest.mark.timeout(600)

HELD_BY_A_CLAIM = {
    "claimed": "lease_mint.after_commit",
    "minted": "deliver.before_commit",
    "delivered": "deliver.after_commit",
    "executing": "execute.after_commit",
}
"""Where a process is halted while the Pod of its claim is deleted; the claim is in this state then."""

EVERYWHERE = (
    "claim.after_commit", "job_claim.after_commit", "lease_stamp.before_commit", "lease_stamp.after_commit",
    "stamp_on.before_commit", "stamp_on.after_commit", "lease_mint.before_commit", "mint.before_commit",
    "mint.after_commit",
    "deliver.before_commit", "execute.before_commit", "job_run.before_commit", "job_run.after_commit",
    "job_finish.before_commit", "job_finish.after_commit", "end_completed.before_commit",
)  # fmt: skip
"""The other points of a job's normal way at which a live claim holds a Pod."""


@pytest.fixture(scope="module")
def stage(control_plane: ClusterAccess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A system with two beats, of which one is active."""
    folder = tmp_path_factory.mktemp("upstream-faults")
    with running(folder, control_plane, f"upstream-{secrets.token_hex(4)}", workers=2, beats=2) as stage:
        yield stage


def assert_whole(stage: Stage) -> None:
    """Let the system come to rest and judge everything up to now."""
    stage.settle()
    verdict = stage.verdict()
    assert verdict.problems == ()
    assert verdict.completed == verdict.jobs
    assert stage.wrong_ends() == {}
    assert broken(stage.history()) == []


def test_a_lost_reply_of_a_mint_costs_no_runner_and_no_job(stage: Stage) -> None:
    fault = {"method": "POST", "path_regex": "generate-jitconfig", "after_apply": True, "reset": True, "times": 2}
    stage.system.lab("POST", "/faults", fault)

    jobs = stage.send(2)
    stage.until(lambda: stage.are_over(jobs), within=60, what="the end of the jobs")

    assert stage.system.lab("GET", "/faults")["faults"][0]["hits"] == 2
    stage.system.lab("DELETE", "/faults")
    assert_whole(stage)


def test_a_pod_whose_jit_was_lost_on_its_way_is_handed_the_same_again(stage: Stage) -> None:
    stage.line.cut()
    stage.line.mend()
    proxy = stage.line.proxy
    proxy.add(Fault(kind="reset_after", method_regex="POST", path_regex=DISPATCH, times=POOL.replicas))
    stage.until(lambda: stage.offered() >= POOL.replicas, within=60, what="polls of all Pods")

    jobs = stage.send(2)
    stage.until(lambda: stage.are_over(jobs), within=60, what="the end of the jobs")

    assert proxy.counts["reset_after"] >= 1
    handed = [
        event for event in read_log_lines(stage.system.folder / "web-0.log") if event["event"] == "claim.delivered"
    ]
    assert [event for event in handed if event["again"]]
    proxy.clear()
    assert_whole(stage)


def test_a_stamp_that_is_refused_for_the_whole_claim_holds_no_job_up(stage: Stage) -> None:
    with a_refused_stamp(stage) as jobs:
        stage.until(lambda: stage.are_over(jobs), within=60, what="the end of the jobs")

    with stage.engine.connect() as db:
        stamped = db.execute(
            text("""
                SELECT DISTINCT e.transition FROM claim_events e JOIN claims c ON c.id = e.claim_id
                WHERE c.job_id = ANY(:jobs) AND e.transition LIKE 'stamp%'
            """),
            {"jobs": jobs},
        ).scalars()
        assert list(stamped) == ["stamp_gave_up"]
    assert_whole(stage)


def test_a_flushed_redis_costs_seconds_and_no_job(stage: Stage) -> None:
    early = stage.send(3, seconds=1)
    stage.until(lambda: bool(stage.claims(early)), within=30, what="a claim")

    stage.system.redis.flush()
    jobs = early + stage.send(3)

    stage.until(lambda: stage.are_over(jobs), within=90, what="the end of the jobs")
    # Only the keeper sees this, and only beat wakes the keeper.
    stage.scale(POOL.replicas - 1)
    stage.until(
        lambda: len(list_pods(stage.kube, namespace=stage.system.namespace)) == POOL.replicas - 1,
        within=90,
        what="a smaller pool",
    )
    stage.scale(POOL.replicas)
    # The beat that was active ends when its lock is gone, the other one took over; what ended is started again.
    stage.restart_what_ended()
    assert_whole(stage)


def test_a_restarted_postgres_costs_seconds_and_no_job(stage: Stage) -> None:
    early = stage.send(3, seconds=2)
    stage.until(lambda: bool(stage.claims(early)), within=30, what="a claim")

    stage.system.postgres.restart()
    jobs = early + stage.send(3)

    stage.until(lambda: stage.are_over(jobs), within=120, what="the end of the jobs")
    assert_whole(stage)


def test_a_pod_deleted_before_its_jit_gives_its_job_to_another(stage: Stage) -> None:
    with a_pod_deleted_too_early(stage) as jobs:
        stage.until(lambda: stage.are_over(jobs), within=90, what="the end of the jobs")

    assert not stage.cut_short().intersection(jobs)
    assert_whole(stage)


def delete_the_pod_at(stage: Stage, point: str) -> int:
    """Halt a process at a point, delete the Pod of the claim meanwhile, kill the process; return the job."""
    jobs: list[int] = []

    def delete(_point: str) -> None:
        for claim in stage.claims(jobs):
            stage.delete_pod(claim.pod_name, claim.pod_uid)
            end = time.monotonic() + 20
            while (pod := get_pod(stage.kube, namespace=stage.system.namespace, name=claim.pod_name)) is not None:
                assert time.monotonic() < end, f"{pod.name} is still there"

    stage.before_kill = delete
    try:
        stage.arm({point})
        jobs += stage.send(1, seconds=4)
        stage.until(stage.all_reached, within=60, what=point)
        stage.until(lambda: stage.are_over(jobs), within=120, what="the end of the job")
    finally:
        stage.before_kill = nothing
        stage.disarm()
    return jobs[0]


@pytest.mark.parametrize("state", HELD_BY_A_CLAIM)
def test_a_pod_deleted_while_its_claim_is_in_this_state_loses_no_job(stage: Stage, state: str) -> None:
    job = delete_the_pod_at(stage, HELD_BY_A_CLAIM[state])

    assert (job in stage.cut_short()) == (state == "executing")
    assert_whole(stage)


@pytest.mark.slow
@pytest.mark.parametrize("point", EVERYWHERE)
def test_a_pod_deleted_and_a_process_killed_at_the_same_point_lose_no_job(stage: Stage, point: str) -> None:
    delete_the_pod_at(stage, point)

    assert_whole(stage)

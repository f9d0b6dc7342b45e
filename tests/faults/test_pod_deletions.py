"""A Pod is deleted while a process is halted, on both sides of the commit of every transition.

The points come from the transition table. At each point the Pod of the halted transaction is deleted, the process is
killed when the Pod is really gone, and the system must recover by itself. One system runs for the whole module. After
each point the whole run is judged by the lab's logs and by the laws.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from lab.control_plane import ClusterAccess
from tests.faults.scenarios import POINTS, SCENARIOS, a_long_job, a_pod_that_cannot_reach_us
from tests.faults.stage import EVERY, PATIENCE, Stage, nothing, running

pytestmark = [pytest.mark.timeout(1200), pytest.mark.cluster]  # a long story

ROUNDS = 3
"""Runs of a scenario: it can miss its point, and Ostler can delete a spent Pod before the test does."""

HELD_BY_A_CLAIM = {
    "claimed": "lease_mint.after_commit",
    "minted": "deliver.before_commit",
    "delivered": "deliver.after_commit",
    "executing": "execute.after_commit",
}
"""One point for each state in which a claim holds a Pod. The other points are slow."""

WAYS = dict(SCENARIOS) | {"execute": a_long_job, "job_run": a_long_job, "job_requeue": a_pod_that_cannot_reach_us}
"""Scenarios that reach each transition with a Pod that still exists. The kill points allow one that is gone."""

HELD_BACK = {"mint.after_commit": {"deliver.before_commit"}}
"""Points at which another process would continue before the Pod is gone, and the point that halts this process too."""

NO_CLAIM_YET = {"job_seen", "job_ready"}
"""Points at which the job has no Pod. The test deletes the Pod that the job would get, whose poll was just seen."""

GONE_BEFORE = {"end_retired", "end_pod_gone", "refuse_release"}
"""Points at which no Pod is left.

`end_retired` follows the proof that Ostler's own deletion is complete. The other transitions follow only the deletion
of the Pod, which is part of their scenario.
"""

WHILE_IT_RUNS = {"execute", "job_run", "end_pod_gone", "refuse_release"}
"""Points at which the deletion ends a running job. At every other point the job is over, or no runner has it yet."""


@dataclass(slots=True)
class Deletion:
    """Result of one point: the affected Pods, and those of them that the test deleted, by UID."""

    reached: bool = False
    jobs: list[int] = field(default_factory=list)
    at_stake: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)


@pytest.fixture(scope="module")
def stage(control_plane: ClusterAccess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A system whose scenarios create one job each, so that each point affects one claim."""
    folder = tmp_path_factory.mktemp("pod-deletions")
    with running(folder, control_plane, f"deletions-{secrets.token_hex(4)}", workers=2, copies=1) as stage:
        yield stage


def delete_at(stage: Stage, point: str) -> Deletion:
    """Halt a process at a point, delete the affected Pod, and kill the process when the Pod is gone."""
    name = point.rpartition(".")[0]
    done = Deletion()
    since = stage.newest_claim()

    def delete() -> None:
        end = time.monotonic() + PATIENCE
        while stage.armed():
            assert time.monotonic() < end, f"nobody is held back at {stage.armed()}"
            time.sleep(EVERY)
        pods = stage.next_pod() if name in NO_CLAIM_YET else stage.pods_at_stake(since=since)
        done.at_stake |= pods.keys()
        done.deleted |= stage.delete_pods(pods)

    stage.before_kill = delete
    try:
        stage.arm({point} | HELD_BACK.get(point, set()))
        with WAYS[name](stage) as jobs:
            done.jobs += jobs
            stage.until(lambda: stage.all_reached() or stage.is_through_with(jobs), what=point)
            stage.kill_halted()
        done.reached = stage.all_reached()
    finally:
        stage.before_kill = nothing
        stage.disarm()
    return done


@pytest.mark.parametrize(
    "point", [pytest.param(p, marks=() if p in HELD_BY_A_CLAIM.values() else pytest.mark.slow) for p in POINTS]
)
def test_a_pod_deleted_and_a_process_killed_at_the_same_point_lose_no_job(stage: Stage, point: str) -> None:
    name = point.rpartition(".")[0]
    assert stage.left() == [], "the points before have left this"

    for _ in range(ROUNDS):
        done = delete_at(stage, point)
        stage.assert_whole()
        if done.reached and (done.deleted or name in GONE_BEFORE):
            break

    assert done.reached, "the scenario led no process there"
    assert done.at_stake
    assert bool(done.deleted) == (name not in GONE_BEFORE)
    assert bool(stage.cut_short().intersection(done.jobs)) == (name in WHILE_IT_RUNS)


def test_the_exceptions_are_transitions() -> None:
    assert set(SCENARIOS) >= NO_CLAIM_YET | GONE_BEFORE | WHILE_IT_RUNS

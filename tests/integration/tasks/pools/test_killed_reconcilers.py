"""A reconciler that is killed at each step loses nothing, creates nothing twice and touches no Pod with a job."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import get_context

import pytest

from lab.control_plane import ClusterAccess
from ostler.task_names import RETIRE
from tests.database import Database
from tests.integration.tasks.conftest import Stage
from tests.integration.tasks.pools import mortal
from tests.integration.tasks.pools.fleet import kept, new_tick, polls, retired, spec, the_pool
from tests.integration.tasks.pools.test_stateful_sets import CACHE, SETS, sets, volumes
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

MOST = 120
"""More steps than any reconciler has."""


def replaces_a_spent_pod(stage: Stage, busy: str, step: int) -> None:
    del step
    stage.finish(min(set(stage.pods()) - {busy}))


def retires_one_too_many(stage: Stage, busy: str, step: int) -> None:
    del busy, step
    spec(stage, replicas=4)
    heal(stage)
    spec(stage, replicas=3)
    stage.rows("UPDATE pools SET replicas = 3")


def rolls(stage: Stage, busy: str, step: int) -> None:
    del busy
    spec(stage, image=f"runner:{step + 1}")
    stage.rows("UPDATE pools SET template_hash = 'an older one'")
    stage.rows("UPDATE runner_pods SET template_hash = 'the oldest'")


def deaths(
    target: Callable[..., None],
    where: tuple[str | int, ...],
    breaks: Callable[[int], None],
    *,
    more_than: int,
    **options: bool,
) -> Iterator[int]:
    """Kill a process at its first step, another at its second, and so on until one process finishes.

    Yield each step after the process has ended. The process runs `target` with `where`, the step and `options`.
    `breaks` prepares the pool for the given step. The test fails unless more than `more_than` processes were killed.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload([mortal.__name__])
    for step in range(1, MOST):
        breaks(step)
        process = context.Process(target=target, args=(*where, step), kwargs=options)
        process.start()
        process.join(120)
        yield step
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
    assert process.exitcode == 0
    assert step - 1 > more_than


@pytest.mark.parametrize("breaks", [replaces_a_spent_pod, retires_one_too_many, rolls])
def test_whatever_a_killed_reconciler_leaves_the_next_one_brings_to_its_end(
    stage: Stage, control_plane: ClusterAccess, database: Database, breaks: Callable[[Stage, str, int], None]
) -> None:
    stage.pool(replicas=3)
    heal(stage)
    busy = min(stage.pods())
    stage.job(7)
    claim = stage.claim(busy, job_id=7, state="executing")
    where = database.url.reveal(), str(control_plane.kubeconfig), stage.namespace, the_pool(stage).id
    for step in deaths(mortal.live, where, partial(breaks, stage, busy), more_than=20):
        heal(stage)

        pods = stage.pods()
        assert len(pods) == 3, f"killed at step {step}"
        assert busy in pods
        assert stage.service_accounts() - {"default"} == set(pods), f"killed at step {step}"
        rows = stage.rows("SELECT name, uid FROM runner_pods WHERE gone_at IS NULL")
        assert {(row.name, row.uid) for row in rows} == {(pod.name, pod.uid) for pod in pods.values()}
        assert [row.id for row in stage.rows("SELECT id FROM claims WHERE ended_at IS NULL")] == [claim]


def retires_a_stateful_set(stage: Stage, busy: str, step: int) -> None:
    del busy, step
    spec(stage, replicas=3)
    healed(stage, 3)
    spec(stage, replicas=2)
    stage.rows("UPDATE pools SET replicas = 2")


@pytest.mark.parametrize("breaks", [replaces_a_spent_pod, retires_a_stateful_set])
def test_a_killed_reconciler_loses_no_stateful_set_and_no_volume(
    stage: Stage, control_plane: ClusterAccess, database: Database, breaks: Callable[[Stage, str, int], None]
) -> None:
    """A runner ends, its volume is deleted, and another runner is created, with a new volume if necessary."""
    stage.pool(replicas=2, volumes={**CACHE, "reclaim": "Delete"}, **SETS)
    healed(stage, 2)
    busy = min(stage.pods())
    uid = stage.pods()[busy].uid
    stage.job(7)
    claim = stage.claim(busy, job_id=7, state="executing")
    where = database.url.reveal(), str(control_plane.kubeconfig), stage.namespace, the_pool(stage).id
    for _ in deaths(mortal.live, where, partial(breaks, stage, busy), more_than=10, writes=True):
        healed(stage, 2)

        assert stage.pods()[busy].uid == uid
        assert [row.id for row in stage.rows("SELECT id FROM claims WHERE ended_at IS NULL")] == [claim]


def test_whatever_a_killed_tick_leaves_the_next_one_brings_to_its_end(
    stage: Stage, control_plane: ClusterAccess, database: Database
) -> None:
    for name in ("large", "small"):
        stage.pool(name, replicas=2)
    heal(stage)
    busy = min(stage.pods())
    stage.job(7)
    claim = stage.claim(busy, job_id=7, state="executing")

    def ends_one_pod_of_each(_step: int) -> None:
        for name in ("large", "small"):
            stage.finish(max(each for each, pod in stage.pods().items() if pod.pool == name and each != busy))

    where = database.url.reveal(), str(control_plane.kubeconfig), stage.namespace
    for step in deaths(mortal.tick, where, ends_one_pod_of_each, more_than=20):
        heal(stage)

        pods = stage.pods()
        assert sorted(str(pod.pool) for pod in pods.values()) == ["large"] * 2 + ["small"] * 2, f"killed at step {step}"
        assert busy in pods
        rows = stage.rows("SELECT name, uid FROM runner_pods WHERE gone_at IS NULL")
        assert {(row.name, row.uid) for row in rows} == {(pod.name, pod.uid) for pod in pods.values()}
        assert [row.id for row in stage.rows("SELECT id FROM claims WHERE ended_at IS NULL")] == [claim]


def heal(stage: Stage) -> None:
    """Run reconcilers, the retirements that `resume` sends, and polls, until nothing is left to do."""
    for _ in range(12):
        # What the killed one had leased is free by then, and its message is sent again.
        stage.rows("UPDATE claims SET leased_until = NULL WHERE purpose = 'retire' AND ended_at IS NULL")
        stage.outbox.sent.clear()
        for row in stage.rows("SELECT id FROM claims WHERE purpose = 'retire' AND ended_at IS NULL"):
            stage.outbox.send(RETIRE, claim_id=row.id)
        retired(stage)
        before = state(stage)
        kept(stage)
        polls(stage)
        new_tick(stage)
        if state(stage) == before and not stage.rows(
            "SELECT 1 FROM claims WHERE purpose = 'retire' AND ended_at IS NULL"
        ):
            return


def state(stage: Stage) -> tuple[object, ...]:
    rows = stage.rows("SELECT id, uid, terminal_at IS NULL FROM runner_pods WHERE gone_at IS NULL ORDER BY id")
    return tuple(map(tuple, rows)), tuple(sorted(pod.uid for pod in stage.pods().values()))


def healed(stage: Stage, count: int) -> None:
    """Run the other processes until the pool has `count` Pods and no other StatefulSet, account or volume is left."""

    def is_healed() -> bool:
        heal(stage)
        pods = stage.pods()
        rows = stage.rows("SELECT uid FROM runner_pods WHERE gone_at IS NULL")
        return (
            len(pods) == count
            and {row.uid for row in rows} == {pod.uid for pod in pods.values()}
            and sets(stage) == {name.removesuffix("-0") for name in pods}
            and volumes(stage) == {f"cache-{name}" for name in pods}
            and stage.service_accounts() - {"default"} == set(pods)
        )

    eventually(is_healed, within=30)

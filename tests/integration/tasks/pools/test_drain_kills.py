"""The controller is killed at each of its steps, from a pool's first Pod to its last: no Pod dies, and nothing is left.

A step is the moment before or after a call to the API server, or a commit, identified by its line in `tasks`. The test
kills once at every step. The next run starts again, with nothing in memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from sqlalchemy import event

import tasks
from tasks.claims.retire import retire
from tasks.pools.mirror_pools import pools
from tasks.pools.reconcile import reconcile
from tasks.sweeps.orphaned_service_accounts import orphaned_service_accounts
from tests.guard import guarded
from tests.integration.tasks.conftest import Stage
from tests.integration.tasks.pools.drains import busy_pod, delete, end_job, seen
from tests.integration.tasks.pools.test_stateful_sets import CACHE, sets, volumes
from tests.waiting import eventually

TASKS = Path(tasks.__file__).parent
ROUNDS = 200
"""Maximum number of runs of the controller. Each step ends one run."""


class Killed(BaseException):
    """The process was killed. No handler of errors catches this exception."""


class Killer:
    """A killer that kills at every step, once."""

    def __init__(self) -> None:
        self.met: set[str] = set()

    def at(self, what: str) -> None:
        """Kill if this step is new."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and TASKS not in Path(frame.f_code.co_filename).parents:
            frame = frame.f_back
        if frame is None:
            return
        step = f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}:{frame.f_lineno} {what}"
        if step not in self.met:
            self.met.add(step)
            raise Killed(step)


@contextmanager
def killing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Killer]:
    """Kill at each step of the tasks during the block."""
    killer = Killer()
    request = stage.kube.request

    def watched(method: str, path: str, **what: Any) -> Any:
        kind = path.rsplit("/namespaces/", maxsplit=1)[-1].split("/")[1]
        killer.at(f"before {method} {kind}")
        answer = request(method, path, **what)
        killer.at(f"after {method} {kind}")
        return answer

    def commits(_connection: Any) -> None:
        killer.at("commit")

    with monkeypatch.context() as patched:
        patched.setattr(stage.kube, "request", watched)
        event.listen(stage.rt.engine, "commit", commits)
        try:
            yield killer
        finally:
            event.remove(stage.rt.engine, "commit", commits)


def controller(stage: Stage) -> None:
    """Run all processes: the schedule, its messages, and `resume` for retirements without an end."""
    pools.run()
    for message in stage.outbox.take("ostler.reconcile"):
        reconcile.run(**message)
    for message in stage.outbox.take("ostler.retire"):
        retire.run(**message)


def until_it_rests(stage: Stage, alive: dict[str, str]) -> None:
    """Run the controller until it finishes without a kill. These Pods (UID by name) live all the time."""
    for _ in range(ROUNDS):
        stage.outbox.sent.clear()
        # What was begun is due again: nobody waits for leases here.
        live = stage.rows("UPDATE claims SET leased_until = NULL WHERE ended_at IS NULL RETURNING id, purpose")
        stage.outbox.sent += [("ostler.retire", {"claim_id": row.id}) for row in live if row.purpose == "retire"]
        stage.rows("UPDATE pools SET status_at = NULL")
        try:
            controller(stage)
        except Killed:
            pass
        else:
            return
        finally:
            found = {name: pod.uid for name, pod in stage.pods().items()}
            assert alive.items() <= found.items()
    pytest.fail(f"it was killed {ROUNDS} times and did not rest")


def rest(stage: Stage, alive: dict[str, str]) -> None:
    for _ in range(4):
        until_it_rests(stage, alive)


def rests(stage: Stage, alive: dict[str, str], done: Callable[[], bool]) -> bool:
    """Run the controller until it finishes, and return `done()`. Kubernetes' controllers might need a moment more."""
    rest(stage, alive)
    return done()


WITH_VOLUMES = {"workload": "StatefulSet", "volumes": {**CACHE, "reclaim": "Delete"}}


@pytest.mark.cluster
@pytest.mark.parametrize("more", [{}, WITH_VOLUMES], ids=["Pod", "StatefulSet"])
def test_drain_killed_at_each_step_deletes_no_busy_pod_and_leaves_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    with guarded(stage.kube, stage.namespace), killing(stage, monkeypatch) as killer:
        stage.pool(replicas=4, **more)
        born = "SELECT 1 FROM runner_pods WHERE uid IS NOT NULL"
        eventually(lambda: rests(stage, {}, lambda: len(stage.rows(born)) == 4), within=60)
        assert len(stage.pods()) == 4
        name, claim = busy_pod(stage, stamped=True)
        alive = {name: stage.pods()[name].uid}
        stage.finish(max(stage.pods()))

        delete(stage)

        def is_detached() -> bool:
            return set(stage.pods()) == {name} and not stage.pods()[name].exit_held

        eventually(lambda: rests(stage, alive, is_detached), within=60)
        assert seen(stage) is not None

        end_job(stage, name, claim)
        eventually(lambda: rests(stage, {}, lambda: seen(stage) is None), within=60)

    assert stage.pods() == {}
    assert (sets(stage), volumes(stage)) == (set(), set())
    steps = {step.split(":")[0] for step in killer.met}
    assert {
        "create_pods.py",
        "finalizers.py",
        "finished_pods.py",
        "mirror_pools.py",
        "observe.py",
        "retire.py",
        *(("delete_volumes.py", "detach.py") if more else ()),
    } <= steps
    assert any(
        "before PUT runnerpools" in step and step.startswith("finalizers.py:remove_finalizer_if_empty")
        for step in killer.met
    )
    (busy,) = stage.rows("SELECT * FROM claims WHERE purpose = 'job'")
    assert busy.end_reason == "completed"
    assert stage.rows("SELECT 1 FROM claims WHERE ended_at IS NULL") == []
    # One whose Pod was gone when the process died before it deleted the account.
    stage.with_settings(orphaned_account_after=0)
    orphaned_service_accounts.run()
    assert stage.service_accounts() == {"default"}

"""Command `cleanup_job`, and a process that is killed between any two calls: nothing is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from container_hooks.cleanup_job import remove
from container_hooks.conversation import CommandCancelled
from tests.unit.container_hooks.api import Killed, status
from tests.unit.container_hooks.test_container_step import STATE, action
from tests.unit.container_hooks.test_prepare_job import SERVICES
from tests.unit.container_hooks.worlds import JOB_POD, POD, UID, Stage, container

LOGIN = {"username": "u", "password": "p", "serverUrl": "r"}


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_cleanup_deletes_all_41_names_after_a_restart(stage: Stage) -> None:
    for n in range(32):
        stage.api.put("pods", f"{POD}-step-{n}", owner=UID)
    stage.api.put("pods", JOB_POD, owner=UID)
    for n in range(8):
        stage.api.put("secrets", f"{POD}-secret-{n}", owner=UID)

    assert stage.run("cleanup_job") == 0

    assert stage.api.objects == {}


def test_cleanup_asks_only_for_the_names_that_were_used(stage: Stage) -> None:
    stage.run("prepare_job", {"container": container(registry=LOGIN)})
    stage.api.calls.clear()

    assert stage.run("cleanup_job") == 0

    assert stage.api.objects == {}
    assert [method for method, _, _ in stage.api.calls] == ["GET", "DELETE"] * 2


def test_cleanup_leaves_the_objects_of_others(stage: Stage) -> None:
    stage.api.put("pods", JOB_POD, owner="another-runner")
    stage.api.put("secrets", f"{POD}-secret-0", owner=None)

    assert stage.run("cleanup_job") == 0

    assert stage.api.names() == [JOB_POD]
    assert stage.api.names("secrets") == [f"{POD}-secret-0"]


def test_cleanup_continues_after_a_failure_and_reports_it(stage: Stage) -> None:
    stage.api.put("pods", JOB_POD, owner=UID)
    stage.api.put("secrets", f"{POD}-secret-0", owner=UID)
    stage.api.fail("DELETE", "pods", *[503] * 4)

    assert stage.run("cleanup_job") == 1

    assert stage.api.names() == [JOB_POD]
    assert stage.api.names("secrets") == []
    assert f"pods/{JOB_POD} was not deleted" in stage.log.errors[0]


@pytest.mark.parametrize("call", ["GET", "DELETE"])
def test_cancel_during_the_removal_leaves_nothing_and_is_passed_on(stage: Stage, call: str) -> None:
    stage.api.put("pods", JOB_POD, owner=UID)
    stage.api.put("secrets", f"{POD}-secret-0", owner=UID)

    def cancel() -> None:
        raise CommandCancelled("hook.sh was ended by a signal")

    stage.api.before(call, "pods", cancel)

    with pytest.raises(CommandCancelled):
        remove(stage.world(), pods=[JOB_POD], secrets=[f"{POD}-secret-0"], strict=False)

    assert stage.api.objects == {}


def play(stage: Stage) -> None:
    """Run one job with a service, a login, and a container step with another login."""
    assert stage.run("prepare_job", {"container": container(registry=LOGIN), "services": SERVICES}) == 0
    step = action("echo made > made", registry={**LOGIN, "username": "other"})
    assert stage.run("run_container_step", step, state=STATE) == 0


def test_process_killed_between_any_two_calls_leaves_nothing_after_cleanup(tmp_path: Path) -> None:
    whole = Stage(tmp_path / "whole")
    play(whole)
    calls = len(whole.api.calls) + len(whole.exec.ran)
    assert calls > 20

    for k in range(calls):
        stage = Stage(tmp_path / str(k))
        stage.api.kill_at = k
        with pytest.raises(Killed):
            play(stage)
        stage.restart()
        assert stage.run("cleanup_job") == 0
        assert stage.api.objects == {}, f"killed before call {k}"


@pytest.mark.parametrize("call", range(7))
def test_failed_prepare_job_leaves_nothing_whichever_call_fails(tmp_path: Path, call: int) -> None:
    """Each call of `prepare_job` in turn gets an error that is not retried."""
    stage = Stage(tmp_path)
    original, counted = stage.api._apply, [0]

    def fails_once(method: str, kind: str, name: str, given: dict[str, object]) -> object:
        counted[0] += 1
        if counted[0] == call + 1:
            return status(422, "Invalid", "no")
        return original(method, kind, name, given)

    stage.api._apply = fails_once  # type: ignore[method-assign,assignment]
    arguments = {"container": container(registry=LOGIN), "services": SERVICES}

    assert stage.run("prepare_job", arguments) == int(call < 4)

    if call < 4:
        assert stage.api.objects == {}
        assert len(stage.log.errors) == 1

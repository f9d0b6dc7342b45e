"""Name of the task that runs in a context."""

from __future__ import annotations

from ostler.running_task import LONGEST_ID, RunningTask, running, running_task


def test_task_is_named_until_its_end() -> None:
    assert running_task() == RunningTask(None, None)
    with running("a", attempt=2):
        assert running_task() == RunningTask("a", 2)
        with running(None, attempt=1):
            assert running_task() == RunningTask(None, None)
        assert running_task() == RunningTask("a", 2)
    assert running_task() == RunningTask(None, None)


def test_long_id_of_a_sender_is_cut() -> None:
    with running("x" * 10_000, attempt=1):
        assert running_task() == RunningTask("x" * LONGEST_ID, 1)

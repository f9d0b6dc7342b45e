"""Hints of the watch: collected, paced, kept while they cannot be sent, and always bounded."""

from __future__ import annotations

import threading
from typing import Any

from ostler.task_names import TaskName
from rules.upstream.watching import Hint
from tests.outbox import Outbox
from watch import hints as module
from watch.hints import BATCH, EVERYTHING_EVERY, RECONCILE_EVERY, Batch, Ending, Hints, send_all


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def made() -> tuple[Hints, Clock]:
    clock = Clock()
    return Hints(executing_after=5, clock=clock), clock


def due(hints: Hints) -> Batch | None:
    """Return the batch that is due now, without a wait for more hints."""
    hints.close()
    return hints.next_batch()


def test_what_is_gone_is_told_at_once_and_once() -> None:
    hints, _ = made()
    for _ in range(3):
        hints.note(Hint.GONE, uid="a", pool="")
    assert due(hints) == Batch(gone=["a"])
    assert due(hints) is None


def test_a_reconciler_is_woken_at_once_and_then_once_a_second() -> None:
    hints, clock = made()
    hints.note(Hint.SPENT, uid="a", pool="small")
    assert due(hints) == Batch(pools=["small"])
    hints.note(Hint.SPENT, uid="b", pool="small")
    hints.note(Hint.SPENT, uid="c", pool="large")
    assert due(hints) == Batch(pools=["large"])
    clock.now += RECONCILE_EVERY
    assert due(hints) == Batch(pools=["small"])


def test_pool_whose_ended_pods_are_in_a_terminal_phase_needs_no_full_list() -> None:
    hints, clock = made()
    hints.note(Hint.SPENT, uid="a", pool="small", in_terminal_phase=True)
    hints.note(Hint.SPENT, uid="b", pool="large", in_terminal_phase=True)
    hints.note(Hint.SPENT, uid="c", pool="large")
    batch = due(hints)
    assert batch == Batch(pools=["small", "large"], ended=["small"])
    hints.put_back(batch)
    clock.now += RECONCILE_EVERY
    assert due(hints) == batch


def test_executing_hint_is_sent_after_a_delay_unless_the_pod_ended_meanwhile() -> None:
    hints, clock = made()
    for uid in ("stays", "ends", "goes"):
        hints.note(Hint.EXECUTING, uid=uid, pool="small")
    assert due(hints) is None
    clock.now += 4.9
    hints.note(Hint.SPENT, uid="ends", pool="small")
    hints.note(Hint.GONE, uid="goes", pool="")
    assert due(hints) == Batch(pools=["small"], gone=["goes"])
    clock.now += 0.2
    assert due(hints) == Batch(executing=["stays"])


def test_a_message_names_so_many_pods_at_most_and_the_next_one_the_others() -> None:
    hints, _ = made()
    for number in range(BATCH + 1):
        hints.note(Hint.GONE, uid=str(number), pool="")
    first, second = due(hints), due(hints)
    assert first is not None
    assert second is not None
    assert (len(first.gone), second.gone) == (BATCH, [str(BATCH)])


def test_unsent_hints_wait_and_beyond_a_bound_everything_is_checked() -> None:
    hints, _ = made()
    batch = Batch(pools=["small"], gone=["a"], executing=["b"], everything=True)
    hints.put_back(batch)
    assert due(hints) == batch
    for number in range(module.MOST + 1):
        hints.note(Hint.GONE, uid=str(number), pool="")
    found = due(hints)
    assert found is None or not found.gone  # everything was checked a moment ago
    hints, _ = made()
    for number in range(module.MOST + 1):
        hints.note(Hint.GONE, uid=str(number), pool="")
    assert due(hints) == Batch(everything=True)


def test_lists_that_follow_each_other_do_not_make_the_sweeps_run_without_a_pause() -> None:
    hints, clock = made()
    hints.resync()
    assert due(hints) == Batch(everything=True)
    hints.resync()
    assert due(hints) is None
    clock.now += EVERYTHING_EVERY
    assert due(hints) == Batch(everything=True)


def test_former_leader_sends_nothing() -> None:
    hints, _ = made()
    for hint in Hint:
        hints.note(hint, uid=f"of {hint}", pool="small")
    hints.resync()
    hints.clear()
    assert due(hints) is None


class Redis(Outbox):
    """A double of a waker whose Redis is down at first."""

    def __init__(self, *, fails: int) -> None:
        super().__init__()
        self.fails = fails
        self.told = threading.Event()

    def send(self, name: TaskName, **kwargs: Any) -> None:
        if self.fails:
            self.fails -= 1
            raise ConnectionError
        super().send(name, **kwargs)
        self.told.set()


def test_a_redis_that_is_away_loses_no_hint() -> None:
    class Pause(threading.Event):
        """A pause of zero seconds between two attempts."""

        def wait(self, timeout: float | None = None) -> bool:
            del timeout
            return self.is_set()

    hints, _ = made()
    redis = Redis(fails=2)
    hints.note(Hint.GONE, uid="a", pool="")
    sender = threading.Thread(
        target=send_all, args=(hints, redis), kwargs={"namespace": "here", "stopped": Pause()}, daemon=True
    )
    sender.start()
    assert redis.told.wait(20)
    hints.close()
    sender.join(20)
    assert not sender.is_alive()
    assert [(name, kwargs["gone"]) for name, kwargs in redis.sent] == [("ostler.pods_changed", ["a"])]


def test_ending_travels_with_its_pod_and_survives_a_message_that_was_not_sent() -> None:
    hints, _ = made()
    ending = Ending(
        deletion_at="2026-11-23T12:03:04+00:00", deleted_first=True, reason="Evicted", runner_exit_code=143, node="n"
    )
    hints.note(Hint.GONE, uid="a", pool="", ending=ending)
    hints.note(Hint.GONE, uid="a", pool="")  # a list that lacks it, after its event
    hints.note(Hint.GONE, uid="b", pool="")
    batch = due(hints)
    assert batch == Batch(gone=["a", "b"], endings={"a": ending})
    hints.put_back(batch)
    assert due(hints) == batch

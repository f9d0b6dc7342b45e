"""Two beats with the lock's real timeout: killed, stopped, flushed. Missed and repeated ticks are counted.

Each test prints its row of the table in `docs/operations/upstreams.md`. `resume` has its real interval of 5 s, so that
a repeated tick can be told from the next one.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from lab.timings import timings
from tasks.worker.app import SETTINGS
from tests.integration.beats.stage import Beats, beats
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PERIOD = 5.0
LOCK_TIMEOUT = float(SETTINGS["redbeat_lock_timeout"])
BOUND = LOCK_TIMEOUT + PERIOD
SLACK = 10.0
"""Seconds that a busy machine may add. A bound is a promise about waiting, not about the machine."""


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Beats]:
    """One active beat and one that stands by, after the first tick."""
    with beats(tmp_path, settings=timings(resume_every=PERIOD)) as stage:
        eventually(lambda: bool(stage.listener.of("ostler.resume")))
        yield stage


@dataclass(frozen=True, slots=True)
class Count:
    """Result of a test. `gap` is the longest time without a tick, in seconds."""

    ticks: int
    missed: int
    doubled: int
    gap: float


def count(stage: Beats, *, what: str) -> Count:
    """Count the ticks. One is missed per interval without a tick, and doubled if two are under half of one apart."""
    times = stage.listener.of("ostler.resume")
    gaps = [later - earlier for earlier, later in pairwise(times)]
    found = Count(
        ticks=len(times),
        missed=sum(max(0, round(gap / PERIOD) - 1) for gap in gaps),
        doubled=sum(gap < PERIOD / 2 for gap in gaps),
        gap=max(gaps),
    )
    print(f"\n| {what} | {found.ticks} | {found.missed} | {found.doubled} | {found.gap:.1f} |")  # noqa: T201
    return found


def some_ticks(stage: Beats, number: int = 3) -> None:
    """Wait until `resume` has ticked `number` more times."""
    since = time.monotonic()
    eventually(
        lambda: len(stage.listener.of("ostler.resume", since=since)) >= number, within=BOUND + number * PERIOD + 30
    )


def test_undisturbed(two: Beats) -> None:
    some_ticks(two, 6)
    found = count(two, what="nothing")
    assert (found.missed, found.doubled) == (0, 0)


def test_the_active_one_is_killed(two: Beats) -> None:
    active, standby = two.active(), two.standby()
    active.kill()
    some_ticks(two)
    found = count(two, what="the active one killed (`kill -9`), not started again")
    assert two.active() is standby
    assert found.gap < BOUND + SLACK
    assert found.doubled == 0


def test_the_active_one_is_stopped_and_goes_on_later(two: Beats) -> None:
    active, standby = two.active(), two.standby()
    active.send(signal.SIGSTOP)
    some_ticks(two)
    assert two.active() is standby
    with two.another_stands_by():
        active.send(signal.SIGCONT)
    some_ticks(two)
    found = count(two, what="the active one stopped (`SIGSTOP`) until the other had taken over")
    assert two.active() is standby
    assert found.gap < BOUND + SLACK
    # What it had in hand when it was stopped it may still send: a hint too many (L6).
    assert found.doubled <= 1


def test_the_active_one_is_told_to_end(two: Beats) -> None:
    active, standby = two.active(), two.standby()
    assert active.stop() == 0
    some_ticks(two)
    found = count(two, what="the active one ended (`SIGTERM`)")
    assert two.active() is standby
    assert found.gap < 2 * PERIOD + SLACK
    assert found.doubled == 0


def test_redis_is_flushed(two: Beats) -> None:
    two.redis.flush()
    some_ticks(two)
    found = count(two, what="Redis flushed")
    assert all(child.running() for child in two.children)
    assert found.gap < BOUND + SLACK
    assert found.doubled == 0


def test_redis_is_flushed_and_the_active_one_killed(two: Beats) -> None:
    active, standby = two.active(), two.standby()
    active.send(signal.SIGSTOP)
    two.redis.flush()
    active.kill()
    some_ticks(two)
    found = count(two, what="Redis flushed and the active one killed")
    assert two.active() is standby
    assert found.gap < BOUND + SLACK
    assert found.doubled == 0


def test_redis_is_flushed_again_and_again(two: Beats) -> None:
    for _ in range(3):
        two.redis.flush()
        some_ticks(two, 1)
    found = count(two, what="Redis flushed three times, after each message")
    assert all(child.running() for child in two.children)
    assert found.gap < BOUND + SLACK


def test_redis_is_killed_and_comes_back_empty(two: Beats) -> None:
    two.redis.child.kill()
    for child in two.children:
        eventually(lambda child=child: "beat.waiting_for_redis" in two.events(child))  # type: ignore[misc]
    back = time.monotonic()
    two.redis.start()
    some_ticks(two)
    first = two.listener.of("ostler.resume", since=back)[0] - back
    found = count(two, what=f"Redis killed until both waited for it, back empty: {first:.1f} s after it was back")
    assert all(child.running() for child in two.children)
    assert first < BOUND + SLACK
    assert found.doubled == 0

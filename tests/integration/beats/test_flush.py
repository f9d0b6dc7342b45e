"""A Redis that loses everything: the next active beat restores the schedule, and no process has to be restarted.

One process each, with the test as the other beat. `test_two_beats.py` has two, with the lock's real timeout.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.timings import timings
from tests.integration.beats.stage import LOCK, Beats, beats
from tests.waiting import eventually

SETTINGS = timings(resume_every=1, pools_every=2)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Beats]:
    """A beat that is active or, where the test is, stands by."""
    with beats(tmp_path, count=1, settings=SETTINGS) as found:
        yield found


@pytest.fixture
def standby(tmp_path: Path) -> Iterator[Beats]:
    """A beat that stands by: the test has the lock."""
    with beats(tmp_path, count=1, settings=SETTINGS, locked=True) as found:
        yield found


def ticks_again(stage: Beats) -> bool:
    """Wait for two sweeps to tick from now on."""
    now = time.monotonic()
    eventually(
        lambda: {"ostler.resume", "ostler.pools"} <= {tick.sweep for tick in stage.listener.ticks if tick.at > now}
    )
    return stage.children[0].running()


def test_a_standby_that_takes_over_an_emptied_redis_ticks(standby: Beats) -> None:
    standby.redis.flush()
    assert ticks_again(standby)


def test_an_active_beat_whose_redis_is_full_waits_and_goes_on_when_it_is_back_empty(stage: Beats) -> None:
    (beat,) = stage.children
    with stage.redis.client() as client:
        client.config_set("maxmemory", "1")
        eventually(lambda: "beat.waiting_for_redis" in stage.events(beat))
        assert "beat.redis_failed" in stage.events(beat)
        client.config_set("maxmemory", "0")
    stage.redis.flush()
    assert ticks_again(stage)


@pytest.mark.slow
def test_a_standby_whose_redis_fails_it_waits_and_does_not_go_on_without_the_lock(standby: Beats) -> None:
    (beat,) = standby.children
    with standby.redis.client() as client:
        client.config_set("maxmemory", "1")
        eventually(lambda: "beat.waiting_for_redis" in standby.events(beat))
        with standby.another_stands_by():
            client.config_set("maxmemory", "0")
        assert "beat.lock_acquired" not in standby.events(beat)
        assert standby.listener.ticks == []


def test_an_active_beat_that_lost_its_schedule_but_not_its_lock_installs_it_again(stage: Beats) -> None:
    with stage.redis.client() as client:
        kept = client.get(LOCK)
        client.delete("redbeat::schedule")
        assert ticks_again(stage)
        assert client.get(LOCK) == kept
    eventually(lambda: "beat.lost_schedule_installed_again" in stage.events(stage.children[0]))

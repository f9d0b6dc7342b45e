"""No beat sends anything: `/readyz`'s body and the metrics say so, and the sweeps come back by themselves."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lab.system import Options, System
from lab.timings import timings
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PERIOD = 1.0


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    """A whole system without Pods after the start of some sweep."""
    options = Options(pools=(), settings=timings(resume_every=PERIOD))
    with System(tmp_path, options, say=lambda _: None, cluster="embedded") as found:
        eventually(lambda: well(found))
        yield found


def readiness(system: System) -> dict[str, Any]:
    """Return the body of `/readyz`; web stays ready all the time."""
    answer = httpx.get(f"{system.private_url}/readyz", timeout=20)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def metric(system: System, name: str) -> float:
    """Return the value of a metric, by its name and labels."""
    text = httpx.get(f"{system.private_url}/metrics", timeout=20).text
    return next(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"{name} "))


def well(system: System) -> bool:
    """Return whether `resume` ticks, as far as web knows."""
    body = readiness(system)
    ticked = body["last_tick_seconds"]
    return ticked is not None and ticked < 10 * PERIOD and "resume" not in body["sweeps_late"]


@pytest.mark.parametrize("flushed", [False, True], ids=["stopped", "stopped and flushed"])
def test_beats_that_stand_still_are_told_of_until_they_go_on(system: System, *, flushed: bool) -> None:
    beats = [child for name, child in system.children.items() if name.startswith("beat")]
    for beat in beats:
        beat.send(signal.SIGSTOP)
    if flushed:
        system.redis.flush()
    last_tick = "ostler_last_tick_timestamp_seconds"

    def silent() -> bool:
        body = readiness(system)
        return (
            body["redis"] is True
            and body["beat_lock_seconds"] is None  # it ran out, or was flushed
            and "resume" in body["sweeps_late"]
            and body["last_tick_seconds"] > 20 * PERIOD
        )

    eventually(silent)
    stood = metric(system, last_tick)
    eventually(lambda: metric(system, 'ostler_sweep_late{sweep="resume"}') == 1)

    for beat in beats:
        beat.send(signal.SIGCONT)
    eventually(lambda: well(system))
    eventually(lambda: metric(system, last_tick) > stood)
    eventually(lambda: metric(system, 'ostler_sweep_late{sweep="resume"}') == 0)
    assert readiness(system)["beat_lock_seconds"] > 0
    assert all(beat.running() for beat in beats)

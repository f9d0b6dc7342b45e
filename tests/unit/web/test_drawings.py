"""Drawings of the dashboard: the bar of a pool's Pods, and the time axis of a job."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from rules.pools.pod_states import PodState
from web.ui.drawings import Curve, axis, bar

T0 = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(seconds: float | None) -> datetime | None:
    return None if seconds is None else T0 + timedelta(seconds=seconds)


def job(state: str = "running", *, queued: float = 0, started: float | None = None, over: float | None = None) -> Any:
    return SimpleNamespace(state=state, queued_at=at(queued), started_at=at(started), completed_at=at(over))


def claim(
    created: float, minted: float | None = None, delivered: float | None = None, ended: float | None = None
) -> Any:
    return SimpleNamespace(created_at=at(created), minted_at=at(minted), delivered_at=at(delivered), ended_at=at(ended))


def event(seconds: float, state: str) -> Any:
    return SimpleNamespace(at=at(seconds), to_state=state)


def lanes(*rows: Any, now: float) -> dict[str, list[tuple[float, float]]]:
    """Return the begin and the length of each bar of an axis, in seconds."""
    drawn = axis(*rows, now=T0 + timedelta(seconds=now))
    return {
        lane.phase: [(round(x.x * drawn.seconds / 100, 2), round(x.width * drawn.seconds / 100, 2)) for x in lane.spans]
        for lane in drawn.lanes
        if lane.spans
    }


def test_axis_shows_each_phase_of_a_job() -> None:
    events = [event(1, "queued"), event(4, "claimed"), event(10, "running"), event(30, "completed")]
    rows = (job("completed", started=10, over=30), [claim(4, 5, 7, 30)], events)
    assert lanes(*rows, now=99) == {
        "queued": [(0, 4)],
        "claimed": [(4, 1)],
        "minted": [(5, 2)],
        "delivered": [(7, 3)],
        "executing": [(10, 20)],
    }


def test_axis_of_a_waiting_job_ends_now() -> None:
    drawn = axis(job("queued"), [], [event(0, "queued")], now=T0 + timedelta(seconds=50))
    assert [(each.phase, each.seconds, each.open) for each in drawn.lanes if each.spans] == [("queued", 50, True)]
    assert drawn.seconds == 50


def test_axis_shows_a_released_claim_and_the_second_wait() -> None:
    events = [event(0, "queued"), event(2, "claimed"), event(8, "queued"), event(9, "claimed")]
    assert lanes(job("claimed"), [claim(2, 3, None, 8), claim(9)], events, now=10) == {
        "queued": [(0, 2), (8, 1)],
        "claimed": [(2, 1), (9, 1)],
        "minted": [(3, 5)],
    }


def test_axis_has_no_negative_bar_when_clocks_differ() -> None:
    # GitHub reports the begin in whole seconds, and its webhook arrives later.
    events = [event(0.5, "queued"), event(3.5, "running")]
    found = lanes(job(started=2), [claim(1, 1.5, 2.4)], events, now=6)
    assert found["queued"] == [(0, 2.4)]
    assert found["delivered"] == [(2.4, 0)]
    assert found["executing"] == [(2.4, 3.6)]
    assert lanes(job("completed", queued=5, started=3, over=4), [], [], now=9) == {
        "queued": [(2, 0)],
        "executing": [(0, 1)],
    }


def test_axis_without_events_is_drawn_from_the_rows() -> None:
    assert lanes(job("completed", started=5, over=9), [claim(3, 3, 4, 9)], [], now=99)["queued"] == [(0, 3)]
    assert lanes(job("completed", over=9), [], [], now=99) == {"queued": [(0, 9)]}


def test_bar_has_the_pods_of_a_pool_by_state() -> None:
    pods = {PodState.WARM: 2, PodState.BUSY: 3, PodState.ENDING: 1, PodState.SPENT: 7}
    found = {each.kind: (each.pods, each.x, each.width) for each in bar(pods, replicas=10) if each.pods}
    assert found == {"warm": (2, 0, 20), "busy": (3, 20, 30), "other": (1, 50, 10)}
    assert bar(pods, replicas=10)[-1].detail == "1 ending"
    assert sum(each.width for each in bar(pods, replicas=0)) == pytest.approx(100, abs=0.01)
    assert {each.width for each in bar({}, replicas=0)} == {0}


def test_age_of_the_queue_is_a_line_from_the_left_to_the_right() -> None:
    found = Curve(T0, T0 + timedelta(minutes=10), [0, 60, 120, 0, 0, 30, 0, 0, 0, 0, 60])
    assert found.most == 120
    assert found.corners.split()[:3] == ["0.00,100.00", "10.00,50.00", "20.00,0.00"]
    assert found.corners.endswith(" 100.00,50.00")
    assert found.table == [(T0 + timedelta(minutes=n), age) for n, age in ((0, 0), (5, 30), (10, 60))]
    assert Curve(T0, T0 + timedelta(minutes=1), [0, 0]).corners == "0.00,100.00 100.00,100.00"

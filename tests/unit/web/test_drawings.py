"""Drawings of the dashboard: the bar of a pool's Pods, and the time axis of a job."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from models.browse.timeline import REPAIR, Moment
from rules.pools.pod_states import PodState
from web.ui.drawings import Curve, axis, bar

T0 = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(seconds: float | None) -> datetime | None:
    return None if seconds is None else T0 + timedelta(seconds=seconds)


def job(state: str = "running", *, queued: float = 0, started: float | None = None, over: float | None = None) -> Any:
    return SimpleNamespace(state=state, queued_at=at(queued), started_at=at(started), completed_at=at(over))


def claim(
    created: float,
    minted: float | None = None,
    delivered: float | None = None,
    ended: float | None = None,
    *,
    number: int = 1,
) -> Any:
    times = {"created_at": created, "minted_at": minted, "delivered_at": delivered, "ended_at": ended}
    return SimpleNamespace(id=number, **{name: at(seconds) for name, seconds in times.items()})


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


def moment(seconds: float, what: str, state: str, transition: str | None = None, **more: Any) -> Moment:
    return Moment(T0 + timedelta(seconds=seconds), what, None, state, transition=transition, **more)


def test_axis_shows_how_long_the_pod_of_each_claim_was_stamped() -> None:
    timeline = [
        moment(3, "claim 1", "on", "stamp_on"),
        moment(5, "claim 1", "removing", "stamp_removing"),
        moment(9, "claim 2", "on", "stamp_on"),
    ]
    rows = [claim(2, number=1), claim(8, number=2)]
    drawn = axis(job("claimed"), rows, [event(0, "queued")], now=T0 + timedelta(seconds=10), timeline=timeline)
    (lane,) = (each for each in drawn.lanes if each.phase == "stamped")
    assert [(each.x, each.width) for each in lane.spans] == [(30, 20), (90, 10)]


def test_axis_marks_retries_and_repairs() -> None:
    timeline = [
        moment(1, "claim 1", "minted", "mint", attempt=2),
        moment(2, "claim 1", "releasing", "begin_release", attempt=1),
        moment(3, REPAIR, "release", who="stale_claims"),
        moment(4, "job", "queued", "job_requeue"),
        moment(5, "job", "claimed", "job_claim", attempt=1),
        moment(99, REPAIR, "requeue", who="unresolved_jobs"),
    ]
    drawn = axis(job("queued"), [], [event(0, "queued")], now=T0 + timedelta(seconds=10), timeline=timeline)
    assert [(each.x, each.kind, each.words) for each in drawn.marks] == [
        (10, "retry", "claim 1 minted, attempt 2"),
        (20, "retry", "claim 1 releasing"),
        (30, "repair", "stale_claims release"),
        (40, "retry", "job queued"),
        (100, "repair", "unresolved_jobs requeue"),
    ]


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

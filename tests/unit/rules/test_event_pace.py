"""Kubernetes Events are few: equal ones are rare, one reason per object has an interval, and all have a rate."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rules.upstream.event_pace import BURST, KIND_EVERY, PER_SECOND, REMEMBERED, SAME_EVERY, Pace


def test_same_event_is_written_again_after_ten_minutes() -> None:
    pace = Pace()
    assert pace.admits("u", "Retired", "surplus", now=0)
    assert not pace.admits("u", "Retired", "surplus", now=SAME_EVERY - 1)
    assert pace.admits("u", "Retired", "surplus", now=SAME_EVERY)


def test_other_words_of_one_reason_keep_a_distance() -> None:
    pace = Pace()
    assert pace.admits("u", "ScaledUp", "1 to 2", now=0)
    assert not pace.admits("u", "ScaledUp", "2 to 3", now=KIND_EVERY - 1)
    assert pace.admits("u", "ScaledDown", "3 to 2", now=1)
    assert pace.admits("v", "ScaledUp", "1 to 2", now=1)
    assert pace.admits("u", "ScaledUp", "3 to 4", now=KIND_EVERY)


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(0, 300), st.sampled_from("abc")), max_size=400))
def test_no_time_sees_more_events_than_the_burst_and_the_rate(told: list[tuple[float, int, str]]) -> None:
    pace, now, written = Pace(), 0.0, []
    for wait, uid, note in told:
        now += wait
        if pace.admits(str(uid), "Retired", note, now=now):
            written.append(now)
    for first in range(len(written)):
        for last in range(first, len(written), 7):
            assert last - first + 1 <= BURST + PER_SECOND * (written[last] - written[first]) + 1e-6


def test_what_is_remembered_is_bounded() -> None:
    pace = Pace()
    for number in range(REMEMBERED + 100):
        pace.admits(str(number), "Retired", "surplus", now=float(number))
    assert len(pace.seen) <= REMEMBERED


def test_a_burst_is_followed_by_one_event_a_second() -> None:
    pace = Pace()
    admitted = [pace.admits(str(number), "Retired", "surplus", now=0) for number in range(30)]
    assert admitted == [True] * 25 + [False] * 5
    assert not pace.admits("a", "Retired", "surplus", now=0.9)
    assert pace.admits("a", "Retired", "surplus", now=1)
    assert not pace.admits("b", "Retired", "surplus", now=1.9)
    assert sum(pace.admits(f"c{number}", "Retired", "surplus", now=9999) for number in range(30)) == 25


def test_a_clock_that_goes_back_gives_no_events() -> None:
    pace = Pace(tokens=1.0)
    assert pace.admits("a", "Retired", "surplus", now=100)
    assert not pace.admits("b", "Retired", "surplus", now=0)


def test_an_event_that_was_refused_is_not_remembered_as_written() -> None:
    pace = Pace()
    assert pace.admits("u", "ScaledUp", "1 to 2", now=0)
    assert not pace.admits("u", "ScaledUp", "2 to 3", now=29)
    assert pace.admits("u", "ScaledUp", "2 to 3", now=30)


def test_the_events_written_longest_ago_are_forgotten_first() -> None:
    pace = Pace()
    for number in range(REMEMBERED // 2):
        assert pace.admits(str(number), "Retired", "surplus", now=float(number))
    assert len(pace.seen) == REMEMBERED
    assert pace.admits("0", "Retired", "other", now=REMEMBERED)
    assert ("0", "Retired") in pace.seen
    assert ("0", "Retired", "surplus") not in pace.seen
    assert len(pace.seen) == REMEMBERED


def test_the_same_event_is_young_at_any_hour() -> None:
    pace = Pace()
    assert pace.admits("u", "Retired", "surplus", now=1e6)
    assert not pace.admits("u", "Retired", "surplus", now=1e6 + 1)

"""Runner lists as proof: the time that a list proves, and the interval of two checks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from rules.sweeps.runner_checks import FRESH, RunnerList

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
LIST = RunnerList(NOW)


def test_what_came_after_a_list_is_younger_than_nothing_in_it() -> None:
    assert LIST.age_of(NOW - timedelta(seconds=9)) == 9
    assert LIST.age_of(NOW + timedelta(seconds=9)) == -9


@pytest.mark.parametrize(("ago", "second"), [(None, False), (0, False), (54, False), (FRESH, True), (61, True)])
def test_one_list_read_twice_is_one_check_and_two_lists_are_two(ago: float | None, *, second: bool) -> None:
    first = None if ago is None else NOW - timedelta(seconds=ago)
    assert LIST.is_second_check(first) is second


@pytest.mark.parametrize(("took", "used"), [(0, FRESH), (20, FRESH), (30, 60), (300, 600)])
def test_a_list_that_took_long_is_used_for_twice_as_long(took: float, used: float) -> None:
    assert LIST.used_for(whole_at=NOW + timedelta(seconds=took)) == used

"""Needs of a listed job, and the number of calls for an installation."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.claims.machines import JobState
from rules.sweeps.catch_up import Allowance, Catch, judge_listed, spend, wait_after

NOW = datetime(2026, 11, 22, tzinfo=UTC)


def judge(status: str, ours: JobState | None, *, age: float = 7200, over: float | None = None) -> Catch:
    return judge_listed(
        status=status,
        created_at=NOW - timedelta(seconds=age),
        completed_at=None if over is None else NOW - timedelta(seconds=over),
        ours=ours,
        after=timedelta(seconds=120),
        over_after=timedelta(seconds=3600),
        now=NOW,
    )


@pytest.mark.parametrize("ours", [None, *JobState])
@pytest.mark.parametrize("status", ["queued", "in_progress", "completed", "waiting", "pending", "invented"])
def test_only_what_is_queued_unheard_of_or_over_without_our_knowing_needs_anything(
    status: str, ours: JobState | None
) -> None:
    verdict = judge(status, ours)
    assert (verdict is Catch.BRING) is (status == "queued" and ours in {None, JobState.WAITING})
    assert (verdict is Catch.FINISH) is (status == "completed" and ours not in {None, JobState.COMPLETED})
    assert verdict is not Catch.LATER


@pytest.mark.parametrize(("age", "verdict"), [(119, Catch.LATER), (120, Catch.BRING)])
def test_a_queued_job_has_its_time_to_be_told_of(age: float, verdict: Catch) -> None:
    assert judge("queued", None, age=age) is verdict


@pytest.mark.parametrize(("over", "verdict"), [(3599, Catch.LATER), (3600, Catch.FINISH)])
def test_a_job_that_ended_has_its_time_to_be_told_of(over: float, verdict: Catch) -> None:
    assert judge("completed", JobState.QUEUED, over=over) is verdict


@given(
    quota=st.integers(80, 20_000),
    percent=st.floats(1, 20),
    gaps=st.lists(st.floats(0, 1200), max_size=400),
    tries=st.integers(1, 60),
)
def test_no_hour_holds_more_than_the_share(quota: int, percent: float, gaps: list[float], tries: int) -> None:
    allowance, now = Allowance(1e9, NOW, quota), NOW
    spent: list[datetime] = []
    for gap in gaps:
        now += timedelta(seconds=gap)
        for _ in range(tries):
            left = spend(allowance, percent=percent, now=now)
            if left is None:
                break
            allowance = left
            spent.append(now)
    most = max(1.0, quota * percent / 400) + 0.75 * quota * percent / 100
    for number, first in enumerate(spent):
        within = sum(1 for each in spent[number:] if each - first <= timedelta(hours=1))
        assert within <= most + 1e-6


def test_a_clock_that_goes_back_gives_nothing() -> None:
    allowance = Allowance(0.5, NOW, 5000)
    assert spend(allowance, percent=5, now=NOW - timedelta(days=1)) is None


def test_a_repository_that_fails_is_left_alone_for_an_hour_at_most() -> None:
    least = timedelta(minutes=5)
    waits = [wait_after(failures, least=least).total_seconds() / 60 for failures in (0, 1, 2, 3, 4, 5, 100)]
    assert waits == [5, 5, 10, 20, 40, 60, 60]


def test_a_new_allowance_holds_a_quarter_of_the_share_of_the_base_quota() -> None:
    assert Allowance.new(percent=8, now=NOW) == Allowance(100.0, NOW, 5000)
    assert Allowance.new(percent=0.01, now=NOW).calls == 1.0


def test_a_call_is_taken_out_and_the_rest_comes_evenly() -> None:
    assert spend(Allowance(1.0, NOW, 5000), percent=8, now=NOW) == Allowance(0.0, NOW, 5000)
    assert spend(Allowance(0.9, NOW, 5000), percent=8, now=NOW) is None
    # Three quarters of 8 % of 5000 calls an hour are 300: one in 12 seconds.
    later = NOW + timedelta(seconds=24)
    assert spend(Allowance(0.0, NOW, 5000), percent=8, now=later) == Allowance(1.0, later, 5000)
    assert spend(Allowance(99.5, NOW, 5000), percent=8, now=later) == Allowance(99.0, later, 5000)
    back = NOW - timedelta(days=1)
    assert spend(Allowance(1.0, NOW, 5000), percent=8, now=back) == Allowance(0.0, back, 5000)

"""The deadline of a Pod whose job may take so long."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from rules.job_deadlines import active_deadline

AT = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
HOUR = 3600.0


def test_time_in_which_a_pod_was_warm_is_not_its_jobs() -> None:
    assert active_deadline(started_at=AT, now=AT + timedelta(days=2), max_job_seconds=HOUR) == 2 * 24 * 3600 + 3600


def test_a_node_whose_clock_is_ahead_shortens_no_job() -> None:
    assert active_deadline(started_at=AT + timedelta(minutes=5), now=AT, max_job_seconds=HOUR) == 3600


@given(age=st.floats(0, 10**8), longest=st.floats(60, 365 * 24 * 3600))
def test_a_job_never_gets_less_than_its_time_and_at_most_two_seconds_more(age: float, longest: float) -> None:
    now = AT + timedelta(seconds=age)
    left = active_deadline(started_at=AT, now=now, max_job_seconds=longest) - (now - AT).total_seconds()
    assert longest - 1e-6 <= left <= longest + 2

"""The deadline of a Pod in a pool with a longest job."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from rules.pools.job_deadlines import MARGIN, active_deadline

AT = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
HOUR = 3600.0


def test_time_in_which_a_pod_was_warm_is_not_its_jobs() -> None:
    found = active_deadline(started_at=AT, now=AT + timedelta(days=2), max_job_seconds=HOUR)
    assert found == 2 * 24 * 3600 + HOUR + MARGIN


@given(age=st.floats(0, 10**8), longest=st.floats(60, 365 * 24 * 3600), ahead=st.floats(-MARGIN, MARGIN))
def test_a_job_gets_its_time_where_the_clock_of_its_node_is_within_the_margin(
    age: float, longest: float, ahead: float
) -> None:
    """The kubelet uses the clock of its node, which is `ahead` of ours, for the deadline and for the reported start."""
    start, now = AT, AT + timedelta(seconds=age)
    reported = start + timedelta(seconds=ahead)
    left = active_deadline(started_at=reported, now=now, max_job_seconds=longest) - (now - start).total_seconds()
    assert longest - 1e-5 <= left <= longest + 2 * MARGIN + 2


def test_a_start_beyond_the_margin_ahead_adds_nothing() -> None:
    assert active_deadline(started_at=AT, now=AT - timedelta(days=1), max_job_seconds=HOUR) == HOUR

"""The pure decision: waits are bounded, headers are read in both forms."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.upstream.retry import (
    RETRIED_STATUSES,
    Failure,
    Network,
    RetryPolicy,
    decide,
    parse_retry_after,
    wait_before_next,
)

NOW = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)

failures = st.one_of(
    st.builds(
        Failure,
        status=st.integers(min_value=100, max_value=599),
        retry_after=st.none() | st.floats(min_value=0, max_value=1e6),
    ),
    st.builds(Failure, network=st.sampled_from(Network)),
)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("0", 0.0),
        ("1", 1.0),
        (" 17 ", 17.0),
        ("1.5", 1.5),
        ("30", 30.0),
        ("31", 30.0),
        ("99999999999999999999", 30.0),
        ("-5", 0.0),
        ("Fri, 20 Nov 2026 12:00:12 GMT", 12.0),
        ("Fri, 20 Nov 2026 12:00:12 -0000", 12.0),
        ("Friday, 20-Nov-26 12:00:12 GMT", 12.0),
        ("Fri, 20 Nov 2026 13:00:05 +0100", 5.0),
        ("Fri, 20 Nov 2026 11:59:00 GMT", 0.0),
        ("Sat, 21 Nov 2026 12:00:00 GMT", 30.0),
        ("", None),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("Fri, 99 Nov 2026 12:00:00 GMT", None),
    ],
)
def test_a_retry_after_header_is_read_in_both_forms(header: str | None, seconds: float | None) -> None:
    assert parse_retry_after(header, now=NOW) == seconds


@given(st.text(max_size=60))
def test_no_header_breaks_the_parser(header: str) -> None:
    seconds = parse_retry_after(header, now=NOW)
    assert seconds is None or 0.0 <= seconds <= 30.0


@given(failures, st.integers(min_value=1, max_value=10_000), st.floats(min_value=0, max_value=1))
def test_no_wait_is_longer_than_the_cap_and_its_jitter(failure: Failure, attempt: int, roll: float) -> None:
    wait = wait_before_next(policy=RetryPolicy(cap=20.0), attempt=attempt, failure=failure, roll=roll)
    assert 0.0 <= wait <= 30.0


@given(
    failures,
    st.integers(min_value=1, max_value=10),
    st.floats(min_value=0, max_value=100),
    st.floats(min_value=0, max_value=100),
    st.floats(min_value=0, max_value=1),
)
def test_a_retry_never_begins_past_the_deadline(
    failure: Failure, attempt: int, elapsed: float, deadline: float, roll: float
) -> None:
    decision = decide(
        policy=RetryPolicy(deadline=deadline), attempt=attempt, elapsed=elapsed, failure=failure, roll=roll
    )
    if decision.retry:
        assert elapsed + decision.wait < deadline
        assert attempt < 4


@given(st.integers(min_value=100, max_value=599), st.none() | st.sampled_from(Network))
def test_a_status_decides_alone(status: int, network: Network | None) -> None:
    decision = decide(
        policy=RetryPolicy(), attempt=1, elapsed=0.0, failure=Failure(status=status, network=network), roll=0.5
    )
    assert decision.retry == (status in RETRIED_STATUSES)


def test_waits_double_from_the_base_to_the_cap_within_their_jitter() -> None:
    policy = RetryPolicy(base=1.0, cap=20.0, jitter=(0.5, 1.5))

    def waits(roll: float) -> list[float]:
        reset = Failure(network=Network.RESET)
        return [wait_before_next(policy=policy, attempt=n, failure=reset, roll=roll) for n in (1, 2, 3, 4, 5, 6)]

    assert waits(0.5) == [1, 2, 4, 8, 16, 20]
    assert waits(0.0) == [0.5, 1, 2, 4, 8, 10]
    assert waits(1.0) == [1.5, 3, 6, 12, 24, 30]


@pytest.mark.parametrize("network", Network)
def test_every_network_failure_is_retried_and_named(network: Network) -> None:
    decision = decide(policy=RetryPolicy(), attempt=1, elapsed=0.0, failure=Failure(network=network), roll=0.5)
    assert (decision.retry, decision.reason) == (True, network.value)


def test_a_final_answer_has_no_wait_and_a_retried_one_names_its_status() -> None:
    final = decide(policy=RetryPolicy(), attempt=1, elapsed=0.0, failure=Failure(status=404), roll=0.5)
    assert (final.retry, final.wait) == (False, 0.0)
    again = decide(policy=RetryPolicy(), attempt=1, elapsed=0.0, failure=Failure(status=503), roll=0.5)
    assert (again.retry, again.reason) == (True, "status 503")


@pytest.mark.parametrize(
    ("attempt", "elapsed", "retry"), [(3, 0.0, True), (4, 0.0, False), (1, 9.0, False), (1, 8.9, True)]
)
def test_the_last_attempt_and_the_deadline_end_the_repetition(attempt: int, elapsed: float, *, retry: bool) -> None:
    policy = RetryPolicy(attempts=4, base=1.0, growth=1.0, jitter=(1.0, 1.0), deadline=10.0)
    decision = decide(policy=policy, attempt=attempt, elapsed=elapsed, failure=Failure(status=503), roll=0.5)
    assert decision.retry is retry


@pytest.mark.parametrize(
    ("failure", "honour", "wait"),
    [
        (Failure(status=429, retry_after=7.0), True, 7.0),
        (Failure(status=503, retry_after=7.0), True, 7.0),
        (Failure(status=503, retry_after=99.0), True, 30.0),
        (Failure(status=503, retry_after=7.0), False, 1.0),
        (Failure(status=500, retry_after=7.0), True, 1.0),
        (Failure(status=503), True, 1.0),
    ],
)
def test_a_wait_that_was_asked_for_is_kept_where_the_status_has_one(
    failure: Failure, wait: float, *, honour: bool
) -> None:
    policy = RetryPolicy(jitter=(1.0, 1.0), honour_retry_after=honour)
    assert wait_before_next(policy=policy, attempt=1, failure=failure, roll=0.5) == wait

"""Writes that keep failing: the runs that count, the time until a call is shown, and its end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from rules.pools.failing_calls import FORGOTTEN_AFTER, REPEATED, FailingCall, after_run, lasting

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
TICK = timedelta(seconds=10)


def runs(*outcomes: dict[str, str | None]) -> tuple[FailingCall, ...]:
    """Return the failing calls after runs that began 10 seconds apart and took one second each."""
    calls: tuple[FailingCall, ...] = ()
    for number, each in enumerate(outcomes):
        began = NOW + number * TICK
        calls = after_run(calls, each, began=began, now=began + timedelta(seconds=1))
    return calls


def test_call_lasts_after_three_failed_runs_in_a_row() -> None:
    failed: dict[str, str | None] = {"POST pods": "no"}
    assert lasting(runs(*[failed] * (REPEATED - 1))) == []
    (call,) = lasting(runs(*[failed] * REPEATED))
    assert (call.failures, call.since) == (REPEATED, NOW + timedelta(seconds=1))
    assert call.describe() == "Calls to create pods have failed since 2026-01-01T12:00:01Z: no"


def test_run_without_a_failure_ends_the_count() -> None:
    failed: dict[str, str | None] = {"POST pods": "no"}
    assert lasting(runs(failed, failed, {"POST pods": None}, failed, failed)) == []


def test_run_without_the_call_changes_no_count() -> None:
    failed: dict[str, str | None] = {"POST pods": "no"}
    assert len(lasting(runs(failed, {}, failed, {"DELETE pods": None}, failed))) == 1


def test_run_that_is_recorded_twice_counts_once() -> None:
    calls: tuple[FailingCall, ...] = ()
    for words in ("first", "second"):
        calls = after_run(calls, {"POST pods": words}, began=NOW, now=NOW + timedelta(seconds=1))
    assert [(each.failures, each.words) for each in calls] == [(1, "second")]


def test_call_is_forgotten_when_nothing_repeats_it() -> None:
    failed: dict[str, str | None] = {"DELETE pods": "no"}
    calls = runs(*[failed] * REPEATED)
    assert after_run(calls, {}, began=NOW, now=calls[0].at + FORGOTTEN_AFTER) == ()


def test_creations_come_first_and_each_method_has_its_reason() -> None:
    outcomes: dict[str, str | None] = {"DELETE pods": "a", "PATCH runnerpools/status": "b", "POST pods": "c"}
    calls = lasting(runs(*[outcomes] * REPEATED))
    assert [(each.call, each.reason) for each in calls] == [
        ("POST pods", "FailedCreate"),
        ("DELETE pods", "FailedDelete"),
        ("PATCH runnerpools/status", "FailedUpdate"),
    ]

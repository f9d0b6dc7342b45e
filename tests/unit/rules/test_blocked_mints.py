"""The condition of a pool whose mints back off: whose jobs wait, since when, and until when."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest

from rules.pools.blocked_mints import BlockedMints

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
HELD = BlockedMints(
    kind="account",
    key="7",
    words="Not found.",
    failures=0,
    not_before=NOW + timedelta(minutes=1),
    jobs=1,
    oldest=NOW - timedelta(hours=1),
    account="ada",
    others=0,
    more=0,
)


def test_refusals_and_failures_of_an_installation_have_different_reasons() -> None:
    assert HELD.reason == "MintsRefused"
    assert replace(HELD, kind="installation").reason == "MintsBackOff"


def test_one_waiting_job_is_told_with_its_time_and_the_next_try() -> None:
    assert HELD.describe(busy=0, now=NOW) == (
        "1 job of account ada waits: account 7: Not found; queued at 2026-01-01T11:00:00Z, "
        "next try at 2026-01-01T12:01:00Z"
    )


def test_several_waiting_jobs_are_told_with_the_oldest() -> None:
    told = replace(HELD, jobs=2).describe(busy=0, now=NOW)
    assert told.startswith("2 jobs of account ada wait: ")
    assert "the oldest since 2026-01-01T11:00:00Z" in told


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        (replace(HELD, not_before=NOW), "the next try is due now"),
        (replace(HELD, failures=1), "next try at 2026-01-01T12:01:00Z"),
        (replace(HELD, kind="installation"), "next try at 2026-01-01T12:01:00Z"),
        (replace(HELD, kind="installation", failures=1), "next try by 2026-01-01T12:01:00Z"),
    ],
)
def test_the_next_try_is_a_bound_when_an_installation_is_probed_meanwhile(held: BlockedMints, expected: str) -> None:
    assert held.describe(busy=0, now=NOW).endswith(f", {expected}")


def test_times_are_told_in_utc() -> None:
    east = timezone(timedelta(hours=5))
    assert replace(HELD, oldest=HELD.oldest.astimezone(east)).describe(busy=0, now=NOW) == HELD.describe(
        busy=0, now=NOW
    )


@pytest.mark.parametrize(("more", "expected"), [(1, "1 more backoff delays jobs"), (3, "3 more backoffs delay jobs")])
def test_further_backoffs_are_counted(more: int, expected: str) -> None:
    assert replace(HELD, more=more).describe(busy=0, now=NOW).endswith(f"; {expected}")


@pytest.mark.parametrize(
    ("busy", "others", "expected"),
    [
        (1, 0, "1 Pod with a job and 0 queued jobs"),
        (0, 1, "0 Pods with a job and 1 queued job"),
        (2, 2, "2 Pods with a job and 2 queued jobs"),
    ],
)
def test_what_goes_on_beside_the_held_jobs_is_counted(busy: int, others: int, expected: str) -> None:
    assert replace(HELD, others=others).describe(busy=busy, now=NOW).endswith(f"; not affected: {expected}")


def test_only_the_full_stop_is_taken_off_the_words() -> None:
    assert "account 7: No API for X; " in replace(HELD, words="No API for X.").describe(busy=0, now=NOW)

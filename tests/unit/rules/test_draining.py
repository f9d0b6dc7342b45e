"""Readiness of a draining pool to be deleted, and its condition."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.pools.draining import Drain, DrainSeen, judge_drain, report

SINCE = datetime(2026, 11, 22, 9, 0, tzinfo=UTC)
DRAIN = Drain(since=SINCE, timeout=None, busy=2, left=3, oldest_job=77, oldest_since=SINCE - timedelta(hours=1))

counts = st.integers(min_value=0, max_value=3)


@given(alive=counts, unrecorded=counts, open_rows=counts)
def test_a_pool_goes_only_when_cluster_and_rows_agree_that_nothing_lives(
    alive: int, unrecorded: int, open_rows: int
) -> None:
    verdict = judge_drain(DrainSeen(alive=alive, unrecorded=unrecorded, open_rows=open_rows))
    assert verdict.go == (alive == unrecorded == open_rows == 0)
    assert len(verdict.waits_for) == sum(count > 0 for count in (alive, unrecorded, open_rows))


def test_what_it_waits_for_is_told() -> None:
    verdict = judge_drain(DrainSeen(alive=2, unrecorded=0, open_rows=1))
    assert verdict.waits_for == ("2 Pods that are not terminal", "1 rows of Pods that might be alive")


def test_a_drain_without_a_timeout_is_never_overdue() -> None:
    told = report(DRAIN, now=SINCE + timedelta(days=30))
    assert not told.overdue
    assert told.reason == "PodsLeft"
    assert told.message == (
        "Draining since 2026-11-22T09:00:00Z: 2 of 3 remaining Pods are busy; "
        "job 77 has been running since 2026-11-22T08:00:00Z"
    )


@pytest.mark.parametrize(("seconds", "overdue"), [(3600, False), (3601, True)])
def test_one_with_a_timeout_is_overdue_after_it_and_says_so(*, seconds: int, overdue: bool) -> None:
    told = report(replace(DRAIN, timeout=3600.0), now=SINCE + timedelta(seconds=seconds))
    assert told.overdue == overdue
    assert (told.reason == "Overdue") == overdue
    assert ("drainTimeout has passed, but no job is stopped" in told.message) == overdue


def test_what_is_said_does_not_change_with_the_clock_alone() -> None:
    messages = {report(DRAIN, now=SINCE + timedelta(minutes=minutes)).message for minutes in range(0, 600, 7)}
    assert len(messages) == 1


def test_a_drain_without_a_job_names_none() -> None:
    assert "job" not in report(replace(DRAIN, oldest_job=None, oldest_since=None, busy=0), now=SINCE).message


def test_one_with_nothing_left_is_drained_and_late_for_nothing() -> None:
    told = report(replace(DRAIN, busy=0, left=0, oldest_job=None, timeout=1.0), now=SINCE + timedelta(days=1))
    assert (told.reason, told.overdue) == ("Drained", False)


@pytest.mark.parametrize(("left", "overdue"), [(0, False), (1, True)])
def test_a_drain_is_overdue_as_long_as_one_pod_is_left(left: int, *, overdue: bool) -> None:
    drain = replace(DRAIN, timeout=60.0, left=left)
    assert not report(drain, now=SINCE + timedelta(seconds=60)).overdue
    assert report(drain, now=SINCE + timedelta(seconds=61)).overdue is overdue


@pytest.mark.parametrize(
    ("volumes", "reason", "text"),
    [
        (0, "Drained", None),
        (1, "VolumesLeft", "not yet deleted: 1 PersistentVolumeClaim of the pool"),
        (2, "VolumesLeft", "not yet deleted: 2 PersistentVolumeClaims of the pool"),
        (None, "VolumesLeft", "the volumes of the pool could not be listed"),
    ],
)
def test_a_pool_without_pods_waits_for_its_volumes_and_says_so(
    volumes: int | None, reason: str, text: str | None
) -> None:
    drain = replace(DRAIN, busy=0, left=0, oldest_job=None, timeout=60.0, volumes=volumes)
    told, late = report(drain, now=SINCE), report(drain, now=SINCE + timedelta(seconds=61))
    assert (told.reason, told.overdue, late.overdue) == (reason, False, volumes != 0)
    assert (text or "0 of 0 remaining Pods are busy") in told.message

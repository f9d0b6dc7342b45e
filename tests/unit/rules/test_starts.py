"""Starts of a pool: the effects of one failure, one refusal and one creation."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from rules.pools.starts import (
    IMAGE_MISSED,
    IMAGE_REFUSED,
    NO_SANDBOX,
    NOTHING_YET,
    UNUSABLE,
    Starts,
    Trouble,
    accepted,
    backoff_seconds,
    failed,
    over_quota,
    recovered,
    refused,
    trouble_of,
    trouble_of_ended,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_refusals_back_off_when_pods_are_taken_in_between() -> None:
    """An admission webhook that refuses every second Pod must not be asked without a pause."""
    starts, pauses = NOTHING_YET, []
    for turn in range(4):
        now = NOW + timedelta(minutes=turn)
        starts = accepted(refused(starts, detail="no", now=now))
        assert starts.create_after is not None
        pauses.append((starts.create_after - now).total_seconds())
    assert (starts.failures, pauses) == (4, [0, 5, 10, 20])


@pytest.mark.parametrize("trouble", [Trouble.REFUSED, Trouble.QUOTA])
def test_a_creation_removes_what_the_api_server_said_and_nothing_else(trouble: Trouble) -> None:
    starts = Starts(failures=3, failed_at=NOW, create_after=NOW, trouble=trouble, detail="no")
    assert accepted(starts) == Starts(failures=3, failed_at=NOW, create_after=NOW)


@pytest.mark.parametrize("trouble", sorted(set(Trouble) - {Trouble.REFUSED, Trouble.QUOTA}))
def test_a_creation_changes_nothing_of_pods_that_did_not_poll(trouble: Trouble) -> None:
    starts = Starts(failures=3, failed_at=NOW, create_after=NOW, trouble=trouble, detail="x")
    assert accepted(starts) == starts


@pytest.mark.parametrize(
    ("reason", "poller", "trouble", "says"),
    [
        ("OutOfcpu", None, Trouble.UNSCHEDULABLE, "OutOfcpu"),
        ("Evicted", 137, Trouble.UNSCHEDULABLE, "Evicted"),
        (None, 1, Trouble.POLLER, "exited 1 "),
        *((None, code, Trouble.IMAGE, f"UnusableImage: {cure}") for code, cure in UNUSABLE.items()),
        (None, None, Trouble.CONTAINER, "before its poller ran"),
    ],
)
def test_trouble_of_a_pod_that_ended_names_what_ended_it(
    reason: str | None, poller: int | None, trouble: Trouble, says: str
) -> None:
    found, detail = trouble_of_ended(reason=reason, poller_exit_code=poller)
    assert found is trouble
    assert says in detail


def test_the_pause_doubles_from_the_second_failure_on_up_to_its_longest() -> None:
    assert [backoff_seconds(failures) for failures in range(10)] == [0, 0, 5, 10, 20, 40, 80, 160, 300, 300]
    assert backoff_seconds(10_000) == 300


def test_the_pods_of_one_round_are_one_failure() -> None:
    first = failed(NOTHING_YET, trouble=Trouble.IMAGE, detail="ErrImagePull", made_at=NOW, now=NOW)
    assert (first.failures, first.failed_at, first.trouble, first.detail) == (1, NOW, Trouble.IMAGE, "ErrImagePull")
    of_the_round = NOW - timedelta(seconds=1)
    later = NOW + timedelta(seconds=30)
    assert failed(first, trouble=Trouble.UNRESPONSIVE, detail="x", made_at=of_the_round, now=later) == first
    second = failed(first, trouble=Trouble.UNRESPONSIVE, detail="x", made_at=NOW, now=later)
    assert (second.failures, second.failed_at, second.trouble) == (2, later, Trouble.UNRESPONSIVE)
    assert second.create_after == later + timedelta(seconds=5)


def test_every_refusal_counts_and_says_what_the_api_server_said() -> None:
    once = refused(NOTHING_YET, detail="no", now=NOW)
    twice = refused(once, detail="still no", now=NOW)
    assert (twice.failures, twice.failed_at, twice.trouble, twice.detail) == (2, NOW, Trouble.REFUSED, "still no")


def test_no_pod_is_created_until_the_pause_is_over() -> None:
    starts = Starts(create_after=NOW)
    assert starts.waits(NOW - timedelta(seconds=1))
    assert not starts.waits(NOW)
    assert not NOTHING_YET.waits(NOW)


def test_a_quota_is_no_failure_and_hides_none() -> None:
    waiting = over_quota(NOTHING_YET, detail="pods: 10 of 10")
    assert waiting == Starts(trouble=Trouble.QUOTA, detail="pods: 10 of 10")
    assert over_quota(waiting, detail="pods: 9 of 9").detail == "pods: 9 of 9"
    broken = Starts(failures=2, failed_at=NOW, trouble=Trouble.IMAGE, detail="ErrImagePull")
    assert over_quota(broken, detail="pods: 10 of 10") == broken


def test_a_first_poll_after_the_failure_ends_the_story() -> None:
    starts = Starts(failures=2, failed_at=NOW, trouble=Trouble.IMAGE)
    assert recovered(starts, first_polls=[NOW, NOW - timedelta(seconds=9)]) == starts
    assert recovered(starts, first_polls=[NOW - timedelta(seconds=9), NOW + timedelta(seconds=1)]) == NOTHING_YET
    assert recovered(starts, first_polls=[]) == starts
    quota = Starts(trouble=Trouble.QUOTA)
    assert recovered(quota, first_polls=[NOW]) == quota


@pytest.mark.parametrize(
    ("waiting", "unschedulable", "poller", "trouble", "says"),
    [
        ("ErrImagePull", True, 2, Trouble.POLLER, "exited 2"),
        *((image, True, None, Trouble.IMAGE, image) for image in sorted(IMAGE_REFUSED | IMAGE_MISSED)),
        ("CreateContainerConfigError", True, None, Trouble.UNSCHEDULABLE, "within 30 s"),
        ("CreateContainerConfigError", False, None, Trouble.CONTAINER, "CreateContainerConfigError"),
        ("ContainerCreating", False, None, Trouble.UNRESPONSIVE, "within 30 s"),
        ("PodInitializing", False, None, Trouble.CONTAINER, "a sidecar did not become ready, within 30 s"),
        (NO_SANDBOX, False, None, Trouble.CONTAINER, "no sandbox for the Pod within 30 s"),
        (None, False, None, Trouble.UNRESPONSIVE, "within 30 s"),
    ],
)
def test_trouble_of_a_pod_that_does_not_poll_is_the_nearest_cause(
    waiting: str | None, unschedulable: bool, poller: int | None, trouble: Trouble, says: str
) -> None:
    found, words = trouble_of(waiting=waiting, unschedulable=unschedulable, poller_exit_code=poller, seconds=30.0)
    assert found is trouble
    assert says in words


@pytest.mark.parametrize(
    ("poller", "runner", "trouble", "says"),
    [
        (21, 0, Trouble.IMAGE, "install curl or GNU wget"),
        (23, 23, Trouble.IMAGE, "1001"),
        (None, 128, Trouble.IMAGE, "no /bin/sh"),
        (None, 137, Trouble.CONTAINER, "runner exited 137"),
        (None, 0, Trouble.CONTAINER, "runner exited 0"),
    ],
)
def test_trouble_of_an_unusable_image_names_cause_and_cure(
    poller: int | None, runner: int, trouble: Trouble, says: str
) -> None:
    found, words = trouble_of(
        waiting=None, unschedulable=False, poller_exit_code=poller, runner_exit_code=runner, seconds=30.0
    )
    assert found is trouble
    assert says in words


def test_a_refusal_counts_when_the_clock_has_gone_back() -> None:
    once = refused(NOTHING_YET, detail="no", now=NOW)
    assert refused(once, detail="no", now=NOW - timedelta(seconds=9)).failures == 2

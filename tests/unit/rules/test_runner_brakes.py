"""Brakes of pools and accounts by runners that never execute, and their probes."""

from datetime import UTC, datetime, timedelta

import pytest

from rules.claims.pod_ends import How
from rules.claims.runner_brakes import TOO_OLD, Brake, Failure, brake_of, counts, wait_seconds

START = datetime(2026, 11, 23, 12, tzinfo=UTC)


def _failure(
    number: int, *, job: int | None = None, account: int = 1, at: float, claimed: float = -30, code: int | None = 0
) -> Failure:
    return Failure(
        pod_uid=f"pod-{number}",
        job_id=number if job is None else job,
        account_id=account,
        claimed_at=START + timedelta(seconds=claimed),
        at=START + timedelta(seconds=at),
        exit_code=code,
        why="the Pod has ended",
    )


def _three(*accounts: int) -> list[Failure]:
    return [_failure(number, account=account, at=number) for number, account in enumerate(accounts)]


def _brake(failures: list[Failure]) -> Brake:
    brake = brake_of(failures)
    assert brake is not None
    return brake


def test_fewer_than_three_jobs_brake_nothing() -> None:
    assert brake_of([]) is None
    assert brake_of(_three(1, 2)) is None
    assert brake_of([_failure(number, job=number % 2, at=number) for number in range(20)]) is None


def test_three_jobs_on_one_pod_brake_nothing() -> None:
    again = [Failure("pod", job, 1, START, START, 0, "it ended") for job in (1, 2, 3)]

    assert brake_of(again) is None


def test_three_jobs_of_several_accounts_brake_the_pool() -> None:
    brake = _brake(_three(1, 2, 1))

    assert (brake.account_id, brake.jobs, brake.pods) == (None, 3, 3)
    assert (brake.since, brake.probe_at) == (START + timedelta(seconds=2), START + timedelta(seconds=12))


def test_three_jobs_of_one_account_brake_that_account() -> None:
    assert _brake(_three(7, 7, 7)).account_id == 7


def test_one_runner_whose_version_is_refused_brakes_the_pool() -> None:
    brake = _brake([_failure(1, account=7, at=0, code=TOO_OLD)])

    assert (brake.account_id, brake.too_old) == (None, True)
    assert "too old (exit code 7); 1 runner in a row" in brake.describe()


def test_each_probe_that_fails_doubles_the_wait_to_five_minutes() -> None:
    failures, waits = _three(1, 2, 3), []
    for number in range(3, 11):
        brake = _brake(failures)
        waits.append((brake.probe_at - brake.last_at).total_seconds())
        probed = (brake.probe_at - START).total_seconds()
        failures.append(_failure(number, claimed=probed, at=probed + 40))

    assert waits == [10, 20, 40, 80, 160, 300, 300, 300]


def test_what_was_under_way_when_the_brake_came_on_doubles_nothing() -> None:
    before = _brake(_three(1, 2, 3))
    late = [*_three(1, 2, 3), *(_failure(number, at=number, claimed=-1) for number in range(3, 100))]

    brake = _brake(late)

    assert (brake.since, brake.last_at, brake.probe_at) == (before.since, before.last_at, before.probe_at)
    assert brake.pods == 100


def test_the_order_in_which_failures_are_read_does_not_matter() -> None:
    failures = [*_three(1, 2, 3), _failure(3, claimed=13, at=50), _failure(4, claimed=80, at=120)]

    assert brake_of(failures[::-1]) == brake_of(failures)


@pytest.mark.parametrize(
    ("how", "counted"),
    [
        (How.COMPLETED, True),
        (How.FAILED, True),
        (How.OUT_OF_MEMORY, True),
        (How.UNKNOWN, True),
        (How.DEADLINE, True),
        (How.DELETED, False),
        (How.EVICTED, False),
        (How.PREEMPTED, False),
        (How.NODE, False),
    ],
)
def test_a_pod_that_somebody_took_away_says_nothing_about_its_runner(how: How, counted: bool) -> None:
    assert counts(how) is counted


def test_the_message_names_the_exit_code_and_the_reason() -> None:
    said = _brake([*_three(1, 2), _failure(9, at=9, code=134)]).describe()

    assert said == "3 runners in a row ended without a job; the last runner: exit code 134, the Pod has ended"


@pytest.mark.parametrize(
    "failure",
    [
        _failure(20, account=2, at=2000),
        _failure(20, account=1, at=2000, code=TOO_OLD),
    ],
    ids=["another account", "too old"],
)
def test_brake_restarts_when_it_becomes_that_of_the_pool(failure: Failure) -> None:
    failures = _three(1, 1, 1)
    for number in range(3, 9):
        probed = (_brake(failures).probe_at - START).total_seconds()
        failures.append(_failure(number, claimed=probed, at=probed + 40))

    brake = _brake([*failures, failure])

    assert (brake.account_id, brake.since, brake.probe_at) == (None, failure.at, failure.at + timedelta(seconds=10))


def test_accounts_are_ordered_by_their_latest_failure() -> None:
    assert _brake(_three(1, 2, 3, 1)).accounts == (2, 3, 1)


def test_waits_never_fall_below_the_first() -> None:
    assert [wait_seconds(step) for step in (-1, 0, 1, 2, 10**9)] == [10, 10, 10, 20, 300]


def test_the_words_of_a_brake_have_its_exit_code_if_there_is_one() -> None:
    told = _brake(_three(1, 2, 1)).describe()
    assert told == "3 runners in a row ended without a job; the last runner: exit code 0, the Pod has ended"
    silent = _brake([_failure(number, at=number, code=None) for number in range(3)]).describe()
    assert silent == "3 runners in a row ended without a job; the last runner: the Pod has ended"


def test_a_version_that_was_refused_once_brakes_the_pool_whatever_followed() -> None:
    later = [_failure(1, account=1, at=1, code=TOO_OLD), _failure(2, account=1, at=2, code=0)]
    assert _brake(later).account_id is None


def test_a_failure_that_was_claimed_with_the_last_one_doubles_nothing() -> None:
    three = _three(7, 7, 7)
    together = _failure(4, account=7, at=9, claimed=2)
    after = _failure(4, account=7, at=9, claimed=3)
    assert _brake([*three, together]).probe_at == _brake(three).probe_at
    assert _brake([*three, after]).probe_at == START + timedelta(seconds=9 + wait_seconds(2))


def test_the_account_of_the_latest_failure_is_named_last() -> None:
    same = [_failure(1, account=5, at=1), _failure(2, account=9, at=2), _failure(3, account=3, at=2)]
    assert _brake(same).accounts == (5, 9, 3)
    assert _brake([same[0], same[2], same[1]]).accounts == (5, 3, 9)


def test_three_jobs_on_two_pods_brake() -> None:
    failures = [_failure(number % 2, job=number, at=number) for number in range(3)]
    assert (_brake(failures).jobs, _brake(failures).pods) == (3, 2)

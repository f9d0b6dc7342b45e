"""Rules of persistent runners: the brake of failed registrations, the data for a Pod, and replaced runners."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rules.claims.registrations import (
    FIRST_WAIT,
    LONGEST_WAIT,
    OFFLINE_FOR,
    OUTAGE_FACTOR,
    REGISTERS_WITHIN,
    Registered,
    Shown,
    describe_registration,
    is_outage,
    might_be_shown_later,
    slots,
)
from rules.claims.registrations import why_remove as judge

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("code", "seconds", "later"),
    [(None, None, True), (1, 0, False), (143, None, False), (0, None, True), (0, 59, True), (0, 60, False)],
    ids=["runs", "failed", "killed", "registered at some time", "registered just now", "registered a minute ago"],
)
def test_absent_runner_might_appear_until_its_registration_is_over(
    code: int | None, seconds: int | None, *, later: bool
) -> None:
    ended_at = None if seconds is None else NOW - timedelta(seconds=seconds)
    assert might_be_shown_later(code, ended_at=ended_at, now=NOW) is later


def test_registrations_begin_at_once_until_one_fails() -> None:
    assert slots(failures=0, failed_at=None, open_claims=7, now=NOW) > 100


@pytest.mark.parametrize(("failures", "wait"), [(1, 10), (2, 20), (3, 40), (6, 320), (7, 600), (99, 600)])
def test_after_failures_one_registration_tests_github_after_a_growing_wait(failures: int, wait: int) -> None:
    failed_at = NOW - timedelta(seconds=wait)
    assert slots(failures=failures, failed_at=failed_at, open_claims=0, now=NOW) == 1
    early = NOW - timedelta(seconds=1)
    assert slots(failures=failures, failed_at=failed_at, open_claims=0, now=early) == 0
    assert slots(failures=failures, failed_at=failed_at, open_claims=1, now=NOW) == 0


@given(failures=st.integers(1, 10**6))
def test_no_number_of_failures_makes_the_wait_longer_than_its_limit(failures: int) -> None:
    assert slots(failures=failures, failed_at=NOW - LONGEST_WAIT, open_claims=0, now=NOW) == 1
    assert slots(failures=failures, failed_at=NOW - FIRST_WAIT / 2, open_claims=0, now=NOW) == 0


def test_a_registration_is_one_value_per_line() -> None:
    text = describe_registration(url="https://g/acme", token="t", name="n", labels=["a", "b c"], group=None)
    assert text == "url=https://g/acme\ntoken=t\nname=n\nlabels=a,b c\ngroup=\n"


LONGEST_JOB = 1000.0


def why_remove(runner: Registered) -> str | None:
    return judge(runner, longest_job=LONGEST_JOB)


WAITING = Registered(shown=Shown.ABSENT, ever_online=False)
ONCE = Registered(shown=Shown.OFFLINE, ever_online=True)


@pytest.mark.parametrize("shown", [Shown.ONLINE, Shown.BUSY])
@pytest.mark.parametrize("ever_online", [False, True])
def test_a_runner_that_github_shows_at_work_stays(shown: Shown, *, ever_online: bool) -> None:
    runner = Registered(shown=shown, ever_online=ever_online, absent_before=True, delivered_for=1e9, offline_for=1e9)
    assert why_remove(runner) is None


@pytest.mark.parametrize("shown", [Shown.OFFLINE, Shown.ABSENT])
def test_a_runner_gets_time_to_come_online(shown: Shown) -> None:
    early = replace(WAITING, shown=shown, absent_before=True, delivered_for=REGISTERS_WITHIN - 1, offline_for=1e9)
    assert why_remove(early) is None
    assert why_remove(replace(early, delivered_for=REGISTERS_WITHIN)) == "its runner did not come online within 600 s"


def test_a_runner_that_was_deleted_on_github_needs_two_lists() -> None:
    absent = replace(ONCE, shown=Shown.ABSENT, offline_for=1e9)
    assert why_remove(absent) is None
    assert why_remove(replace(absent, absent_before=True)) == "GitHub does not know its runner any more"


@pytest.mark.parametrize("ever_online", [False, True])
def test_a_runner_that_github_does_not_know_stays_until_the_end_of_its_job_is_known(*, ever_online: bool) -> None:
    absent = replace(ONCE, shown=Shown.ABSENT, ever_online=ever_online, absent_before=True, delivered_for=1e9)
    assert why_remove(replace(absent, executes_for=LONGEST_JOB - 1)) is None
    assert why_remove(replace(absent, executes_for=LONGEST_JOB)) == why_remove(absent)
    assert why_remove(absent) is not None


def test_a_runner_is_busy_for_as_long_as_github_lets_a_job_run() -> None:
    busy = Registered(shown=Shown.BUSY, ever_online=True, executes_for=LONGEST_JOB - 1)
    assert why_remove(busy) is None
    late = replace(busy, executes_for=LONGEST_JOB)
    assert why_remove(late) == "its job has been running for longer than GitHub allows"
    assert why_remove(replace(late, shown=Shown.ONLINE)) is None, "only the record of the job is old"


@pytest.mark.parametrize(
    ("offline", "known", "outage"), [(1, 1, False), (2, 2, False), (3, 3, True), (3, 6, False), (4, 7, True)]
)
def test_most_runners_of_a_scope_at_once_are_an_outage(offline: int, known: int, *, outage: bool) -> None:
    assert is_outage(offline=offline, known=known) is outage


def test_an_offline_runner_is_replaced_only_after_long() -> None:
    assert why_remove(replace(ONCE, offline_for=OFFLINE_FOR - 1, delivered_for=1e9)) is None
    assert why_remove(replace(ONCE, offline_for=OFFLINE_FOR)) == "its runner was offline for 600 s"
    outage = replace(ONCE, outage=True, offline_for=OUTAGE_FACTOR * OFFLINE_FOR - 1)
    assert why_remove(outage) is None
    assert why_remove(replace(outage, offline_for=OUTAGE_FACTOR * OFFLINE_FOR)) == "its runner was offline for 3600 s"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a sweep in seconds. They are short, so that random times are often equal to them."""

    longest_job: float
    registers_within: float
    offline_for: float

    def judge(self, runner: Registered) -> str | None:
        """Return why a runner must be removed under these limits, or None."""
        return judge(
            runner,
            longest_job=self.longest_job,
            registers_within=self.registers_within,
            offline_for=self.offline_for,
        )

    def reached(self, runner: Registered) -> bool:
        """Return whether a runner, as GitHub shows it, has reached the limit after which it may be removed."""
        executes_for = math.inf if runner.executes_for is None else runner.executes_for
        if runner.shown is Shown.BUSY:
            return self.longest_job <= executes_for < math.inf
        if runner.shown is Shown.ABSENT and executes_for < self.longest_job:
            return False
        if not runner.ever_online:
            return runner.delivered_for >= self.registers_within
        if runner.shown is Shown.ABSENT:
            return runner.absent_before
        return runner.offline_for >= self.offline_for * (OUTAGE_FACTOR if runner.outage else 1)


limits = st.builds(Limits, **dict.fromkeys(("longest_job", "registers_within", "offline_for"), st.integers(1, 5)))
times = st.integers(0, 6) | st.integers(0, 40)
many = settings(max_examples=500)
runners = st.builds(
    Registered,
    shown=st.sampled_from(Shown),
    ever_online=st.booleans(),
    absent_before=st.booleans(),
    executes_for=st.none() | times,
    outage=st.booleans(),
    delivered_for=times,
    offline_for=times,
)


@many
@given(limits, runners)
def test_no_runner_that_github_shows_at_work_is_removed_within_the_limit_of_a_job(
    of: Limits, runner: Registered
) -> None:
    assert of.judge(replace(runner, shown=Shown.ONLINE)) is None
    assert of.judge(replace(runner, shown=Shown.BUSY, executes_for=None)) is None
    if runner.executes_for is not None and runner.executes_for < of.longest_job:
        assert of.judge(replace(runner, shown=Shown.BUSY)) is None
        assert of.judge(replace(runner, shown=Shown.ABSENT)) is None, "GitHub cannot refuse to delete this runner"


@many
@given(limits, runners)
def test_no_runner_is_removed_before_its_limit(of: Limits, runner: Registered) -> None:
    if of.judge(runner) is not None:
        assert runner.shown is not Shown.ONLINE
        assert of.reached(runner)


@many
@given(limits, runners, times, times, times)
def test_a_runner_that_must_be_removed_stays_so_as_time_passes(
    of: Limits, runner: Registered, executes: int, delivered: int, offline: int
) -> None:
    later = replace(
        runner,
        executes_for=None if runner.executes_for is None else runner.executes_for + executes,
        delivered_for=runner.delivered_for + delivered,
        offline_for=runner.offline_for + offline,
    )
    assert of.judge(runner) is None or of.judge(later) is not None

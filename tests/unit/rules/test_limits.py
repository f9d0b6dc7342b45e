"""Checks that every sweep must pass: its budget of a tick, its switch, its witnesses, and its lateness."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from rules.sweeps.limits import ALL, Source, Witness, allowance, enough, is_late, switched_off

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(("listed", "repairs"), [(0, 5), (50, 5), (59, 5), (60, 6), (1010, 101), (1019, 101)])
def test_allowance_is_a_tenth_of_the_list_and_never_less_than_the_minimum(listed: int, repairs: int) -> None:
    assert allowance(listed, least=5, percent=10) == repairs


@pytest.mark.parametrize(("listed", "repairs"), [(0, 30), (28, 30), (309, 30), (310, 31)])
def test_least_allowance_is_30_when_postgres_and_kubernetes_agree(listed: int, repairs: int) -> None:
    assert allowance(listed, least=5, percent=10, agreed=True) == repairs


def test_two_statements_of_one_source_are_one_witness() -> None:
    absent, offline = Witness(Source.GITHUB, "the runner is absent"), Witness(Source.GITHUB, "the runner is offline")
    assert not enough([])
    assert not enough([absent, offline])
    assert enough([absent, offline, Witness(Source.POSTGRES, "nothing was delivered")])


def test_a_sweep_is_switched_off_by_its_name_or_with_all_of_them() -> None:
    assert switched_off("prune", by_setting={"prune", "gates"})
    assert switched_off("prune", by_setting={ALL})
    assert not switched_off("prune", by_setting={"gates"})
    assert not switched_off("prune", by_setting=())


@pytest.mark.parametrize(
    ("last", "since", "late"),
    [(180, 500, False), (181, 500, True), (500, 180, False), (500, 181, True), (0, 0, False)],
    ids=["ran in time", "three periods missed", "watched since a moment", "watched long enough", "just ran"],
)
def test_a_sweep_is_late_after_three_periods_since_its_success_and_its_watch(
    last: int, since: int, *, late: bool
) -> None:
    before = {"last": NOW - timedelta(seconds=last), "since": NOW - timedelta(seconds=since)}
    assert is_late(**before, period=60.0, paused=False, now=NOW) is late
    assert not is_late(**before, period=60.0, paused=True, now=NOW)

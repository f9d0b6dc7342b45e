"""Broken laws as a chaos run detects them, and harmless events that it does not report."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from lab.chaos.freezer import Freeze
from lab.chaos.laws import (
    Absence,
    ClaimSpan,
    Kill,
    LingeringPod,
    LiveClaim,
    Moment,
    at_a_moment,
    of_a_deletion,
    of_absences,
    of_an_unstamp,
    of_budgets,
    of_executions,
    of_refusals,
    of_strangers,
)
from lab.invariants import BudgetRow

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def live(number: int, *, job: int | None = None, pod: str = "", state: str = "minted", stamp: str = "on") -> LiveClaim:
    return LiveClaim(number, "job", state, stamp, job or number, pod or f"uid-{number}", 7, 2000, 4096)


def moment(
    *claims: LiveClaim, budget: int = 2, unclaimed: tuple[int, ...] = (), lingering: tuple[LingeringPod, ...] = ()
) -> Moment:
    budgets = {7: BudgetRow(count=budget, vcpu=9000, memory=9000)}
    return Moment(claims=claims, budgets=budgets, unclaimed=unclaimed, lingering=lingering)


def span(
    number: int,
    *,
    purpose: str = "job",
    began: float = -60,
    delivered: float | None = None,
    ended: float | None = None,
    removing: bool = False,
) -> ClaimSpan:
    def at(seconds: float | None) -> datetime | None:
        return None if seconds is None else NOW + timedelta(seconds=seconds)

    return ClaimSpan(number, purpose, number, NOW + timedelta(seconds=began), at(delivered), at(ended), removing)


def test_a_moment_in_which_all_is_well_breaks_no_law() -> None:
    assert list(at_a_moment(moment(live(1), live(2, state="claimed", stamp="none")))) == []


@pytest.mark.parametrize(
    ("law", "seen"),
    [
        ("L1", moment(live(1), live(2, pod="uid-1"))),
        ("L1", moment(live(1), live(2, job=1))),
        ("L2", moment(live(1), live(2), budget=1)),
        ("L2", moment(live(1), budget=1, lingering=(LingeringPod("uid-9", 7, 2000, 4096),))),
        ("L4", moment(unclaimed=(5,))),
        ("L5", moment(live(1, state="delivered", stamp="none"))),
    ],
)
def test_a_moment_names_the_law_that_it_breaks(law: str, seen: Moment) -> None:
    assert {each.law for each in at_a_moment(seen)} == {law}


def test_a_deletion_under_a_retire_claim_breaks_no_law() -> None:
    claims = [span(1, delivered=-50, ended=-10), span(2, purpose="retire", began=-10)]

    assert list(of_a_deletion("p1", seen_at=NOW, claims=claims)) == []


@pytest.mark.parametrize(
    ("laws", "claims"),
    [
        ({"L7"}, [span(1, ended=-10)]),
        ({"L7"}, [span(1, ended=-10), span(2, purpose="retire", began=5)]),
        ({"L7", "L8"}, [span(1)]),
        ({"L3", "L7", "L8"}, [span(1, delivered=-5)]),
        ({"L7", "L8"}, [span(1, delivered=1, ended=5)]),
    ],
)
def test_a_deletion_without_a_retire_claim_names_what_it_breaks(laws: set[str], claims: list[ClaimSpan]) -> None:
    assert {each.law for each in of_a_deletion("p1", seen_at=NOW, claims=claims)} == laws


def test_a_stamp_may_be_lost_before_a_delivery_and_never_after_one() -> None:
    before, removed, after = span(1), span(1, delivered=-5, removing=True), span(1, delivered=-5)

    assert list(of_an_unstamp("p1", seen_at=NOW, claims=[before])) == []
    assert list(of_an_unstamp("p1", seen_at=NOW, claims=[removed])) == []
    assert {each.law for each in of_an_unstamp("p1", seen_at=NOW, claims=[after])} == {"L3"}


@pytest.mark.parametrize(("gone_for", "laws"), [(-5.0, {"L8"}), (3.0, {"L8"}), (61.0, set())])
def test_a_runner_that_was_there_a_moment_ago_was_not_absent_in_two_checks(gone_for: float, laws: set[str]) -> None:
    log = [{"event": "runner_deleted", "runner": "r1", "at": 1000.0}]

    assert {each.law for each in of_absences([Absence(1, "r1", 1000.0 + gone_for)], log)} == laws


def test_a_runner_that_is_still_there_was_not_absent_at_all() -> None:
    assert [each.law for each in of_absences([Absence(1, "r1", 1000.0)], [])] == ["L8"]


def test_a_stranger_that_is_deregistered_breaks_a_law_and_a_runner_of_ours_does_not() -> None:
    log = [{"event": "runner_deleted", "runner": name, "at": 1.0} for name in ("theirs", "ours")]

    assert [each.law for each in of_strangers({"theirs"}, log)] == ["L3"]


def test_a_pod_may_only_be_deleted_in_its_job_by_the_run_itself() -> None:
    log = [
        {"event": "pod_deleted", "pod": uid, "uid": uid, "job": job} for uid, job in (("a", 1), ("b", 2), ("c", None))
    ]

    found = list(of_executions(log, vanished={"a"}, github=[]))

    assert [each.law for each in found] == ["L3"]
    assert "Pod b" in found[0].what


@pytest.mark.parametrize(
    ("conclusion", "end", "laws"),
    [
        ("success", "end_not_seen", []),
        ("failure", "end_not_seen", ["L3"]),
        ("success", "killed", ["L3"]),
    ],
)
def test_a_pod_is_excused_only_if_its_runner_ended_unseen_and_after_its_job(
    conclusion: str, end: str, laws: list[str]
) -> None:
    pod = {"pod": "p1", "uid": "u1"}
    log: list[dict[str, object]] = [
        {"event": "runner_started", **pod, "runner_name": "r1"},
        {"event": "job_started", **pod, "job": 1},
        {"event": end, **pod, "job": 1},
        {"event": "pod_deleted", **pod, "job": 1},
    ]
    github: list[dict[str, object]] = [
        {"event": "job_started", "job": 1, "runner": "r1"},
        {"event": "job_completed", "job": 1, "conclusion": conclusion},
    ]

    assert [each.law for each in of_executions(log, vanished=(), github=github)] == laws


def test_a_tick_that_kills_more_than_it_may_breaks_a_law() -> None:
    assert [each.law for each in of_budgets([Kill("a", 1, 5, 5), Kill("b", 2, 6, 5)])] == ["L9"]


def refused(job: int, *, at: float, guid: str = "g", status: int = 503) -> dict[str, object]:
    return {"event": "webhook_sent", "action": "completed", "at": at, "guid": guid, "job": job, "status": status}


def frozen(*jobs: int, runners: tuple[str, ...] = ()) -> Freeze:
    return Freeze("worker-0", 1, 100.0, jobs=frozenset(jobs), runners=frozenset(runners), ended=120.0)


def test_webhooks_whose_rows_a_frozen_process_held_may_be_refused() -> None:
    given = {"event": "job_started", "job": 2, "runner": "r1", "at": 90.0}
    log = [given, refused(1, at=110.0), refused(2, at=110.0), refused(1, at=125.0)]

    found = of_refusals(log, freezes=[frozen(1, runners=("r1",))], silences=[], contended=())

    assert (found.frozen, found.unexplained) == (3, ())


@pytest.mark.parametrize("at", [99.0, 110.0, 131.0])
def test_refusal_of_a_webhook_whose_row_nobody_held_breaks_a_law(at: float) -> None:
    """Before the freeze, during it, and after the answers to everything that was sent during it."""
    found = of_refusals([refused(1 if at != 110.0 else 2, at=at)], freezes=[frozen(1)], silences=[], contended=())

    assert [each.law for each in found.unexplained] == ["L14"]


def test_refusals_during_an_outage_and_of_contended_rows_are_counted_apart() -> None:
    log = [refused(1, at=10.0), refused(2, at=30.0, guid="c"), refused(3, at=30.0, status=202)]

    found = of_refusals(log, freezes=[], silences=[(5.0, 15.0)], contended={"c"})

    assert (found.silent, found.contended, found.unexplained) == (1, 1, ())

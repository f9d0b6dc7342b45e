"""The checker of the laws: it accepts a good history, and detects for each law a history that breaks it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from lab.invariants import INVARIANTS, BudgetRow, ClaimRow, EventRow, History, PodLeft, broken

START = datetime(2026, 1, 1, tzinfo=UTC)


def claim(number: int, *, job: int | None = None, pod: str = "uid-1", ended: bool = True) -> ClaimRow:
    return ClaimRow(
        id=number,
        purpose="job",
        job_id=job or number,
        pod_uid=pod,
        account_id=7,
        vcpu=2000,
        memory=4096,
        created_at=START,
        delivered_at=START,
        ended_at=START + timedelta(seconds=9) if ended else None,
    )


def events(number: int, *names: str, after: int = 0) -> list[EventRow]:
    return [EventRow(id=after + step, claim_id=number, transition=name) for step, name in enumerate(names, start=1)]


WELL = ("claim", "stamp_on", "mint", "deliver", "execute", "end_completed")

GOOD = History(
    claims=[claim(1)],
    events=events(1, *WELL),
    jobs={1: "completed"},
    budgets={7: BudgetRow(count=1, vcpu=4000, memory=8192)},
    pods=[PodLeft(uid="uid-9", name="p9", stamp="0.0", owner=None, over=False)],
    github=[{"event": "job_queued", "job": 1}],
    kubelet=[
        {"event": "jit_received", "uid": "uid-1", "pod": "p1", "claim": "1", "runner_name": "r1"},
        {"event": "pod_deleted", "uid": "uid-1", "pod": "p1", "phase": "Succeeded", "at": START.isoformat()},
    ],
)
UNDELIVERED = replace(claim(1), delivered_at=None)
RETIRED = replace(
    claim(2, pod="uid-2"), purpose="retire", job_id=None, account_id=None, delivered_at=None, vcpu=0, memory=0
)
DELETED = {"event": "pod_deleted", "uid": "uid-2", "pod": "p2", "phase": "Running"}

BAD: dict[str, tuple[str, History]] = {
    "two claims on one Pod": (
        "L1",
        replace(
            GOOD,
            claims=[UNDELIVERED, claim(2)],
            events=[*events(1, "claim"), *events(2, *WELL, after=1), *events(1, "end_released", after=9)],
            budgets={7: BudgetRow(count=2, vcpu=4000, memory=8192)},
        ),
    ),
    "two claims for one job": (
        "L1",
        replace(
            GOOD,
            claims=[UNDELIVERED, claim(2, job=1, pod="uid-2")],
            events=[*events(1, "claim"), *events(2, *WELL, after=1), *events(1, "end_released", after=9)],
            budgets={7: BudgetRow(count=2, vcpu=4000, memory=8192)},
        ),
    ),
    "a Pod that carries the stamp of another's claim": (
        "L1",
        replace(GOOD, pods=[PodLeft(uid="uid-9", name="p9", stamp="1.2", owner=None, over=False)]),
    ),
    "more claims than the budget allows": (
        "L2",
        replace(
            GOOD,
            claims=[claim(1), claim(2, pod="uid-2")],
            events=[*events(1, *WELL[:-1]), *events(2, *WELL, after=5), *events(1, "end_completed", after=20)],
        ),
    ),
    "more memory than the budget allows": (
        "L2",
        replace(GOOD, budgets={7: BudgetRow(count=5, vcpu=9000, memory=1024)}),
    ),
    "a claim that never ended": ("L4", replace(GOOD, claims=[claim(1, ended=False)], events=events(1, *WELL[:-1]))),
    "a job that is still queued": ("L4", replace(GOOD, jobs={1: "queued"})),
    "a job that we never heard of": ("L4", replace(GOOD, jobs={})),
    "a stamped Pod without a claim": (
        "L4",
        replace(GOOD, pods=[PodLeft(uid="uid-1", name="p1", stamp="1.1", owner=7, over=False)]),
    ),
    "an ended Pod that nobody deleted": (
        "L4",
        replace(GOOD, pods=[PodLeft(uid="uid-1", name="p1", stamp="1.1", owner=7, over=True)]),
    ),
    "a mint before the stamp": (
        "L5",
        replace(GOOD, events=events(1, "claim", "mint", "stamp_on", "deliver", "end_completed")),
    ),
    "a delivery without a stamp": ("L5", replace(GOOD, events=events(1, "claim", "mint", "deliver", "end_completed"))),
    "a delivery without a mint": (
        "L5",
        replace(GOOD, events=events(1, "claim", "stamp_on", "deliver", "end_completed")),
    ),
    "a deletion without a retire claim": (
        "L7",
        replace(GOOD, kubelet=[*GOOD.kubelet, DELETED | {"at": START.isoformat()}]),
    ),
    "a deletion before its retire claim": (
        "L7",
        replace(
            GOOD,
            claims=[claim(1), RETIRED],
            events=[*GOOD.events, *events(2, "retire", "end_retired", after=20)],
            kubelet=[*GOOD.kubelet, DELETED | {"at": (START - timedelta(seconds=1)).isoformat()}],
        ),
    ),
    "a JIT in two Pods": (
        "L11",
        replace(
            GOOD,
            kubelet=[*GOOD.kubelet, {"event": "jit_received", "uid": "uid-2", "claim": "2", "runner_name": "r1"}],
        ),
    ),
}


def test_a_history_in_which_all_went_well_breaks_no_law() -> None:
    assert broken(GOOD) == []


def test_a_retirement_under_its_claim_and_a_pod_that_the_test_deleted_break_no_law() -> None:
    late = (START + timedelta(seconds=1)).isoformat()
    history = replace(
        GOOD,
        claims=[claim(1), RETIRED],
        events=[*GOOD.events, *events(2, "retire", "end_retired", after=20)],
        kubelet=[*GOOD.kubelet, DELETED | {"at": late}, DELETED | {"uid": "uid-3", "at": late}],
        deleted={"uid-3"},
    )

    assert broken(history) == []


def test_a_job_that_is_claimed_again_after_its_release_breaks_no_law() -> None:
    history = replace(
        GOOD,
        claims=[UNDELIVERED, claim(2, job=1, pod="uid-2")],
        events=[
            *events(1, "claim", "stamp_gave_up", "begin_release", "end_released"),
            *events(2, "claim", "stamp_gave_up", "mint", "deliver", "stamp_on", "execute", "end_completed", after=9),
        ],
    )

    assert broken(history) == []


def test_each_law_is_broken_by_some_history() -> None:
    assert {law for law, _ in BAD.values()} == set(INVARIANTS)


@pytest.mark.parametrize("what", BAD)
def test_a_bad_history_is_found_and_only_by_its_own_law(what: str) -> None:
    law, history = BAD[what]

    assert {problem.partition(":")[0] for problem in broken(history)} == {law}

"""The verdict on a run with a malicious tenant: its findings in logs that the test writes."""

from __future__ import annotations

from typing import Any

from lab.chaos.tenant import BUDGET, most_pods, problems_of, waits_of


def begun(job: int, pod: str) -> dict[str, Any]:
    return {"event": "job_started", "job": job, "uid": pod}


def test_a_pod_counts_from_its_job_until_it_ends_and_not_until_its_job_does() -> None:
    owners = {1: "acme", 2: "acme", 3: "acme", 4: "globex"}
    log = [
        begun(1, "a"),
        {"event": "job_finished", "job": 1, "uid": "a"},
        begun(2, "b"),
        begun(4, "d"),
        {"event": "pod_ended", "uid": "a"},
        {"event": "pod_deleted", "uid": "a"},
        begun(3, "c"),
    ]
    assert most_pods(log, owners) == {"acme": 2, "globex": 1}


def test_the_wait_of_a_job_ends_with_its_first_start() -> None:
    log = [
        {"event": "job_queued", "job": 1, "at": 10.0},
        {"event": "job_queued", "job": 2, "at": 10.0},
        {"event": "job_started", "job": 1, "at": 12.5},
        {"event": "job_started", "job": 1, "at": 90.0},
    ]
    assert waits_of(log, {1, 2}) == {1: 2.5}


def test_a_failed_job_a_long_wait_and_an_exceeded_budget_are_problems() -> None:
    log = [
        {"event": "job_completed", "job": 1, "conclusion": "success"},
        {"event": "job_completed", "job": 2, "conclusion": "failure"},
    ]
    assert list(problems_of(log, {1}, waits=[59.0], most={"acme": BUDGET})) == []
    found = list(problems_of(log, {1, 2, 3}, waits=[1.0, 61.0], most={"acme": BUDGET + 1}))
    assert len(found) == 4
    assert found[-1].startswith("L2: acme had 5 Pods")

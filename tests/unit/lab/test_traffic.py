"""Report of `python -m lab.traffic` about the jobs that it sent."""

from __future__ import annotations

from typing import Any

import pytest

from lab import traffic


def job(number: int, **facts: Any) -> dict[str, Any]:
    return {"id": number, "status": "completed", "conclusion": "success", "executions": 1} | facts


def follow(monkeypatch: pytest.MonkeyPatch, *looks: list[dict[str, Any]], stalled: float = 60) -> tuple[bool, str]:
    """Follow jobs 1 and 2 over these answers of GitHub. The last answer is repeated."""
    left = list(looks)

    def pull(_url: str, method: str, path: str) -> Any:
        assert (method, path) == ("GET", "/jobs")
        return {"jobs": left.pop(0) if len(left) > 1 else left[0]}

    monkeypatch.setattr(traffic, "pull", pull)
    said: list[str] = []
    good = traffic.follow("http://nowhere", [1, 2], say=said.append, stalled=stalled, every=0)
    return good, said[-1]


def test_traffic_waits_until_its_jobs_are_over_and_ignores_others(monkeypatch: pytest.MonkeyPatch) -> None:
    began = [job(1), job(2, status="in_progress", conclusion=None), job(3, executions=2)]
    ended = [job(1), job(2), job(3, executions=2)]
    assert follow(monkeypatch, began, ended) == (True, "2 of 2 jobs completed exactly once")


@pytest.mark.parametrize("facts", [{"executions": 2}, {"executions": 0}, {"conclusion": "failure"}])
def test_a_job_that_did_not_complete_exactly_once_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any]
) -> None:
    assert follow(monkeypatch, [job(1), job(2, **facts)]) == (False, "1 of 2 jobs completed exactly once")


def test_a_job_that_is_never_over_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = job(2, status="queued", conclusion=None, executions=0)
    assert follow(monkeypatch, [job(1), waits], stalled=0) == (False, "1 of 2 jobs completed exactly once")

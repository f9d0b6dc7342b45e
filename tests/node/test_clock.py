"""Clocks that differ by two minutes on a real node: web is 60 s ahead of Postgres, and the worker is 60 s behind.

Only the clock that Ostler reads is moved (`OSTLER_CLOCK_OFFSET`). The kubelet and the API server have the right time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
import urllib3

from lab.processes import Child
from lab.system import read_log_lines
from ostler.variables import CLOCK_OFFSET
from tests.fleet import Fleet
from tests.waiting import eventually

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

OFFSETS = {"web-0": 60, "worker-0": -60}
JOBS = 10


def restart(child: Child, env: Mapping[str, str]) -> None:
    child.stop()
    child.env = dict(env)
    child.start()


@pytest.fixture
def moved(fleet: Fleet) -> Iterator[Fleet]:
    """Yield the system while web and worker have moved clocks."""
    children = {name: fleet.system.children[name] for name in OFFSETS}
    before = {name: dict(child.env or {}) for name, child in children.items()}
    fleet.wait_until_whole()
    try:
        for name, child in children.items():
            restart(child, {**before[name], CLOCK_OFFSET: str(OFFSETS[name])})
        eventually(lambda: fleet.system.is_ready(0), "web is not ready")
        yield fleet
    finally:
        for name, child in children.items():
            restart(child, before[name])


def skew(fleet: Fleet) -> float:
    """Return the skew that web shows in its metrics, or 0 while it shows none."""
    page = urllib3.request("GET", f"{fleet.system.private_url}/metrics", timeout=10).data.decode()
    lines = [line for line in page.splitlines() if line.startswith("ostler_clock_skew_seconds")]
    return float(lines[0].split()[-1]) if lines else 0


def ahead_by(child: Child) -> list[float]:
    """Return the differences that a process logged."""
    lines = read_log_lines(child.log)
    return [each["ahead_by_seconds"] for each in lines if each.get("event") == "clock.differs_from_postgres"]


def test_jobs_complete_once_with_moved_clocks_and_no_pod_ends_without_its_job(moved: Fleet) -> None:
    warm = {pod["metadata"]["uid"] for pod in moved.pods().values()}
    killed_before = len(moved.events("killed"))

    jobs = moved.send(JOBS, duration_seconds=5)

    for job in jobs:
        over = moved.wait_for(job, "completed", within=240)
        assert (over["conclusion"], over["executions"]) == ("success", 1)
    moved.wait_until_whole()
    worked = {each["uid"] for each in moved.events("job_finished")}
    ended = {each["uid"] for each in moved.events("pod_ended")} | {each["uid"] for each in moved.events("pod_deleted")}
    assert warm & ended <= worked
    assert len(moved.events("killed")) == killed_before
    assert skew(moved) == pytest.approx(60, abs=1)
    for name, offset in OFFSETS.items():
        said = ahead_by(moved.system.children[name])
        assert said
        assert said[-1] == pytest.approx(offset, abs=1)

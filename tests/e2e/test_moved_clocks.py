"""Clocks that differ by two minutes: web is 60 s ahead of Postgres, and the worker is 60 s behind.

Only the clock that Ostler reads is moved (`OSTLER_CLOCK_OFFSET`). Pods, GitHub, Postgres and Celery have the right
time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import urllib3
from sqlalchemy import create_engine, text

from lab.bootstrap import LabPool
from lab.processes import free_port
from lab.system import Options, System, read_log, read_log_lines
from lab.timings import timings
from lab.verdict import judge
from ostler.variables import CLOCK_OFFSET
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LABELS = ("self-hosted", "linux", "moved")
PODS = 6
JOBS = 10
OFFSETS = {"web": 60, "worker": -60}


@pytest.fixture(scope="module")
def metrics_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, metrics_port: int) -> Iterator[System]:
    """A whole system whose sweeps run every second."""
    moved = {process: {CLOCK_OFFSET: str(offset)} for process, offset in OFFSETS.items()}
    options = Options(
        pools=(LabPool("moved", LABELS, PODS, cpu="1", memory="1Gi"),),
        beats=1,
        real_pods=0,
        settings=timings(sweep_every=1, resume_every=1),
        environment_of={**moved, "worker": {**moved["worker"], "OSTLER_METRICS_PORT": str(metrics_port)}},
    )
    with System(tmp_path_factory.mktemp("system"), options, say=print, cluster="embedded") as running:
        running.wait_for_warm_pods(PODS, timeout=120)
        yield running


def rows(system: System, statement: str) -> list[dict[str, Any]]:
    engine = create_engine(system.postgres.url("ostler"))
    with engine.connect() as db:
        found: list[dict[str, Any]] = [{**row} for row in db.execute(text(statement)).mappings()]
    engine.dispose()
    return found


def skew(url: str) -> float:
    """Return the skew that a process shows in its metrics."""
    lines = urllib3.request("GET", f"{url}/metrics", timeout=10).data.decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith("ostler_clock_skew_seconds"))


def logged(system: System, process: str, event: str) -> list[Mapping[str, Any]]:
    lines = read_log_lines(system.children[f"{process}-0"].log)
    return [each for each in lines if each.get("event") == event]


def checks(system: System, process: str) -> dict[str, Mapping[str, Any]]:
    """Return the findings of doctor by check, as a process with the clock of `process` makes them."""
    done = system.command("doctor", "--json", "--only", "postgres,github", process=process)
    findings = json.loads(done.stdout[done.stdout.index("[\n") :])  # warnings come before it
    return {each["name"]: each for each in findings}


def test_jobs_complete_once_and_no_pod_ends_without_its_job(system: System) -> None:
    for _ in range(2):
        body = {"repository": "acme/shop", "labels": list(LABELS), "count": JOBS // 2, "duration_seconds": 3}
        system.lab("POST", "/jobs", body)
    eventually(
        lambda: rows(system, "SELECT count(*) AS n FROM jobs WHERE state = 'completed'")[0]["n"] == JOBS,
        "the jobs are not recorded as completed",
    )
    system.wait_for_warm_pods(PODS, timeout=120)
    begun = rows(system, "SELECT max(id) AS id FROM sweep_runs")[0]["id"]
    eventually(
        lambda: rows(system, "SELECT max(id) AS id FROM sweep_runs")[0]["id"] > begun + 100,
        "the sweeps do not run",
    )

    github, kubelet = read_log(system.github_log), read_log(system.kubelet_log)
    verdict = judge(github, kubelet, allow_leftover_runners=True)
    assert not verdict.problems
    assert (verdict.jobs, verdict.executions, verdict.conclusions) == (JOBS, JOBS, {"success": JOBS})
    worked = {each["uid"] for each in kubelet if each["event"] == "job_finished"}
    assert {each["uid"] for each in kubelet if each["event"] == "pod_deleted"} <= worked
    assert rows(system, "SELECT sweep, what, why FROM repairs WHERE kills") == []


def test_skew_is_measured_and_said(system: System, metrics_port: int) -> None:
    for url in (system.private_url, f"http://127.0.0.1:{metrics_port}"):
        assert skew(url) == pytest.approx(60, abs=1)
    for process, offset in OFFSETS.items():
        assert [each["by_seconds"] for each in logged(system, process, "clock.moved")] == [offset]
        said = logged(system, process, "clock.differs_from_postgres")
        assert said[0]["ahead_by_seconds"] == pytest.approx(offset, abs=1)


@pytest.mark.parametrize(("process", "told"), [("web", "60.0 s ahead of"), ("worker", "60.0 s behind")])
def test_doctor_fails_for_the_clock_and_github_accepts_its_jwt(system: System, process: str, told: str) -> None:
    found = checks(system, process)

    assert (found["clock of postgres"]["outcome"], found["github app"]["outcome"]) == ("failed", "ok")
    assert told in found["clock of postgres"]["cause"]
    assert found["clock"]["outcome"] in {"warning", "failed"}
    assert re.search(r"6[01] s ahead of GitHub's|(59|60) s behind GitHub's", found["clock"]["cause"])

"""Report of the demo: the verdict decides the exit status, and a run that proves little says so."""

from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from lab.demo import report as demo_report
from lab.demo.report import RETRY, Figures, read_logs
from lab.verdict import Verdict

GOOD = Verdict(
    problems=(),
    jobs=200,
    completed=200,
    waiting=0,
    executions=200,
    conclusions={"success": 200},
    requeued=0,
    webhooks_lost=0,
    remaps=None,
    leftover_runners=(),
)
FIGURES = Figures(
    p50=0.1,
    p99=0.2,
    remaps=7,
    retries=0,
    resumed=0,
    real_pods=10,
    pods=200,
    unusual=Counter(),
    restarts=Counter(),
)


def report(
    verdict: Verdict, figures: Figures = FIGURES, *, jobs: int = 200, interrupted: bool = False
) -> tuple[int, str]:
    out = io.StringIO()
    status = demo_report.report(Console(file=out, width=120), verdict, figures, jobs=jobs, interrupted=interrupted)
    return status, out.getvalue()


def test_a_good_run_ends_with_status_0() -> None:
    status, said = report(GOOD)
    assert status == 0
    assert "every job completed exactly once" in said
    assert "not representative" not in said


def test_a_run_of_200_jobs_in_which_github_never_remapped_is_not_representative() -> None:
    status, said = report(GOOD, replace(FIGURES, remaps=0))
    assert status == 0
    assert "not representative" in said


def test_short_run_explains_its_times() -> None:
    assert "queued at once" in report(GOOD, jobs=20)[1]
    assert "queued at once" not in report(GOOD)[1]


@pytest.mark.parametrize(
    ("verdict", "jobs", "interrupted"),
    [
        (replace(GOOD, problems=("job 7 was executed on 2 runners",)), 200, False),
        (replace(GOOD, completed=199), 200, False),
        (GOOD, 201, False),
        (GOOD, 200, True),
    ],
    ids=["a problem", "one not over", "one never queued", "interrupted"],
)
def test_anything_else_ends_with_status_1(verdict: Verdict, jobs: int, *, interrupted: bool) -> None:
    status, said = report(verdict, jobs=jobs, interrupted=interrupted)
    assert status == 1
    assert "not every job completed exactly once" in said
    assert all(problem in said for problem in verdict.problems)


def test_what_was_unusual_is_said_with_its_count() -> None:
    _, said = report(GOOD, replace(FIGURES, unusual=Counter({"stamp.not_written": 3})))
    assert "3 of stamp.not_written" in said


def test_the_logs_are_counted_by_what_they_tell(tmp_path: Path) -> None:
    lines = [
        {"event": "job.runs_on_other_runner", "level": "info"},
        {"event": "stamp.not_written", "level": "warning"},
        {"event": "task.retried", "level": "info", "task": "ostler.mint"},
    ]
    whole = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "worker-0.log").write_text(whole + 'plain words\n{"event": "half')

    events, unusual = read_logs(tmp_path)

    assert events == {"job.runs_on_other_runner": 1, "stamp.not_written": 1, RETRY: 1}
    assert unusual == {"stamp.not_written": 1}

"""Every subject of the benchmarks runs in a tiny size, so that a broken benchmark is found early."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.commits import ROOT
from benchmarks.frame import read
from benchmarks.report import NODE, SUBJECTS, render

QUICK = {"matcher"}
"""Subjects that take seconds. The others start a web process, workers or a whole cluster."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "subject",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SUBJECTS if name != NODE]
    + [pytest.param(NODE, marks=pytest.mark.node)],
)
def test_a_subject_runs_and_reports(subject: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", subject, "--quick", "--results", str(tmp_path)],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    _, figures = read(tmp_path / f"{subject}.json")
    assert any(figure.targets for figure in figures)
    assert any(figure.is_bound for figure in figures)
    for figure in figures:
        assert set(figure.bounds) <= {each.name for each in figures}, "a bound is of the same run"
        if figure.unit == "rows" and figure.targets:
            assert figure.value("max") == 0, f"{figure.name}: lost or doubled"
    assert SUBJECTS[subject] in render(tmp_path)

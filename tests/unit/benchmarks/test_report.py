"""The published figures are those that were measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.__main__ import DOCUMENT
from benchmarks.frame import KEPT, RESULTS, Recorder, Target, Window, read
from benchmarks.report import SUBJECTS, render

WINDOW = Window(seconds=2.0, load=(0.5, 0.6), others=0.1)


def write(folder: Path, *rounds: list[float], target: Target) -> str:
    recorder = Recorder("latency", quick=True)
    for values in rounds:
        recorder.add("the bound", "ms", [1.0, 2.0], WINDOW, is_bound=True)
        recorder.add("the figure", "ms", values, WINDOW, targets=(target,), bounds=("the bound",))
    recorder.write(folder)
    return render(folder, notes=folder)


def test_the_document_is_what_the_results_give() -> None:
    assert DOCUMENT.read_text() == render(RESULTS), "run `python -m benchmarks report`"


def test_a_figure_is_the_median_of_its_rounds_and_stands_beside_its_bound(tmp_path: Path) -> None:
    rounds = [[float(n * factor) for n in range(1, 101)] for factor in (3, 1, 2)]
    document = write(tmp_path, *rounds, target=Target("p99", "<", 201))
    assert "| the figure | p50 102 · p99 200 · max 200 ms (3 rounds of 100) | the bound: p50 2" in document
    assert "1 of 1 met" in document


def test_a_missed_target_is_said_so(tmp_path: Path) -> None:
    document = write(tmp_path, [1.0, 2.0, 9.0], target=Target("p99", "<", 9))
    assert "0 of 1 met" in document
    assert "9 ms **missed**" in document


@pytest.mark.parametrize(("found", "shown"), [(20.02, "20.02"), (20.4, "20.4"), (20.003, "20.003"), (0.0, "0")])
def test_a_missed_figure_differs_from_its_target_when_rounded(tmp_path: Path, found: float, shown: str) -> None:
    target = Target("median", "=" if found == 0 else "≤", 20)
    recorder = Recorder("latency", quick=True)
    figure = recorder.add("the figure", "ms", found, WINDOW, targets=(target,))
    figure.rounds[0] = replace(figure.rounds[0], values=[found])
    recorder.write(tmp_path)
    assert f"20 ms | {shown} ms **missed**" in render(tmp_path, notes=tmp_path)


@pytest.mark.parametrize(
    ("sign", "found", "met"),
    [("<", 5, False), ("<", 4.9, True), ("≤", 5, True), ("≥", 5, True), ("≥", 4.9, False), ("=", 0, False)],
)
def test_a_target_is_met_as_it_is_written(sign: str, found: float, *, met: bool) -> None:
    assert Target("median", sign, 5).met(found) is met  # type: ignore[arg-type]


def test_many_observations_are_thinned_without_losing_their_percentiles(tmp_path: Path) -> None:
    values = [float(n) for n in range(50_000)]
    recorder = Recorder("latency", quick=True)
    figure = recorder.add("many", "ms", values, WINDOW)
    assert len(figure.rounds[0].values) == KEPT
    assert figure.rounds[0].count == 50_000
    assert figure.value("max") == pytest.approx(49_999, rel=1e-3)
    assert figure.value("p99") == pytest.approx(49_500, rel=1e-2)
    facts, figures = read(recorder.write(tmp_path))
    assert figures == [figure]
    assert facts["command"] == "python -m benchmarks latency --quick"


def test_calculated_figure_shows_no_cores_of_others(tmp_path: Path) -> None:
    recorder = Recorder("latency", quick=True)
    recorder.add("many ÷ few", "ratio", 1.2, Window(others=1.0))
    recorder.write(tmp_path)
    assert "| many ÷ few | 1.2 | - | - |" in render(tmp_path, notes=tmp_path)


def test_nothing_measured_is_no_figure() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        Recorder("latency", quick=True).add("none", "ms", [], WINDOW)


def test_notes_stand_below_the_table_they_explain(tmp_path: Path) -> None:
    (tmp_path / "latency.md").write_text("Why it is so.\n")
    document = write(tmp_path, [1.0], target=Target("median", "<", 9))
    assert document.index("| the figure | 1 ms") < document.index("Why it is so.")


def test_page_names_the_commit_and_date_of_each_subject() -> None:
    page = render(RESULTS)
    for path in RESULTS.glob("*.json"):
        facts, _ = read(path)
        assert f"| {SUBJECTS[path.stem]} | `{facts['commit'][:12]}`" in page
        assert f"| {facts['began'][:10]} |" in page


def test_page_about_workers_has_the_measured_rates() -> None:
    facts, figures = read(RESULTS / "scaling.json")
    page = (DOCUMENT.parent / "operations" / "workers.md").read_text()
    names = {"1 replica": 1, "2 replicas": 2, "4 replicas": 4}
    rates = [f"| {names[each.name]} | {each.value('median'):.3g} |" for each in figures if each.name in names]
    assert len(rates) == len(names)
    assert all(rate in page for rate in rates), f"write {rates} into the page"
    assert facts["commit"][:12] in page
    assert facts["began"][:10] in page

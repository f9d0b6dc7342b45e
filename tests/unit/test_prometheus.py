"""The alerts for Prometheus and the Grafana dashboard: their expressions are valid, and use what exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml

from cli import grafana

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "metrics.md").read_text()
RULES: list[dict[str, Any]] = yaml.safe_load((ROOT / "charts/ostler/files/alerts.yaml").read_text())["groups"][0][
    "rules"
]
FROM_THE_QUERY = {"__name__"}


def listed() -> dict[str, set[str]]:
    """Return the metrics of the page, each with its labels."""
    rows = re.findall(r"^\| `(ostler_\w+)` \|[^|]*\|([^|]*)\|", PAGE, re.MULTILINE)
    return {name: {label.strip() for label in labels.split(",") if label.strip()} for name, labels in rows}


def selectors(node: Any) -> Iterator[Any]:
    """Yield every selector of series in an expression."""
    if isinstance(node, promql.VectorSelector):
        yield node
        return
    for name in ("expr", "lhs", "rhs", "vector_selector", "args"):
        inner = getattr(node, name, None)
        for each in inner if isinstance(inner, list) else [] if inner is None else [inner]:
            yield from selectors(each)


def labels_of(expression: str) -> set[str]:
    """Return the labels that the result of an expression has. Every metric and label in it must be on the page."""
    known = listed()
    used = list(selectors(promql.parse(expression)))
    assert used
    labels: set[str] = set()
    for each in used:
        name = each.name.removesuffix("_bucket")
        assert name in known, name
        matched = {matcher.name for matcher in each.matchers.matchers} - FROM_THE_QUERY
        assert matched <= known[name]
        labels |= known[name]
    grouped = re.search(r"^[^(]*(?:\([^(]*)? by \(([^)]*)\)", expression)
    kept = {label.strip() for label in grouped[1].split(",")} if grouped else set()
    assert kept - {"le"} <= labels
    return kept


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_uses_metrics_and_labels_that_exist(rule: dict[str, Any]) -> None:
    shown = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    assert shown <= labels_of(rule["expr"])
    assert rule["labels"]["severity"] in {"warning", "critical"}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_the_runbook_of_an_alert_is_a_heading_of_a_page(rule: dict[str, Any]) -> None:
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    headings = re.findall(r"^#+ (.*)$", (ROOT / page).read_text(), re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert not anchor or anchor in anchors


def test_the_command_and_the_chart_have_the_same_rules() -> None:
    assert (ROOT / "cli/alerts.yaml").read_text() == (ROOT / "charts/ostler/files/alerts.yaml").read_text()


PANELS = [panel for row in grafana.ROWS.values() for panel in row]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_a_panel_uses_metrics_and_labels_that_exist(panel: grafana.Panel) -> None:
    for legend, expression in panel.queries.items():
        assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= labels_of(expression)
    assert panel.description.endswith(".")
    assert panel.unit in {"s", "short"}


def test_each_panel_is_of_a_dashboard_and_each_dashboard_chooses_what_its_panels_use() -> None:
    for board in grafana.Board:
        shown = [panel for panels in grafana.panels_of(board).values() for panel in panels]
        assert len({panel.title for panel in shown}) == len(shown)
        chosen = {each["name"] for each in grafana.dashboard(board)["templating"]["list"]}
        used = {name for panel in shown for query in panel.queries.values() for name in re.findall(r"\$(\w+)", query)}
        assert used | {"datasource"} == chosen
    assert all(panel.boards for panel in PANELS)


@pytest.mark.parametrize("board", grafana.Board)
def test_panels_of_a_dashboard_do_not_overlap_and_use_the_chosen_datasource(board: grafana.Board) -> None:
    shown = grafana.panels_of(board)
    panels = grafana.dashboard(board)["panels"]
    places = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(places) == len(set(places))
    assert max(x for x, _ in places) < 24
    assert len({panel["id"] for panel in panels}) == len(panels) == sum(map(len, shown.values())) + len(shown)
    for panel in panels:
        assert all(
            each["datasource"] == grafana.DATASOURCE
            for each in [panel, *panel.get("targets", [])]
            if "datasource" in each
        )
        assert panel["type"] == "row" or panel["targets"]


def test_the_page_explains_every_alert_and_no_other() -> None:
    names = [rule["alert"] for rule in RULES]
    assert re.findall(r"^\| `(Ostler\w+)` \|", PAGE, re.MULTILINE) == names
    assert len(set(names)) == len(names)


def test_limits_of_stalls_are_twice_those_of_the_page() -> None:
    limits = {
        cause: float(limit)
        for cause, limit in re.findall(r"^\| `(\w+)` \| `\w+` \|.*\| (\d+) s[^|]*\|$", PAGE, re.MULTILINE)
    }
    (rule,) = (each for each in RULES if each["alert"] == "OstlerWorkStalls")
    found = re.findall(r'cause=~?"([^"]+)"\}\) > (\d+)', rule["expr"])
    assert {cause for causes, _ in found for cause in causes.split("|")} == {
        "message_lost",
        "pod_gone",
        "pod_spent",
        "runner_unused",
    }  # the gauge cannot see lost webhooks
    for causes, limit in found:
        for cause in causes.split("|"):
            assert float(limit) >= 2 * limits[cause] or cause == "runner_unused"

"""The alerts for Prometheus: each expression is valid, uses metrics and labels that exist, and the page explains it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml

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


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_uses_metrics_and_labels_that_exist(rule: dict[str, Any]) -> None:
    known = listed()
    used = list(selectors(promql.parse(rule["expr"])))
    assert used
    labels: set[str] = set()
    for each in used:
        assert each.name in known, each.name
        matched = {matcher.name for matcher in each.matchers.matchers} - FROM_THE_QUERY
        assert matched <= known[each.name]
        labels |= known[each.name]
    shown = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    grouped = re.search(r" by \(([^)]*)\)", rule["expr"])
    assert shown <= ({label.strip() for label in grouped[1].split(",")} if grouped else set())
    assert shown <= labels
    assert rule["labels"]["severity"] in {"warning", "critical"}


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

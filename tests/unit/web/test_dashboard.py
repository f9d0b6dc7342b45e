"""Durations, files and templates of the dashboard."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from models.browse.fleet import PoolLine
from rules.pools.pod_states import PodState
from web.ui.rendering import ASSETS, age, duration, row, short

ROOT = Path(__file__).parents[3]
T0 = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.6, "1 min"),
        (61, "1 min 1 s"),
        (3605, "1 h"),
        (90000, "1 d 1 h"),
    ],
)
def test_duration_has_two_units_at_most(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_age_of_a_time_in_the_future_is_zero() -> None:
    assert age(T0 + timedelta(seconds=5), T0) == "0.0 s"


def test_long_text_is_cut_to_its_limit() -> None:
    assert (short("abc", 3), short("abcd", 3)) == ("abc", "ab…")


def test_row_is_rendered_again_only_after_a_value_has_changed() -> None:
    pods = {PodState.WARM: 2}
    line = PoolLine(
        id=1,
        namespace="ns",
        name="gpu",
        replicas=3,
        paused=False,
        draining=False,
        queued=0,
        held=0,
        oldest_queued_at=None,
        oldest_dispatchable_at=None,
        pods=pods,
        counted_at=T0,
        problem=None,
    )
    shown = row("pool_row", line)
    assert row("pool_row", replace(line, pods=dict(pods))) is shown
    assert ">2</a></b> warm" in shown
    assert ">1</a></b> warm" in row("pool_row", replace(line, pods={PodState.WARM: 1}))


def test_style_sheet_loads_nothing() -> None:
    assert not [word for word in (b"url(", b"@import") if word in ASSETS["ui.css"][0]]


def test_templates_and_files_are_in_the_wheel() -> None:
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["web.ui"]
    folders = {path.parent.name for path in (ROOT / "web" / "ui").rglob("*") if path.suffix in {".html", ".css", ".js"}}
    assert set(found) == {f"{folder}/*" for folder in folders}


def test_templates_mark_no_value_as_safe() -> None:
    pages = [path.read_text() for path in (ROOT / "web" / "ui" / "templates").glob("*.html")]
    assert not [each for each in pages if "| safe" in each or "|safe" in each or "autoescape" in each]

"""The demo's view fits its screen, and its columns do not move."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console, ConsoleDimensions
from sqlalchemy import Engine

from lab.demo import view
from lab.demo.view import View
from tests.unit.ostler.test_screen import account, fleet

FLEET = fleet(accounts=[account(login) for login in ("acme", "globex", "marvin")])


def job(name: str, *, to_jit: float | None, conclusion: str | None = None) -> Any:
    return SimpleNamespace(
        repository="marvin/dotfiles",
        workflow_name="Pull request",
        name=name,
        state="queued",
        conclusion=conclusion,
        hold_reason=None,
        pod="small-0123abcd",
        to_jit=to_jit,
    )


def picture(monkeypatch: pytest.MonkeyPatch, jobs: list[Any], *, width: int, height: int) -> list[str]:
    """Return the lines of the view on a screen of this size."""
    view = View(cast("Engine", None))
    monkeypatch.setattr(view, "_read", lambda: (FLEET, jobs))
    out = io.StringIO()
    size = ConsoleDimensions(width, height)
    Console(file=out, width=width, height=height).print(view.render(header="  1 s   sent 9 jobs", size=size))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("height", [16, 24, 30, 50])
@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_picture_fits_the_screen(width: int, height: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = picture(monkeypatch, [job("integration", to_jit=0.1)] * view.LATEST, width=width, height=height)

    assert len(lines) < height  # the cursor's line is the last
    assert max(map(len, lines)) <= width
    assert "marvin" in "".join(lines)


@pytest.mark.parametrize(("height", "jobs"), [(16, 0), (24, 8), (26, view.LATEST)])
def test_latest_jobs_get_the_lines_that_remain(height: int, jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    latest = [job(f"job-{number}", to_jit=0.1) for number in range(view.LATEST)]
    said = "\n".join(picture(monkeypatch, latest, width=80, height=height))
    assert [f"job-{number}" in said for number in range(view.LATEST)] == [
        number < jobs for number in range(view.LATEST)
    ]


def test_columns_stand_still_whatever_is_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    short = picture(monkeypatch, [job("a", to_jit=None)], width=100, height=40)
    long = picture(monkeypatch, [job("a-very-long-name-of-a-job", to_jit=123.4)], width=100, height=40)
    heads = [line for line in short if line.startswith(("account", "pool", "repository"))]
    assert len(heads) == 3
    assert heads == [line for line in long if line.startswith(("account", "pool", "repository"))]


def test_a_job_on_another_jobs_runner_is_said_to_be_swapped(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = picture(monkeypatch, [job("unit", to_jit=-0.5)], width=100, height=40)
    assert view.SWAPPED in lines[-1]


def test_line_for_a_log_has_the_numbers_of_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    view = View(cast("Engine", None))
    monkeypatch.setattr(view, "_read", lambda: (FLEET, []))
    assert view.line() == "queued 21   held 3   running 9   warm Pods 6"

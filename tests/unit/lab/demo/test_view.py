"""The demo's picture fits the screen that it is drawn on, and its columns stand still."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console, ConsoleDimensions
from sqlalchemy import Engine

from lab.demo import view
from lab.demo.view import View

ACCOUNTS = [
    SimpleNamespace(login=login, claims=3, budget=20, queued=1, claimed=2, running=3, done=done, p50=0.2, p99=p99)
    for login, done, p99 in (("acme", 4, 0.9), ("globex", 12345, 12.6), ("marvin", 0, None))
]
POOLS = [SimpleNamespace(name=name, replicas=6, starting=0, warm=1, reserved=2, busy=3) for name in ("large", "small")]


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
    """Return the lines of the picture on a screen of this size."""
    view = View(cast("Engine", None))
    monkeypatch.setattr(view, "_read", lambda _now: (ACCOUNTS, POOLS, jobs))
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


def test_a_screen_of_24_lines_shows_all_the_latest_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [job(f"job-{number}", to_jit=0.1) for number in range(view.LATEST)]
    said = "\n".join(picture(monkeypatch, jobs, width=80, height=24))
    assert all(f"job-{number}" in said for number in range(view.LATEST))


def test_columns_stand_still_whatever_is_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    short = picture(monkeypatch, [job("a", to_jit=None)], width=100, height=40)
    long = picture(monkeypatch, [job("a-very-long-name-of-a-job", to_jit=123.4)], width=100, height=40)
    heads = [line for line in short if line.startswith(("account", "pool", "repository"))]
    assert len(heads) == 3
    assert heads == [line for line in long if line.startswith(("account", "pool", "repository"))]


def test_a_job_on_another_jobs_runner_is_said_to_be_swapped(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = picture(monkeypatch, [job("unit", to_jit=-0.5)], width=100, height=40)
    assert view.SWAPPED in lines[-1]

"""The table contains every lane: every task, and every thread and loop of web, watch and worker."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import beat_schedule
from ostler.timings import Timings
from tasks.worker.app import MODULES, app
from tests.integration.lanes.table import LOOPS, NO_DATABASE, TASKS

ROOT = Path(__file__).parents[3]
STARTS = {"Thread", "ThreadPoolExecutor", "Timer", "ProcessPoolExecutor", "create_task", "ensure_future", "TaskGroup"}
"""Functions that start a thread or a loop."""

PACKAGES = ("web", "tasks", "models", "ostler", "cli", "watch", "k8s_adapters", "github_adapters", "rules", "deploys")
COMMANDS = ROOT / "cli"
"""Commands that a person runs. No other process waits for them."""


def lanes_of(path: Path) -> Iterator[str]:
    """Yield the lanes that a module starts, by their given name or by the function or class around them."""

    def visit(node: ast.AST, around: tuple[str, ...]) -> Iterator[str]:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            around = (*around, node.name)
        if isinstance(node, ast.ClassDef) and any("Thread" in ast.unparse(base) for base in node.bases):
            yield node.name
        if isinstance(node, ast.Call) and _name(node.func) in STARTS:
            named = [
                keyword.value.value
                for keyword in node.keywords
                if keyword.arg in {"name", "thread_name_prefix"} and isinstance(keyword.value, ast.Constant)
            ]
            yield str(named[0]) if named else ".".join(around)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, around)

    return visit(ast.parse(path.read_text()), ())


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def sources() -> Iterator[Path]:
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if COMMANDS not in path.parents:
                yield path


def test_every_task_and_every_line_of_the_schedule_is_in_the_table() -> None:
    for module in MODULES:
        importlib.import_module(module)
    registered = {name.removeprefix("ostler.") for name in app.tasks if name.startswith("ostler.")}

    assert sorted(TASKS) == sorted(registered)
    assert set(beat_schedule.periods(Timings())) <= set(TASKS)


def test_every_thread_and_loop_is_in_the_table() -> None:
    started = {lane: path for path in sources() for lane in lanes_of(path)}

    assert started, "nothing was found"
    missing = {lane: str(path.relative_to(ROOT)) for lane, path in started.items() if lane not in LOOPS}
    assert missing == {}


@pytest.mark.parametrize("story", sorted({*TASKS.values(), *LOOPS.values()} - {NO_DATABASE}))
def test_every_story_of_the_table_exists(story: str) -> None:
    if not story.startswith("test_"):
        assert " " in story, "a reason in words"
        return
    module, name = story.split(".")
    assert hasattr(importlib.import_module(f"tests.integration.lanes.{module}"), name)


def test_watch_has_no_way_to_postgres() -> None:
    imported = {
        name
        for path in (ROOT / "watch").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names])
    }

    assert not {name for name in imported if name.split(".")[0] in {"models", "sqlalchemy", "psycopg2"}}

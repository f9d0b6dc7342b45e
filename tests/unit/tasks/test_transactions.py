"""Arguments of functions that the runtime runs in a transaction."""

from __future__ import annotations

import ast
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from tasks.worker import transactions
from tasks.worker.transactions import NOW, Transactions

ROOT = Path(__file__).parents[3]
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
METHODS = {"transaction", "read"}
"""Methods that give `NOW` a meaning."""


def test_now_is_the_time_of_each_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([BEGAN, BEGAN + timedelta(seconds=2)])
    given: list[tuple[object, int, datetime]] = []

    def twice(engine: object, body: Callable[[Any], str]) -> str:
        body(engine)
        return body(engine)

    def function(db: object, claim_id: int, *, now: datetime) -> str:
        given.append((db, claim_id, now))
        return "done"

    monkeypatch.setattr(transactions, "transaction", twice)
    monkeypatch.setattr(transactions, "utcnow", lambda: next(times))
    rt = Transactions()
    rt.engine = cast("Any", "connection")

    assert rt.transaction(function, 7, now=NOW) == "done"
    assert given == [("connection", 7, BEGAN), ("connection", 7, BEGAN + timedelta(seconds=2))]


def test_another_time_is_passed_on_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "transaction", lambda engine, body: body(engine))
    rt = Transactions()
    rt.engine = cast("Any", "connection")

    def function(_: object, *, now: datetime) -> datetime:
        return now

    assert rt.transaction(function, now=BEGAN) == BEGAN


def test_now_compared_with_a_time_is_an_error() -> None:
    with pytest.raises(TypeError):
        assert BEGAN < NOW


def test_now_is_only_given_to_what_replaces_it() -> None:
    strays = []
    for path in sorted((ROOT / "tasks").rglob("*.py")):
        tree = ast.parse(path.read_text())
        if "tasks.worker.transactions" not in {
            each.module for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)
        }:
            continue
        calls = [each for each in ast.walk(tree) if isinstance(each, ast.Call)]
        replaced = {
            id(given.value)
            for call in calls
            for given in call.keywords
            if given.arg == "now" and isinstance(call.func, ast.Attribute) and call.func.attr in METHODS
        }
        strays += [
            f"{path.relative_to(ROOT)}:{each.lineno}"
            for each in ast.walk(tree)
            if isinstance(each, ast.Name) and each.id == "NOW" and id(each) not in replaced
        ]
    assert strays == []

"""Names of tests are short enough to read in a report: at most 80 characters (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]
MOST = 80


def test_names_of_tests_have_at_most_80_characters() -> None:
    long = {
        f"{path.relative_to(TESTS)}:{node.lineno}: {node.name}"
        for path in TESTS.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and len(node.name) > MOST
    }

    assert long == set()

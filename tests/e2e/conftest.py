"""A second run for tests of the whole system that fail on a loaded machine (`docs/decisions/0038`)."""

from __future__ import annotations

from pathlib import Path

import pytest

JUDGES_OF_LAWS = frozenset({"test_fault_run.py", "test_no_secret_leaks.py", "test_verdict_is_honest.py"})
"""Tests whose failure is a finding, even if it comes once in ten runs."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Allow a second run to each test of this folder that does not judge a law."""
    here = Path(__file__).parent
    for item in items:
        if item.path.parent == here and item.path.name not in JUDGES_OF_LAWS:
            item.add_marker(pytest.mark.flaky(reruns=1))

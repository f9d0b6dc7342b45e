"""A second run for whole-system stories that fail on a loaded machine; see docs/decisions/0038."""

from __future__ import annotations

from pathlib import Path

import pytest

JUDGES_OF_LAWS = frozenset({"test_fault_run.py", "test_no_secret_leaks.py", "test_verdict_is_honest.py"})
"""A failure here is a finding, even if it comes once in ten runs."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Allow one more run to each story of this folder that does not judge a law."""
    here = Path(__file__).parent
    for item in items:
        if item.path.parent == here and item.path.name not in JUDGES_OF_LAWS:
            item.add_marker(pytest.mark.flaky(reruns=1))

"""What the tests of the chart share: a real Helm, built where it is not there yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import helm
from lab.processes import StartError


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the first test of a run the time that building Helm takes, which is minutes with a cold cache."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session", autouse=True)
def _helm() -> None:
    """Build Helm before the first test that needs it, outside of that test's time."""
    try:
        helm.build()
    except StartError as error:
        pytest.fail(str(error), pytrace=False)

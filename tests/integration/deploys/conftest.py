"""Fixtures of the tests of deploys."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.deploys.operator import Operator


@pytest.fixture
def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Operator:
    return Operator(tmp_path, monkeypatch, capsys)

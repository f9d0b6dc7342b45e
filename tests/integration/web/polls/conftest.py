"""Timeouts of the web processes in the tests of polls, long enough for a busy machine."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _patient_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a web process wait for its upstreams as long as a busy machine needs. Tests of a limit reset this."""
    monkeypatch.setattr("web.runners.handover.REVIEW_WITHIN", 60.0)
    for limit in ("_POSTGRES_WITHIN", "_REDIS_WITHIN", "_REDIS_TIMEOUT"):
        monkeypatch.setattr(f"web.health.health.{limit}", 60.0)

"""The stage, set and cleared for each story."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.redis import Redis
from tests.database import Database
from tests.integration.web.polls.stage import Stage, make_settings


@pytest.fixture(autouse=True)
def _patient_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a web process wait for its upstreams for as long as a busy machine takes; tests of a limit set it back."""
    monkeypatch.setattr("web.runners.handover.REVIEW_WITHIN", 60.0)
    for limit in ("_POSTGRES_WITHIN", "_REDIS_WITHIN", "_REDIS_TIMEOUT"):
        monkeypatch.setattr(f"web.health.health.{limit}", 60.0)


@pytest.fixture
def stage(database: Database, redis_server: Redis) -> Iterator[Stage]:
    settings = make_settings(database_url=database.url, redis_url=redis_server.url)
    stage = Stage(engine=database.engine, settings=settings)
    yield stage
    for process in stage.processes:
        process.stop()

"""The stage of the tests of web: real web processes on real Postgres and Redis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.redis import Redis
from tests.database import Database
from tests.integration.web.polls.stage import Stage, open_stage


@pytest.fixture
def stage(database: Database, redis_server: Redis) -> Iterator[Stage]:
    """Rows without a web process."""
    with open_stage(database, redis_server) as stage:
        yield stage

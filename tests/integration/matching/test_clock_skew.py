"""Processes whose clocks differ still match jobs with Pods."""

from __future__ import annotations

from datetime import timedelta

import pytest

from models import offers
from models.engine import transaction
from tests.database import Database
from tests.integration.matching.stage import Stage, make_stage
from tests.integration.models.webhook_rows import NOW


@pytest.fixture
def stage(database: Database) -> Stage:
    return make_stage(database)


@pytest.mark.xfail(strict=True, reason="a heartbeat is written by web's clock and compared with the worker's")
def test_offers_of_a_web_process_count_when_its_clock_is_20_seconds_behind(stage: Stage) -> None:
    pool = stage.pool()
    wanted = stage.job(stage.account(1), pool)
    transaction(stage.engine, lambda db: offers.beat(db, web_id="web-2", now=NOW - timedelta(seconds=20)))
    stage.pod(pool, web="web-2")
    stage.match(pool)
    assert stage.claimed() == [wanted]


@pytest.mark.xfail(strict=True, reason="a worker that is 15 seconds ahead takes every web process for dead")
def test_matcher_claims_when_its_clock_is_16_seconds_ahead(stage: Stage) -> None:
    pool = stage.pool()
    wanted = stage.job(stage.account(1), pool)
    stage.pod(pool)
    stage.match(pool, now=NOW + timedelta(seconds=16))
    assert stage.claimed() == [wanted]

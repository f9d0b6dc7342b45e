"""Processes with different clocks still match jobs with Pods: each corrects its clock by that of Postgres."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from models.db.engine import make_engine, transaction
from models.state import offers
from ostler import clock
from ostler.clock import Clock, utcnow
from tests.database import Database
from tests.integration.matching.stage import Stage, make_stage


@pytest.fixture
def stage(database: Database) -> Stage:
    return make_stage(database)


def be_another_process(monkeypatch: pytest.MonkeyPatch, database: Database, *, ahead: float) -> datetime:
    """Become a connected process whose clock is `ahead` seconds ahead, and return its time."""
    monkeypatch.setattr(clock, "process", Clock(machine=lambda: datetime.now(UTC) + timedelta(seconds=ahead)))
    engine = make_engine(database.url, pool_size=1, application="test")
    with engine.connect():
        now = utcnow()
    engine.dispose()
    return now


@pytest.mark.parametrize(("web", "worker"), [(-20.0, 0.0), (0.0, 16.0), (-60.0, 60.0)])
def test_matcher_claims_when_the_clocks_of_web_and_worker_differ(
    stage: Stage, database: Database, monkeypatch: pytest.MonkeyPatch, web: float, worker: float
) -> None:
    pool = stage.pool()
    wanted = stage.job(stage.account(1), pool)
    now = be_another_process(monkeypatch, database, ahead=web)
    transaction(stage.engine, lambda db: offers.beat(db, web_id="web-2", now=now))
    uid = stage.pod(pool, web="web-2")
    until = now + timedelta(seconds=50)
    with stage.engine.begin() as db:
        db.exec_driver_sql("UPDATE offers SET until = %s WHERE pod_uid = %s", (until, uid))

    stage.match(pool, now=be_another_process(monkeypatch, database, ahead=worker))
    assert stage.claimed() == [wanted]

"""One job at a time passes the backoff of a failing installation, as a probe, and never two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, event, text

from models.claims.resume import pools_with_work
from models.db.engine import transaction
from models.state import job_holds
from models.upstream import backoffs
from rules.routing.holds import HoldReason
from tests.database import Database
from tests.integration.concurrency.points import DEADLINE, start, stopped
from tests.integration.matching.stage import Stage, make_stage
from tests.integration.models.webhook_rows import NOW

EVERY = 10.0
LATER = NOW + timedelta(seconds=EVERY)


@pytest.fixture
def stage(database: Database) -> Stage:
    return make_stage(database)


def fail(stage: Stage, *, now: datetime = NOW, probing: bool = False) -> datetime:
    """Record failed mints of the installation, which hold its queued jobs."""

    def body(db: Connection) -> datetime:
        return backoffs.record_failure(db, kind="installation", key="1", reason="mints fail", probing=probing, now=now)

    return transaction(stage.engine, body)


def held(stage: Stage, jobs: int, pools: int = 1) -> list[int]:
    """Return pools with `jobs` held jobs each, and Pods for all of these jobs."""
    account = stage.account(1)
    found = [stage.pool() for _ in range(pools)]
    for pool in found:
        for number in range(jobs):
            stage.job(account, pool, age=100 - number)
            stage.pod(pool)
    fail(stage)
    return found


def match(stage: Stage, pool: int, *, now: datetime) -> Sequence[int]:
    """Run the matcher with a live web process, and return its claims."""
    with stage.engine.begin() as db:
        db.execute(text("UPDATE web_instances SET beat_at = :now"), {"now": now})
        db.execute(text("UPDATE offers SET until = :until"), {"until": now + timedelta(seconds=50)})
    return stage.match(pool, now=now).claims


def work(stage: Stage, *, now: datetime) -> list[int]:
    return transaction(stage.engine, lambda db: pools_with_work(db, probe_every=EVERY, now=now))


def test_the_oldest_held_job_alone_is_let_through(stage: Stage) -> None:
    (pool,) = held(stage, 3)
    oldest = stage.rows("SELECT id FROM jobs ORDER BY queued_at LIMIT 1")[0].id
    assert match(stage, pool, now=NOW + timedelta(seconds=1)) == ()
    assert work(stage, now=LATER - timedelta(seconds=1)) == []
    assert work(stage, now=LATER) == [pool]

    assert len(match(stage, pool, now=LATER)) == 1

    assert stage.claimed() == [oldest]
    assert work(stage, now=LATER + timedelta(hours=1)) == []
    assert match(stage, pool, now=LATER + timedelta(minutes=1)) == ()


@pytest.mark.parametrize("seed", ["", "the backoff is not locked"])
def test_two_matchers_send_one_probe(stage: Stage, seed: str) -> None:
    """Two threads stand for two workers, because a matcher stores nothing in its process.

    Two workers share only the row of the backoff, and its lock separates them. The lock belongs to a connection, and
    each thread has its own.
    """
    first, second = held(stage, 2, pools=2)
    if seed:
        _change(stage, "FROM backoffs b", lambda sql: sql.replace("LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED", "LIMIT 1"))
    with stopped(stage.engine, "UPDATE jobs SET hold_reason = NULL", thread="first") as chose:
        running = start("first", lambda: stage.match(first, now=LATER))
        chose.wait()
        other = stage.match(second, now=LATER)
    mine = running.result(DEADLINE)
    late = stage.match(second, now=LATER)

    assert (len(mine.claims) + len(other.claims) + len(late.claims) == 1) is (seed == "")


def _change(stage: Stage, fragment: str, change: Callable[[str], str]) -> None:
    def rewrite(
        _connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, _many: Any
    ) -> tuple[str, Any]:
        return (change(statement) if fragment in statement else statement), parameters

    event.listen(stage.engine, "before_cursor_execute", rewrite, retval=True)


def test_a_probe_that_failed_is_followed_by_another_and_the_wait_doubles(stage: Stage) -> None:
    (pool,) = held(stage, 3)
    stage.match(pool, now=LATER)
    (probe,) = stage.claimed()
    ended = LATER + timedelta(seconds=1)
    until = fail(stage, now=ended, probing=True)
    with stage.engine.begin() as db:  # what the release of a refused mint does
        job_holds.hold_job(db, probe, reason=HoldReason.BACKOFF, detail="", not_before=until, now=ended)
        db.exec_driver_sql("UPDATE claims SET state = 'ended', ended_at = now(), end_reason = 'released'")
        db.exec_driver_sql("UPDATE jobs SET state = 'queued' WHERE state = 'claimed'")

    assert until == ended + timedelta(seconds=20)
    assert match(stage, pool, now=ended + timedelta(seconds=9)) == ()
    assert len(match(stage, pool, now=ended + timedelta(seconds=EVERY))) == 1


def test_second_probe_failing_within_the_wait_lengthens_it(stage: Stage) -> None:
    """A probe is sent every 10 seconds, so from the second wait on each probe fails before the wait is over."""
    fail(stage)
    ended = NOW + timedelta(seconds=11)
    assert fail(stage, now=ended, probing=True) == ended + timedelta(seconds=20)
    for wait in (40, 80, 160, 300, 300):
        ended += timedelta(seconds=EVERY)
        assert fail(stage, now=ended, probing=True) == ended + timedelta(seconds=wait)
        under_way = ended + timedelta(seconds=1)
        assert fail(stage, now=under_way) == ended + timedelta(seconds=wait), "a job that was under way is not a probe"


def test_what_failed_together_doubles_the_wait_once(stage: Stage) -> None:
    waits = [fail(stage, now=NOW + timedelta(seconds=second)) for second in range(5)]

    assert set(waits) == {NOW + timedelta(seconds=10)}
    assert fail(stage, now=NOW + timedelta(seconds=11)) == NOW + timedelta(seconds=31)
    longest = NOW + timedelta(seconds=31)
    for _ in range(10):
        later = longest + timedelta(seconds=1)
        longest = fail(stage, now=later)
    assert longest == later + timedelta(seconds=300)


def test_there_is_no_probe_while_github_asks_to_wait_or_no_pod_is_there(stage: Stage) -> None:
    account, pool = stage.account(1), stage.pool()
    stage.job(account, pool)
    fail(stage)
    assert match(stage, pool, now=LATER) == ()
    assert stage.rows("SELECT hold_reason FROM jobs")[0].hold_reason == "backoff"
    stage.pod(pool)
    with stage.engine.begin() as db:
        backoffs.record_limit(db, installation_id=1, quota="", seconds=30, now=NOW)
    assert match(stage, pool, now=LATER) == ()

    assert len(match(stage, pool, now=NOW + timedelta(seconds=31))) == 1


def test_a_job_that_has_another_reason_to_wait_is_no_probe(stage: Stage) -> None:
    account, pool = stage.account(1), stage.pool()
    stage.job(account, pool)
    stage.pod(pool)
    fail(stage)
    with stage.engine.begin() as db:
        backoffs.record_failure(db, kind="repository", key="org/app", reason="404", now=NOW)

    assert match(stage, pool, now=LATER) == ()


def test_the_end_of_a_backoff_ends_the_waits_of_its_jobs(stage: Stage) -> None:
    held(stage, 3)
    with stage.engine.begin() as db:
        assert backoffs.delete(db, [("installation", "1")])
        assert not backoffs.delete(db, [("installation", "1")])
        assert backoffs.end_waits(db, account_id=1, now=LATER - timedelta(seconds=5)) == 3

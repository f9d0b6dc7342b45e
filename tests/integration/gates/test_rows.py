"""The rows of a gate: the counts of all processes together, one evaluation at a time, and the queries of the gate."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

from sqlalchemy import Engine, text

from models.db.engine import transaction
from models.upstream import gates, reporter
from models.upstream.gates import Evaluation, Shut
from ostler.upstreams import Counts, Tally, Upstream
from rules.upstream.gates import GateRule
from tests.database import Database

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
RULE = GateRule(extra_checks=0)
GITHUB, KUBERNETES = Upstream.GITHUB, Upstream.KUBERNETES


def seconds(number: float) -> datetime:
    """Return a time of the test, in seconds after its start."""
    return NOW + timedelta(seconds=number)


def saw(engine: Engine, upstream: Upstream, *, calls: int, errors: int, at: float) -> None:
    """Report calls as a process does."""
    transaction(engine, lambda db: gates.report(db, {upstream: Counts(calls, errors)}, now=seconds(at)))


def evaluate(engine: Engine, upstream: Upstream, *, at: float) -> Evaluation | None:
    """Evaluate a gate."""
    return transaction(
        engine, lambda db: gates.evaluate(db, upstream, rule=RULE, window=60, apart=7.5, roll=0, now=seconds(at))
    )


def shut(engine: Engine, *upstreams: Upstream) -> list[Shut]:
    """Return the tripped gates."""
    return transaction(engine, lambda db: gates.shut(db, *upstreams))


def test_errors_that_are_few_in_each_process_close_the_gate_together(database: Database) -> None:
    engine = database.engine
    for _ in range(3):
        saw(engine, GITHUB, calls=2, errors=2, at=0)
    evaluation = evaluate(engine, GITHUB, at=1)
    assert evaluation is not None
    assert evaluation.after.closed
    assert shut(engine) == [Shut(GITHUB, seconds(1), "6 of 6 recent calls failed")]
    assert not transaction(engine, lambda db: gates.is_open(db, GITHUB))
    assert transaction(engine, lambda db: gates.is_open(db, KUBERNETES))
    assert shut(engine, KUBERNETES) == []


def test_gate_opens_after_the_bad_minute_and_enough_healthy_evaluations(database: Database) -> None:
    engine = database.engine
    saw(engine, KUBERNETES, calls=30, errors=30, at=0)
    evaluate(engine, KUBERNETES, at=1)
    opened = []
    for at in range(15, 200, 15):
        saw(engine, KUBERNETES, calls=10, errors=0, at=at - 1)
        evaluation = evaluate(engine, KUBERNETES, at=at)
        assert evaluation is not None
        if evaluation.before.closed and not evaluation.after.closed:
            opened.append(at)
            assert evaluation.since == seconds(1)
    # Bad for as long as the errors are within the minute, good at 60, 75, 90 and 105.
    assert opened == [105]
    assert shut(engine) == []


def test_doubled_tick_is_no_second_evaluation(database: Database) -> None:
    engine = database.engine
    saw(engine, GITHUB, calls=9, errors=9, at=-60)
    evaluate(engine, GITHUB, at=-55)
    saw(engine, GITHUB, calls=10, errors=0, at=14)
    assert evaluate(engine, GITHUB, at=15) is not None
    assert evaluate(engine, GITHUB, at=16) is None
    (row,) = [each for each in transaction(engine, gates.read) if each.upstream == GITHUB]
    assert (row.healthy_checks, row.needs) == (1, 4)


def test_two_concurrent_copies_evaluate_once(database: Database) -> None:
    engine = database.engine
    saw(engine, GITHUB, calls=9, errors=9, at=0)
    together = threading.Barrier(4)

    def copy(_: int) -> Evaluation | None:
        together.wait(30)
        return evaluate(engine, GITHUB, at=1)

    with ThreadPoolExecutor(4) as copies:
        found = list(copies.map(copy, range(4)))
    assert len([each for each in found if each is not None]) == 1


def test_many_processes_that_report_at_once_lose_no_count(database: Database) -> None:
    engine = database.engine
    tallies = [Tally() for _ in range(8)]
    for tally in tallies:
        for upstream in Upstream:
            for number in range(10):
                tally.note(upstream, failed=number < 3)
    with ThreadPoolExecutor(8) as processes:
        list(processes.map(lambda tally: reporter.report(engine, tally=tally), tallies))
    with engine.connect() as db:
        found = db.execute(
            text("SELECT upstream, sum(calls), sum(errors) FROM upstream_calls GROUP BY upstream ORDER BY upstream")
        ).all()
    assert [tuple(row) for row in found] == [("github", 80, 24), ("kubernetes", 80, 24)]


def test_process_without_postgres_continues_and_counts_from_zero(database: Database) -> None:
    tally = Tally()
    tally.note(GITHUB, failed=True)
    with database.engine.begin() as db:
        db.execute(text("ALTER TABLE upstream_calls RENAME TO hidden"))
    reporter.report(database.engine, tally=tally)
    assert tally.take() == {}


def test_counts_are_not_kept_for_ever(database: Database) -> None:
    engine = database.engine
    saw(engine, GITHUB, calls=1, errors=0, at=-4000)
    saw(engine, GITHUB, calls=1, errors=0, at=0)
    transaction(engine, lambda db: gates.delete_old(db, now=NOW))
    with engine.connect() as db:
        assert db.execute(text("SELECT count(*) FROM upstream_calls")).scalar_one() == 1

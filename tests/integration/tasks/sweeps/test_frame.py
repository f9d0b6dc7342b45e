"""The frame with a sweep of the test: lease, pause, dry run, budget, time, ledger."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest
from kombu.exceptions import OperationalError as KombuOperationalError
from redis.exceptions import RedisError
from sqlalchemy import Connection, Engine, Row, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from lab.postgres import Postgres
from models.db.engine import StartOver, make_engine, transaction
from models.sweeps import sweep_runs
from models.sweeps.repairs import Case
from ostler import telemetry
from ostler.clock import utcnow
from ostler.errors import Gone, Retryable
from ostler.secrets import Secret
from rules.sweeps.limits import Expect, Source, Witness
from tasks.sweeps.frame.obstacles import closed_gate
from tasks.sweeps.frame.pace import Sweep
from tasks.sweeps.frame.sweep import LEASE, run_tick
from tasks.sweeps.frame.tick import OBSTACLES, Tick
from tasks.worker import base
from tasks.worker import runtime as current
from tests.database import Database
from tests.integration.tasks.conftest import StubRuntime
from tests.rows import author, run_sql

TWO = (Witness(Source.KUBERNETES, "its poller still runs"), Witness(Source.GITHUB, "its runner is absent"))
SPEC = Sweep(name="stub", quiet=False, again=False, lease=LEASE, longest=20)


@dataclass
class Stage:
    """A sweep whose subjects are accounts. A repair gives an account another weight."""

    rt: StubRuntime
    spec: Sweep = SPEC
    seen: list[int] = field(default_factory=list)

    def rows(self, statement: str, **parameters: Any) -> list[Row[Any]]:
        return run_sql(self.rt.engine, statement, **parameters)

    def subjects(self, many: int) -> None:
        self.rows(
            """
            INSERT INTO accounts SELECT n, 'a' || n, 1, 10, 100, 100, '[]', now() FROM generate_series(1, :many) AS n
            """,
            many=many,
        )

    def repaired(self) -> list[int]:
        return [row.id for row in self.rows("SELECT id FROM accounts WHERE weight = 2 ORDER BY id")]

    def tick(self, body: Callable[[Tick], None], *, dry: bool = False, asked: str | None = None) -> Row[Any]:
        """Run one tick, and return the row of the last run."""
        run_tick(self.rt, self.spec, body, dry=dry, asked=asked)  # type: ignore[arg-type]
        return self.rows("SELECT * FROM sweep_runs ORDER BY id DESC LIMIT 1")[0]

    def every(self, *, kills: bool = False, listed: int = 0, **case: Any) -> Callable[[Tick], None]:
        """Return a sweep that repairs every account with the weight 1."""

        def body(tick: Tick) -> None:
            tick.listed(listed)
            ids = tick.read(lambda db: list(db.execute(text("SELECT id FROM accounts ORDER BY id")).scalars()))
            tick.each(ids, lambda number: check(tick, number))

        def check(tick: Tick, number: int) -> None:
            self.seen.append(number)
            given = {"witnesses": TWO if kills else (), **case}
            tick.repair(
                Case(what="weigh", why="it is light", subject=str(number), kills=kills, **given),
                lambda db: weigh(db, number),
            )

        return body

    def ledger(self) -> list[Row[Any]]:
        return self.rows("SELECT * FROM repairs ORDER BY id")

    @property
    def row(self) -> Row[Any]:
        (found,) = self.rows("SELECT * FROM sweeps")
        return found


def weigh(db: Connection, number: int) -> bool:
    statement = "UPDATE accounts SET weight = 2 WHERE id = :id AND weight = 1 RETURNING id"
    return db.execute(text(statement), {"id": number}).one_or_none() is not None


@pytest.fixture
def stage(database: Database) -> Iterator[Stage]:
    rt = StubRuntime(database, None, "none")
    current.install(rt)  # type: ignore[arg-type]
    yield Stage(rt)
    current.install(None)


def test_a_tick_writes_down_what_it_did_and_gives_its_lease_back(stage: Stage) -> None:
    stage.subjects(3)
    run = stage.tick(stage.every(listed=3))
    assert stage.repaired() == [1, 2, 3]
    assert (run.outcome, run.listed, run.found, run.repaired, run.overflow) == ("done", 3, 3, 3, 0)
    assert [(row.subject, row.what, row.outcome, row.run_id) for row in stage.ledger()] == [
        (str(number), "weigh", "verified", run.id) for number in (1, 2, 3)
    ]
    assert (stage.row.leased_until, stage.row.outcome) == (None, "done")
    assert stage.row.succeeded_at >= run.began_at


def test_a_second_tick_beside_a_running_one_does_nothing(stage: Stage) -> None:
    stage.subjects(1)
    inner: list[Any] = []

    def body(tick: Tick) -> None:
        inner.append(stage.tick(stage.every(), asked="me"))
        assert stage.repaired() == []
        stage.every()(tick)

    stage.tick(body)
    assert (inner[0].outcome, inner[0].asked) == ("busy", "me")
    assert stage.repaired() == [1]


def test_a_tick_that_was_overtaken_repairs_nothing_more(stage: Stage) -> None:
    stage.subjects(2)

    def body(tick: Tick) -> None:
        stage.rows("UPDATE sweeps SET leased_until = now() - interval '1 s'")
        taken = transaction(
            stage.rt.engine,
            lambda db: sweep_runs.take(db, "stub", holder="another", lease=LEASE, again=False, now=utcnow()),
        )
        assert isinstance(taken, sweep_runs.Taken)
        stage.every()(tick)

    run = stage.tick(body)
    assert (stage.repaired(), stage.ledger()) == ([], [])
    assert run.outcome == "lost"
    assert stage.row.lease_holder == "another"


@pytest.mark.parametrize("how", ["takes over", "pauses"])
def test_takeover_or_pause_waits_for_the_running_repair_and_none_commits_afterwards(stage: Stage, how: str) -> None:
    stage.subjects(2)
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def slow(db: Connection) -> bool:
        begun.set()
        assert go_on.wait(60)
        return weigh(db, 1)

    def body(tick: Tick) -> None:
        tick.repair(Case(what="weigh", why="light"), slow)
        assert done.wait(60)  # or the next repair might have the lock before the one who waits for it is awake
        tick.repair(Case(what="weigh", why="light"), lambda db: weigh(db, 2))

    def rival() -> list[int]:
        if how == "pauses":
            pause(stage)
        else:
            later = utcnow() + timedelta(seconds=2 * LEASE)
            taken = transaction(
                stage.rt.engine,
                lambda db: sweep_runs.take(db, "stub", holder="another", lease=LEASE, again=False, now=later),
            )
            assert isinstance(taken, sweep_runs.Taken)
        repaired = stage.repaired()
        done.set()
        return repaired

    with ThreadPoolExecutor(2) as threads:
        tick = threads.submit(stage.tick, body)
        assert begun.wait(60)
        other = threads.submit(rival)
        while not other.done() and not waits_for_a_lock(stage):
            time.sleep(0.01)
        go_on.set()
        found = other.result(60)
        run = tick.result(60)
    assert (found, stage.repaired()) == ([1], [1])
    assert run.outcome == ("paused" if how == "pauses" else "lost")


def waits_for_a_lock(stage: Stage) -> bool:
    waiting = """
        SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
          AND query ILIKE '%sweeps%'
    """
    return stage.rows(waiting) != []


def test_tick_of_a_killed_process_is_marked_lost_by_the_next_after_its_lease(stage: Stage) -> None:
    stage.subjects(1)

    def die(_tick: Tick) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stage.tick(die)
    stage.tick(stage.every())
    assert stage.repaired() == []
    stage.rows("UPDATE sweeps SET leased_until = now() - interval '1 s'")
    stage.tick(stage.every())
    assert [row.outcome for row in stage.rows("SELECT outcome FROM sweep_runs ORDER BY id")] == ["lost", "done"]
    assert stage.repaired() == [1]


def pause(stage: Stage) -> None:
    transaction(stage.rt.engine, lambda db: sweep_runs.pause(db, "stub", by=author("bo"), why="3 a.m."))


def test_a_paused_sweep_does_nothing_but_dry_runs_until_it_is_resumed(stage: Stage) -> None:
    stage.subjects(1)
    pause(stage)
    assert stage.tick(stage.every(), asked="me").outcome == "paused"
    assert (stage.seen, stage.row.outcome, stage.row.succeeded_at) == ([], "paused", None)
    assert stage.tick(stage.every(), dry=True).outcome == "done"
    assert stage.repaired() == []
    transaction(stage.rt.engine, lambda db: sweep_runs.resume(db, "stub", by=author("bo")))
    stage.tick(stage.every())
    assert stage.repaired() == [1]


def test_a_pause_stops_a_running_tick_before_its_next_repair(stage: Stage) -> None:
    stage.subjects(3)

    def body(tick: Tick) -> None:
        tick.repair(Case(what="weigh", why="light"), lambda db: weigh(db, 1))
        pause(stage)
        stage.every()(tick)

    assert stage.tick(body).outcome == "paused"
    assert stage.repaired() == [1]


@pytest.mark.parametrize("value", ["stub", "all"])
def test_the_setting_pauses_too(stage: Stage, value: str) -> None:
    stage.subjects(1)
    object.__setattr__(stage.rt.settings, "sweeps_paused", (value,))
    stage.tick(stage.every(), asked="me")
    assert stage.repaired() == []
    assert stage.row.why == "OSTLER_SWEEPS_PAUSED"


def test_a_dry_run_changes_nothing_and_says_what_it_would_have_done(stage: Stage) -> None:
    stage.subjects(2)
    stage.rows("UPDATE accounts SET weight = 2 WHERE id = 1")
    called: list[str] = []

    def act(_write: Any) -> bool:
        called.append("act")
        return True

    def body(tick: Tick) -> None:
        stage.every()(tick)
        tick.repair(Case(what="call", why="asked"), lambda db: weigh(db, 2), call=lambda: called.append("call"))
        tick.repair_all(
            lambda db: db.execute(text("UPDATE accounts SET weight = 3 RETURNING id")).scalars().all(),
            lambda number: Case(what="all", why="asked", subject=str(number)),
        )
        tick.repair_by(Case(what="by", why="asked"), act)

    run = stage.tick(body, dry=True)
    assert (stage.repaired(), called) == ([1], [])
    assert {(row.what, row.subject, row.outcome) for row in stage.ledger()} == {
        ("weigh", "2", "dry"),
        ("call", None, "dry"),
        ("all", "1", "dry"),
        ("all", "2", "dry"),
        ("by", None, "dry"),
    }
    assert (run.dry, run.found, run.repaired, run.moved_on) == (True, 6, 5, 1)
    assert stage.rows("SELECT 1 FROM sweeps") == []


def test_a_dry_run_keeps_no_tick_from_running_and_none_keeps_it(stage: Stage) -> None:
    stage.subjects(1)
    inner: list[Any] = []

    def dry(tick: Tick) -> None:
        stage.every()(tick)
        inner.append(stage.tick(stage.every()))

    stage.tick(dry, dry=True)
    assert [row.outcome for row in stage.rows("SELECT outcome FROM sweep_runs ORDER BY id")] == ["done", "done"]
    assert (inner[0].repaired, stage.repaired()) == (1, [1])

    def real(_tick: Tick) -> None:
        inner.append(stage.tick(stage.every(), dry=True))

    stage.tick(real)
    assert (inner[1].dry, inner[1].outcome) == (True, "done")


def test_a_dry_run_that_was_killed_is_called_lost_once_none_takes_as_long(stage: Stage) -> None:
    def die(_tick: Tick) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stage.tick(die, dry=True)
    stage.tick(stage.every())
    stage.rows("UPDATE sweep_runs SET began_at = began_at - interval '11 min' WHERE dry")
    stage.tick(stage.every())
    outcomes = stage.rows("SELECT outcome, ended_at IS NULL AS open, why FROM sweep_runs WHERE dry")
    why = "the tick did not record its end in time: it was killed or took too long"  # a dry run has no lease
    assert [tuple(row) for row in outcomes] == [("lost", False, why)]


@pytest.mark.parametrize(("listed", "repaired"), [(0, 5), (50, 5), (80, 8), (1000, 20)])
def test_what_kills_is_bounded_by_what_was_listed_and_the_rest_is_counted_and_left(
    stage: Stage, listed: int, repaired: int
) -> None:
    stage.subjects(20)
    before = telemetry.REPAIR_OVERFLOW.labels("stub")._value.get()
    run = stage.tick(stage.every(kills=True, listed=listed))
    assert len(stage.repaired()) == repaired
    assert (run.found, run.repaired, run.overflow) == (20, repaired, 20 - repaired)
    assert telemetry.REPAIR_OVERFLOW.labels("stub")._value.get() - before == 20 - repaired
    assert run.outcome == ("done" if repaired == 20 else "unfinished")


def test_a_row_that_moved_on_leaves_its_place_in_the_budget_to_another(stage: Stage) -> None:
    stage.subjects(7)
    stage.rows("UPDATE accounts SET weight = 2 WHERE id <= 2")
    run = stage.tick(stage.every(kills=True))
    assert (run.found, run.moved_on, run.repaired, run.overflow) == (7, 2, 5, 0)


def test_what_does_not_kill_has_no_budget(stage: Stage) -> None:
    stage.subjects(20)
    assert stage.tick(stage.every()).repaired == 20


@pytest.mark.parametrize(
    ("witnesses", "proof", "allowed"),
    [
        ((), None, False),
        (TWO[:1], None, False),
        ((TWO[0], Witness(Source.KUBERNETES, "and once more")), None, False),
        (TWO, None, True),
        (TWO[:1], "GitHub removed its runner", True),
    ],
    ids=["none", "one", "the same twice", "two", "a proof"],
)
def test_nothing_is_killed_on_the_word_of_one(
    stage: Stage, witnesses: Any, proof: str | None, *, allowed: bool
) -> None:
    stage.subjects(1)
    stage.tick(stage.every(kills=True, witnesses=witnesses, proof=proof))
    assert stage.repaired() == ([1] if allowed else [])


def test_an_obstacle_stops_what_kills_and_nothing_else(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.subjects(2)
    monkeypatch.setattr(
        "tasks.sweeps.frame.tick.OBSTACLES", [lambda _rt: None, lambda _rt: "the gate of GitHub is tripped"]
    )
    assert closed_gate in OBSTACLES
    run = stage.tick(stage.every(kills=True, listed=100))
    assert (stage.repaired(), run.overflow, run.why) == ([], 2, "the gate of GitHub is tripped")
    stage.tick(stage.every())
    assert stage.repaired() == [1, 2]


def test_a_row_that_moved_between_verdict_and_action_is_left_and_not_in_the_ledger(stage: Stage) -> None:
    stage.subjects(2)
    stage.rows("UPDATE accounts SET weight = 5 WHERE id = 1")
    run = stage.tick(stage.every())
    assert (run.found, run.repaired, run.moved_on) == (2, 1, 1)
    assert [row.subject for row in stage.ledger()] == ["2"]


def test_one_row_that_fails_stops_no_other(stage: Stage) -> None:
    stage.subjects(3)

    def body(tick: Tick) -> None:
        tick.each(
            [1, 2, 3],
            lambda number: tick.repair(
                Case(what="weigh", why="light"),
                lambda db: db.execute(text("SELECT 1 / 0")) if number == 2 else weigh(db, number),
            ),
        )

    run = stage.tick(body)
    assert stage.repaired() == [1, 3]
    assert (run.outcome, run.skipped) == ("done", 1)


@pytest.mark.parametrize(
    "error",
    [PoolTimeoutError(), StartOver(), Gone("404"), RedisError(), KombuOperationalError(), ConnectionError()],
    ids=lambda error: f"{type(error).__module__.partition('.')[0]} {type(error).__name__}",
)
def test_whatever_a_row_may_meet_stops_no_other(stage: Stage, error: Exception) -> None:
    stage.subjects(3)
    assert stage.tick(failing(stage, error)).outcome == "done"
    assert stage.repaired() == [1, 3]


def test_own_error_at_one_row_is_raised_only_after_all_rows_were_checked(stage: Stage) -> None:
    stage.subjects(3)
    with pytest.raises(ValueError, match="a row that cannot be parsed"):
        stage.tick(failing(stage, ValueError("a row that cannot be parsed")))
    assert stage.repaired() == [1, 3]
    why = "an unexpected error (ValueError)"
    assert (stage.row.outcome, stage.row.why, stage.row.leased_until) == ("failed", why, None)


def failing(stage: Stage, error: Exception) -> Callable[[Tick], None]:
    """Return a sweep whose second row raises this error."""

    def check(tick: Tick, number: int) -> None:
        stage.seen.append(number)
        if number == 2:
            raise error
        tick.repair(Case(what="weigh", why="light"), lambda db: weigh(db, number))

    return lambda tick: void(tick.each([1, 2, 3], lambda number: check(tick, number)))


def void(_: object) -> None:
    """Return None, unlike a lambda."""


def test_a_database_that_is_gone_ends_the_tick_at_the_first_row_that_finds_it_so(
    stage: Stage, postgres: Postgres
) -> None:
    stage.subjects(3)
    admin = make_engine(Secret(postgres.url("postgres")), pool_size=1, application="admin")
    name = stage.rt.engine.url.database

    def check(tick: Tick, number: int) -> None:
        stage.seen.append(number)
        if number == 1:
            refuse(admin, str(name))
        tick.repair(Case(what="weigh", why="light"), lambda db: weigh(db, number))

    try:
        with pytest.raises(DBAPIError):
            stage.tick(lambda tick: void(tick.each([1, 2, 3], lambda number: check(tick, number))))
    finally:
        refuse(admin, str(name), refused=False)
        admin.dispose()
    assert (stage.seen, stage.repaired()) == ([1], [])


def refuse(admin: Engine, database: str, *, refused: bool = True) -> None:
    """Refuse all connections to a database, or accept them again."""
    with admin.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
        db.execute(text(f'ALTER DATABASE "{database}" ALLOW_CONNECTIONS {not refused}'))
        if refused:
            ended = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = :name"
            db.execute(text(ended), {"name": database})


@pytest.mark.parametrize("how", ["list fails", "suspicious", "other call fails"])
def test_what_cannot_be_trusted_ends_the_tick_and_counts_as_no_success(stage: Stage, how: str) -> None:
    stage.subjects(1)

    def fails() -> Iterator[list[int]]:
        yield []
        raise Retryable("away")

    def body(tick: Tick) -> None:
        if how == "list fails":
            list(tick.whole("Pods", fails()))
        elif how == "suspicious":
            tick.doubt(suspicious=True, why="no Pods at all")
        else:
            list(fails())
        stage.every()(tick)

    run = stage.tick(body)
    assert (stage.repaired(), run.outcome) == ([], "aborted")
    assert run.why
    assert (stage.row.leased_until, stage.row.succeeded_at) == (None, None)


def test_an_error_of_ours_is_raised_and_the_lease_given_back(stage: Stage) -> None:
    def body(tick: Tick) -> None:
        tick.read(lambda db: db.execute(text("SELECT 1 / 0")))

    with pytest.raises(DBAPIError):
        stage.tick(body)
    assert (stage.row.outcome, stage.row.leased_until) == ("failed", None)


@pytest.mark.parametrize("why", ["time", "stopping"])
def test_a_tick_whose_time_is_up_or_whose_process_stops_leaves_the_rest(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    stage.subjects(3)
    if why == "time":
        monkeypatch.setattr("tasks.sweeps.frame.pace.remaining", lambda: 0.1 if stage.seen else 20.0)
    else:
        monkeypatch.setattr("celery.worker.state.should_stop", None)
        original = stage.seen.append

        class Stops(list[int]):
            def append(self, number: int) -> None:
                original(number)
                monkeypatch.setattr("celery.worker.state.should_stop", 0)

        stage.seen = Stops()
    run = stage.tick(stage.every())
    assert (stage.repaired(), run.outcome) == ([1], "unfinished")
    assert stage.row.succeeded_at is not None


def test_a_list_that_took_all_the_time_leaves_its_rows_a_page_of_their_own(stage: Stage) -> None:
    stage.subjects(2)
    stage.spec = replace(SPEC, longest=60)

    def body(tick: Tick) -> None:
        def slow() -> Iterator[list[int]]:
            base._ends_at.set(time.monotonic() + 0.01)
            yield [1, 2]

        list(tick.whole("Pods", slow()))
        stage.every()(tick)

    run = stage.tick(in_its_own_time(body))
    assert (run.outcome, stage.repaired()) == ("done", [1, 2])


@pytest.mark.parametrize("why", ["time", "failures"])
def test_a_tick_that_came_to_no_row_does_not_count_as_one_that_ran(stage: Stage, why: str) -> None:
    stage.subjects(2)
    stage.spec = replace(SPEC, longest=1)
    before = telemetry.SWEEP_SUCCESS.labels("stub")._value.get()

    def fails(tick: Tick) -> None:
        def check(_: int) -> None:
            raise Retryable("away")

        tick.listed(100)
        tick.each([1, 2], check)

    def out_of_time(tick: Tick) -> None:
        base._ends_at.set(time.monotonic() + 0.01)
        stage.every()(tick)

    run = stage.tick(in_its_own_time(out_of_time) if why == "time" else fails)
    assert (run.outcome, stage.row.succeeded_at, stage.repaired()) == ("aborted", None, [])
    assert run.why == (
        "the time of the tick was used up before the first check" if why == "time" else "every check failed"
    )
    assert telemetry.SWEEP_SUCCESS.labels("stub")._value.get() == before
    stage.spec = SPEC
    stage.tick(lambda tick: void(list(tick.whole("Pods", []))))  # there is nothing to be checked
    assert stage.row.succeeded_at is not None
    assert telemetry.SWEEP_SUCCESS.labels("stub")._value.get() > before


def in_its_own_time(body: Callable[[Tick], None]) -> Callable[[Tick], None]:
    """Return a sweep that may change its own deadline."""
    return lambda tick: contextvars.copy_context().run(body, tick)


def test_a_lease_is_renewed_on_the_way_and_each_page_has_a_deadline_of_its_own(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.sweeps.frame.pace.RENEW_AFTER", 0.0)
    until: list[Any] = []

    def body(tick: Tick) -> None:
        for _ in range(2):
            until.append(stage.row.leased_until)
            assert tick.goes_on()
        assert tick.page()
        until.append(stage.row.leased_until)

    stage.tick(body)
    assert until == sorted(set(until))
    stage.spec = Sweep(name="stub", quiet=False, again=False, lease=LEASE, longest=1)

    def too_long(tick: Tick) -> None:
        tick.mark_checked()
        assert not tick.page()

    assert stage.tick(too_long).outcome == "unfinished"


def test_a_call_is_written_down_before_it_is_made_and_its_failure_after(stage: Stage) -> None:
    stage.subjects(2)
    during: list[str] = []

    def call() -> None:
        during.extend(row.outcome for row in stage.ledger())
        if len(during) > 1:
            raise Retryable("no answer")

    def body(tick: Tick) -> None:
        tick.each(
            [1, 2],
            lambda number: tick.repair(
                Case(what="weigh", why="light", expects=Expect.OWN), lambda db: weigh(db, number), call=call
            ),
        )

    run = stage.tick(body)
    assert during == ["begun", "done", "begun"]
    assert [(row.outcome, row.note) for row in stage.ledger()] == [
        ("done", None),
        ("failed", "the server did not answer"),
    ]
    assert (stage.repaired(), run.skipped) == ([1], 1)


def test_a_call_is_not_made_for_a_row_that_moved_on_before_it(stage: Stage) -> None:
    stage.subjects(1)
    called: list[str] = []

    def body(tick: Tick) -> None:
        for still in (lambda _db: False, lambda _db: True):
            tick.repair(
                Case(what="weigh", why="light"),
                lambda db: weigh(db, 1),
                call=lambda: called.append("made"),
                still=still,
            )

    assert stage.tick(body, dry=True).repaired == 1
    assert called == []
    run = stage.tick(body)
    assert (called, run.moved_on, run.repaired) == (["made"], 1, 1)
    assert [row.outcome for row in stage.ledger()] == ["dry", "done"]


def test_of_a_process_that_was_killed_during_a_call_the_ledger_says_so(stage: Stage) -> None:
    stage.subjects(1)

    def call() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stage.tick(lambda tick: void(tick.repair(Case(what="weigh", why="light"), lambda db: weigh(db, 1), call=call)))
    assert [row.outcome for row in stage.ledger()] == ["begun"]
    stage.rows("UPDATE sweeps SET leased_until = now() - interval '1 s'")
    stage.rows("UPDATE repairs SET verify_by = now() - interval '1 s'")
    stage.tick(stage.every())
    assert [(row.outcome, row.note) for row in stage.ledger()] == [
        ("failed", "its process ended during the call"),
        ("verified", None),
    ]


def test_what_is_repaired_again_and_again_has_one_entry_until_its_outcome_is_seen(stage: Stage) -> None:
    stage.subjects(1)

    def body(tick: Tick) -> None:
        case = Case(what="stamp", why="it has none", claim_id=7, expects=Expect.OWN)
        assert tick.repair(case, lambda _db: True, once=True)

    for _ in range(3):
        assert stage.tick(body).repaired == 1
    assert [row.outcome for row in stage.ledger()] == ["done"]
    stage.rows("UPDATE repairs SET verify_by = now() - interval '1 s'")
    stage.tick(body)
    assert [row.outcome for row in stage.ledger()] == ["failed", "done"]


def test_later_tick_verifies_a_repair_or_marks_it_failed_after_its_time(stage: Stage) -> None:
    stage.subjects(2)
    body = stage.every(expects=Expect.ACCEPTED)
    stage.tick(body)
    stage.rows("INSERT INTO deliveries VALUES ('1', 'workflow_job', 'queued', 1, 'accepted', now())")
    stage.tick(body)
    assert [row.outcome for row in stage.ledger()] == ["verified", "done"]
    stage.rows("UPDATE repairs SET verify_by = now() - interval '1 s'")
    stage.tick(body)
    assert [(row.outcome, row.verified_at is not None) for row in stage.ledger()] == [
        ("verified", True),
        ("failed", False),
    ]


def test_a_quiet_sweep_has_no_row_for_a_tick_that_did_nothing(stage: Stage) -> None:
    stage.spec = Sweep(name="stub", quiet=True, again=False, lease=LEASE, longest=20)
    run_tick(stage.rt, stage.spec, stage.every(), dry=False, asked=None)  # type: ignore[arg-type]
    assert stage.rows("SELECT * FROM sweep_runs") == []
    assert stage.row.succeeded_at is not None
    stage.subjects(2)
    assert stage.tick(stage.every()).repaired == 2
    assert len(stage.rows("SELECT * FROM sweep_runs")) == 1


def test_what_is_asked_for_while_it_runs_is_run_again(stage: Stage) -> None:
    stage.spec = Sweep(name="rematch", quiet=False, again=True, lease=LEASE, longest=20)

    def body(_tick: Tick) -> None:
        stage.tick(stage.every())

    stage.tick(body)
    assert stage.rt.waker.take("ostler.rematch") == [{}]
    stage.tick(stage.every())
    assert stage.rt.waker.take("ostler.rematch") == []


def test_a_sweep_waits_by_chance_before_it_begins_so_that_not_all_begin_at_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.subjects(1)
    slept: list[float] = []
    monkeypatch.setattr("tasks.sweeps.frame.sweep.time.sleep", slept.append)
    from tasks.sweeps.stale_claims import stale_claims  # noqa: PLC0415

    stale_claims.run(spread=2.0)
    stale_claims.run()
    assert len(slept) == 1
    assert 0 <= slept[0] <= 2

"""The sweep `redelivery` on real rows, with a GitHub whose list the test writes."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Row
from structlog.testing import capture_logs

from github_adapters.endpoints.deliveries import DeliveryPage, DeliverySeen
from models.db.engine import in_transaction, transaction
from models.sweeps import redelivery as asks
from models.sweeps import sweep_runs
from ostler.clock import utcnow
from ostler.errors import Forbidden, Gone, Invalid, RateLimited, Retryable
from rules.restore.epochs import Epoch
from rules.sweeps.limits import Outcome
from rules.upstream.retry import RetryPolicy
from tasks.sweeps import redelivery as module
from tasks.sweeps.frame.sweep import LEASE
from tasks.sweeps.redelivery import redelivery
from tasks.worker import runtime as current
from tests.database import Database
from tests.integration.tasks.conftest import StubRuntime
from tests.rows import run_sql
from tests.timed import changed

PAGE = 100


@dataclass
class StubGitHub:
    """A list of attempts, oldest first, in pages of 100. `breaks` are errors of the next calls to `list_deliveries`."""

    attempts: list[DeliverySeen] = field(default_factory=list)
    pages: list[str | None] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    breaks: dict[int, Exception] = field(default_factory=dict)
    """Error by page number of the next run (from 0)."""
    refuses: dict[int, Exception] = field(default_factory=dict)
    """Error by delivery."""
    _ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def add(
        self,
        guid: str,
        *,
        status: str = "failed",
        ago: float = 10,
        event: str = "workflow_job",
        action: str = "queued",
        installation: int | None = None,
    ) -> int:
        """Add an attempt that ended `ago` seconds ago to the list, and return its id."""
        seen = DeliverySeen(
            id=next(self._ids),
            guid=guid,
            delivered_at=utcnow() - timedelta(seconds=ago),
            accepted=status == "OK",
            event=event,
            action=action,
            installation_id=installation,
        )
        self.attempts.append(seen)
        return seen.id

    def list_deliveries(self, *, cursor: str | None = None, policy: RetryPolicy) -> DeliveryPage:
        """Return a page."""
        assert not in_transaction()
        assert policy.deadline is not None
        assert policy.deadline > 0
        number = len(self.pages)
        self.pages.append(cursor)
        if number in self.breaks:
            raise self.breaks[number]
        start = 0 if cursor is None else int(cursor)
        newest_first = self.attempts[::-1]
        page = newest_first[start : start + PAGE]
        more = len(newest_first) > start + PAGE
        return DeliveryPage(deliveries=tuple(page), next_cursor=str(start + PAGE) if more else None, malformed=0)

    def redeliver(self, *, delivery_id: int, deadline_seconds: float) -> None:
        """Accept a request for a redelivery."""
        assert not in_transaction()
        assert deadline_seconds > 0
        self.asked.append(delivery_id)
        if delivery_id in self.refuses:
            raise self.refuses[delivery_id]


@dataclass
class Stage:
    """The rows, the GitHub and the clock of the sweep."""

    rt: StubRuntime
    github: StubGitHub

    def rows(self, statement: str, **parameters: Any) -> list[Row[Any]]:
        """Run a statement and return its rows."""
        return run_sql(self.rt.engine, statement, **parameters)

    def tick(self) -> list[int]:
        """Run the sweep once, and return the deliveries that it requested."""
        self.github.asked.clear()
        self.github.pages.clear()
        redelivery.run()
        return list(self.github.asked)

    def accept(self, guid: str) -> None:
        """Commit the delivery, as web does."""
        self.rows("INSERT INTO deliveries VALUES (:guid, 'workflow_job', 'queued', 1, 'accepted', now())", guid=guid)

    def later(self, seconds: float) -> None:
        """Let time pass for the sweep's own times and for GitHub's list."""
        by = timedelta(seconds=seconds)
        self.rows("UPDATE redeliveries SET due_at = due_at - :by, first_failed_at = first_failed_at - :by", by=by)
        self.rows(
            """
            UPDATE redelivery_progress SET checked_at = checked_at - :by, checkpoint = checkpoint - :by,
                   scan_began = scan_began - :by, not_before = not_before - :by
            """,
            by=by,
        )
        self.rows("UPDATE sweeps SET leased_until = leased_until - :by", by=by)
        self.github.attempts = [
            dataclasses.replace(each, delivered_at=each.delivered_at - by) for each in self.github.attempts
        ]

    @property
    def progress(self) -> Row[Any]:
        """Return the progress in the list."""
        (row,) = self.rows("SELECT * FROM redelivery_progress")
        return row


@pytest.fixture
def stage(database: Database) -> Iterator[Stage]:
    rt = StubRuntime(database, None, "none")
    rt.github = StubGitHub()
    current.install(rt)  # type: ignore[arg-type]
    stage = Stage(rt, rt.github)
    stage.rows("INSERT INTO web_instances (id, started_at, beat_at) SELECT 'w', now(), now() + interval '1 hour'")
    yield stage
    current.install(None)


def test_a_failed_delivery_is_asked_for_once_until_its_distance_has_passed(stage: Stage) -> None:
    failed = stage.github.add("a")
    assert stage.tick() == [failed]
    assert stage.tick() == []
    stage.later(60)
    assert stage.tick() == []
    stage.later(61)
    assert stage.tick() == [failed]
    stage.later(121)
    assert stage.tick() == []
    stage.later(120)
    assert stage.tick() == [failed]


def test_what_we_committed_is_not_asked_for_although_its_answer_was_lost(stage: Stage) -> None:
    stage.github.add("a")
    stage.accept("a")
    assert stage.tick() == []


def test_deliveries_accepted_before_a_restore_are_requested_newest_first(stage: Stage) -> None:
    for guid, ago in (("before", 700), ("queued", 500), ("over", 400), ("after", 5)):
        stage.github.add(guid, ago=ago, status="OK")
    stage.accept("before")
    stage.rows(
        """
        UPDATE epochs SET number = 3, confirmed_at = now() - interval '600 s'
        """
    )
    seen = Epoch(3, stage.rows("SELECT database FROM epochs")[0].database)
    assert stage.tick() == []
    now = utcnow() - timedelta(seconds=60)
    kept = timedelta(days=3)
    assert transaction(stage.rt.engine, lambda db: asks.mark_older(db, seen, why="a test", kept=kept, now=now))
    assert stage.tick() == [3, 2]
    stage.accept("queued")
    stage.accept("over")
    stage.later(3600)
    assert stage.tick() == []
    assert stage.rows("SELECT * FROM redeliveries") == []


def test_what_github_delivered_by_a_later_attempt_is_not_asked_for(stage: Stage) -> None:
    stage.github.add("a", ago=20)
    stage.github.add("a", ago=10, status="OK")
    assert stage.tick() == []


def test_a_delivery_that_is_accepted_after_the_ask_is_over(stage: Stage) -> None:
    stage.github.add("a")
    stage.tick()
    stage.github.add("a", ago=0, status="OK")
    stage.accept("a")
    stage.later(3600)
    assert stage.tick() == []
    assert stage.rows("SELECT * FROM redeliveries") == []


def test_an_ask_that_failed_too_is_repeated_by_its_newest_attempt(stage: Stage) -> None:
    first = stage.github.add("a")
    assert stage.tick() == [first]
    second = stage.github.add("a", ago=0)
    assert stage.tick() == []
    stage.later(121)
    assert stage.tick() == [second]


def test_attempts_of_one_guid_in_one_list_are_one_ask(stage: Stage) -> None:
    stage.github.add("a", ago=30)
    newest = stage.github.add("a", ago=20)
    assert stage.tick() == [newest]


def test_other_events_are_none_of_ours(stage: Stage) -> None:
    stage.github.add("a", event="installation", action="suspend")
    stage.github.add("b", action="invented")
    stage.github.add("d", event="repository", action="created")
    failed = stage.github.add("c")
    assert stage.tick() == [failed]
    assert len(stage.rows("SELECT * FROM redeliveries")) == 1


@pytest.mark.parametrize(
    ("event", "action"),
    [
        ("installation", "created"),
        ("installation", "unsuspend"),
        ("installation_target", "renamed"),
        ("organization", "renamed"),
        ("repository", "renamed"),
    ],
)
def test_a_lost_installation_or_new_name_is_asked_for_like_a_job(stage: Stage, event: str, action: str) -> None:
    failed = stage.github.add("a", event=event, action=action)
    assert stage.tick() == [failed]


def test_nothing_is_asked_while_no_web_process_is_there_to_take_it(stage: Stage) -> None:
    failed = stage.github.add("a")
    stage.rows("UPDATE web_instances SET beat_at = now() - interval '1 minute'")
    assert stage.tick() == []
    stage.rows("UPDATE web_instances SET beat_at = now() + interval '1 hour'")
    assert stage.tick() == [failed]


def test_what_github_keeps_no_more_is_given_up(stage: Stage) -> None:
    stage.github.add("a")
    stage.tick()
    stage.later(3 * 24 * 3600 + 60)
    stage.github.attempts.clear()
    assert stage.tick() == []
    assert stage.rows("SELECT * FROM redeliveries") == []


def test_what_failed_long_before_the_first_tick_was_meant_for_others(stage: Stage) -> None:
    stage.github.add("a", ago=3600)
    young = stage.github.add("b", ago=600)
    assert stage.tick() == [young]


# The list


def many(stage: Stage, count: int, *, ago: float = 5) -> None:
    """Add successful deliveries to the list."""
    for number in range(count):
        stage.github.add(f"fine-{ago}-{number}", status="OK", ago=ago)


def test_the_usual_tick_reads_one_page_of_a_long_list(stage: Stage) -> None:
    many(stage, 300, ago=200)
    many(stage, 40, ago=30)
    stage.tick()
    stage.later(60)
    many(stage, 40, ago=30)
    stage.tick()
    assert stage.github.pages == [None]


def test_after_a_downtime_the_list_is_read_back_to_what_github_keeps(stage: Stage) -> None:
    stage.tick()
    lost = stage.github.add("lost", ago=5)
    many(stage, 250, ago=5)
    stage.later(2 * 24 * 3600)
    assert stage.tick() == [lost]


def test_a_scan_that_breaks_moves_no_checkpoint_and_goes_on_where_it_was(stage: Stage) -> None:
    many(stage, 10)
    stage.tick()
    lost = stage.github.add("lost", ago=5)
    many(stage, 250, ago=5)
    stage.later(2 * 24 * 3600)
    before = stage.progress
    stage.github.breaks = {2: Retryable("down")}  # after the look's page and the scan's first
    assert stage.tick() == []
    assert stage.progress.checkpoint == before.checkpoint
    stage.github.breaks = {}
    assert stage.tick() == [lost]
    assert stage.github.pages == [None, "100", "200"]
    assert stage.progress.checkpoint > before.checkpoint
    assert stage.progress.scan_began is None


def test_what_fails_during_a_long_scan_does_not_wait_for_it(stage: Stage) -> None:
    many(stage, 10)
    stage.tick()
    many(stage, 250, ago=5)
    stage.later(2 * 24 * 3600)
    stage.github.breaks = {1: Retryable("down")}
    young = stage.github.add("young", ago=1)
    assert stage.tick() == [young]


def test_failed_read_moves_nothing_and_is_made_up_by_the_next(stage: Stage) -> None:
    stage.github.add("fine", status="OK")
    stage.tick()
    stage.later(60)
    lost = stage.github.add("lost", ago=5)
    many(stage, 150, ago=5)
    before = stage.progress
    stage.github.breaks = {1: Retryable("cut")}
    assert stage.tick() == []
    assert (stage.progress.checked_at, stage.progress.checkpoint) == (before.checked_at, before.checkpoint)
    stage.github.breaks = {}
    assert stage.tick() == [lost]


def test_an_empty_list_moves_no_checkpoint(stage: Stage) -> None:
    stage.github.add("fine", status="OK")
    stage.tick()
    stage.later(3600)
    lost = stage.github.add("lost", ago=1800)
    listed, stage.github.attempts = stage.github.attempts, []
    stage.tick()
    stage.github.attempts = listed
    assert stage.tick() == [lost]


def test_a_delivery_that_is_listed_late_is_found_by_the_next_scan(stage: Stage) -> None:
    many(stage, 10, ago=1000)
    stage.tick()
    late = stage.github.add("late", ago=10)
    hidden = stage.github.attempts.pop()
    for _ in range(14):
        stage.later(60)
        assert stage.tick() == []
    listed = dataclasses.replace(hidden, delivered_at=hidden.delivered_at - timedelta(minutes=14))
    stage.github.attempts.append(listed)
    many(stage, 1, ago=500)  # on top of it in the list, as it was delivered later
    assert stage.tick() == []
    stage.later(121)
    assert stage.tick() == [late]


def test_cursor_refused_by_github_restarts_the_scan(stage: Stage) -> None:
    many(stage, 10)
    stage.tick()
    lost = stage.github.add("lost", ago=5)
    many(stage, 250, ago=5)
    stage.later(2 * 24 * 3600)
    stage.github.breaks = {2: Invalid("cursor")}
    assert stage.tick() == []
    stage.github.breaks = {}
    assert stage.tick() == [lost]
    assert stage.github.pages == [None, None, "100", "200"]


# The asks


def test_what_was_never_asked_for_comes_first_and_a_tick_has_its_budget(stage: Stage) -> None:
    stage.rt.settings = changed(stage.rt.settings, redelivery_batch=2)
    old = [stage.github.add(f"old-{number}", ago=100 - number) for number in range(3)]
    assert stage.tick() == old[:2]
    stage.later(121)
    young = stage.github.add("young", ago=1)
    assert stage.tick() == [old[2], young]
    assert stage.tick() == old[:2]


def test_installation_with_many_lost_webhooks_delays_no_other(stage: Stage) -> None:
    stage.rt.settings = changed(stage.rt.settings, redelivery_batch=4)
    flood = [stage.github.add(f"flood-{number}", ago=100 - number, installation=1) for number in range(20)]
    honest = [stage.github.add(f"honest-{number}", ago=10 - number, installation=2) for number in range(2)]
    other = stage.github.add("other", ago=5, installation=3)
    assert stage.tick() == [flood[0], honest[0], other, flood[1]]
    assert stage.tick() == [flood[2], honest[1], flood[3], flood[4]]
    stage.later(121)
    again = stage.tick()
    assert {honest[0], other} < set(again)


def test_installation_whose_asks_are_refused_ends_no_tick_of_others(stage: Stage) -> None:
    gone = [stage.github.add(f"gone-{number}", ago=100, installation=number) for number in range(1, 6)]
    honest = stage.github.add("honest", installation=9)
    stage.github.refuses = dict.fromkeys(gone, Gone("404"))
    assert stage.tick() == [*gone, honest]


def test_malformed_webhook_is_asked_for_twice_a_day_until_github_forgets_it(stage: Stage) -> None:
    listed = stage.github.add("listed-first", ago=20)
    noted = stage.github.add("noted-first", ago=10)
    transaction(stage.rt.engine, lambda db: asks.record_malformed(db, ["noted-first"], now=utcnow()))
    assert stage.tick() == [listed]
    transaction(stage.rt.engine, lambda db: asks.record_malformed(db, ["listed-first"], now=utcnow()))
    for _ in range(11):
        stage.later(3600)
        assert stage.tick() == []
    stage.later(2 * 3600)
    assert stage.tick() == [noted, listed]
    assert {row.guid for row in stage.rows("SELECT guid FROM redeliveries")} == {"listed-first", "noted-first"}
    stage.later(3 * 24 * 3600)
    stage.github.attempts.clear()
    with capture_logs() as lines:
        assert stage.tick() == []
    assert "redelivery.webhook_lost" not in {line["event"] for line in lines}
    assert stage.rows("SELECT * FROM redeliveries") == []


def test_malformed_webhook_that_is_accepted_later_is_forgotten(stage: Stage) -> None:
    transaction(stage.rt.engine, lambda db: asks.record_malformed(db, ["a"], now=utcnow()))
    stage.accept("a")
    stage.tick()
    assert stage.rows("SELECT * FROM redeliveries") == []


@pytest.mark.parametrize("error", [Gone("404"), Invalid("422"), Retryable("500", status=500)], ids=str)
def test_one_that_github_refuses_stops_no_other(stage: Stage, error: Exception) -> None:
    poison, fine = stage.github.add("poison", ago=20), stage.github.add("fine", ago=10)
    stage.github.refuses = {poison: error}
    assert stage.tick() == [poison, fine]
    assert stage.tick() == []


def test_a_github_that_is_away_is_not_asked_a_hundred_times(stage: Stage) -> None:
    ids = [stage.github.add(f"g{number}", ago=50 - number) for number in range(10)]
    stage.github.refuses = dict.fromkeys(ids, Retryable("down"))
    assert stage.tick() == ids[:3]


def test_a_key_that_is_refused_is_not_used_again_in_the_same_tick(stage: Stage) -> None:
    ids = [stage.github.add(f"g{number}", ago=50 - number) for number in range(3)]
    stage.github.refuses = dict.fromkeys(ids, Forbidden("401"))
    assert stage.tick() == ids[:1]


def test_a_rate_limit_ends_the_tick_and_is_waited_for_without_costing_an_ask(stage: Stage) -> None:
    ids = [stage.github.add(f"g{number}", ago=50 - number) for number in range(3)]
    stage.github.refuses = {ids[1]: RateLimited("slow", after=300)}
    assert stage.tick() == ids[:2]
    stage.github.refuses = {}
    stage.later(200)
    assert stage.tick() == []
    assert stage.github.pages == []
    stage.later(110)
    assert stage.tick() == [ids[1], ids[2], ids[0]]


def pace(stage: Stage, monkeypatch: pytest.MonkeyPatch, *, after: float) -> None:
    """Accept the first two requests, and after that every second one."""
    turns = itertools.count()
    redeliver = stage.github.redeliver

    def paced(**call: Any) -> None:
        turn = next(turns)
        if turn >= 2 and turn % 2 == 0:
            raise RateLimited("Ostler's own rate limit", after=after, paced=True)
        redeliver(**call)

    monkeypatch.setattr(stage.github, "redeliver", paced)


def test_our_own_pace_ends_no_tick_that_has_time_and_costs_no_ask(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [stage.github.add(f"g{number}", ago=50 - number) for number in range(6)]
    pace(stage, monkeypatch, after=0.01)
    assert stage.tick() == ids
    assert [row.asks for row in stage.rows("SELECT asks FROM redeliveries")] == [1] * 6
    assert stage.progress.not_before is None


def test_a_pace_that_is_slower_than_the_tick_is_waited_for_by_the_next(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [stage.github.add(f"g{number}", ago=50 - number) for number in range(6)]
    pace(stage, monkeypatch, after=60)
    assert stage.tick() == ids[:2]
    assert stage.progress.not_before > utcnow()


def test_a_rate_limit_of_the_list_is_waited_for_too(stage: Stage) -> None:
    failed = stage.github.add("a")
    stage.github.breaks = {0: RateLimited("slow", after=300)}
    assert stage.tick() == []
    stage.github.breaks = {}
    assert stage.tick() == []
    assert stage.github.pages == []
    stage.later(301)
    assert stage.tick() == [failed]


def test_two_executions_never_meet(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = stage.github.add("a")
    met: list[int] = []

    def meanwhile(**_: Any) -> None:
        met.append(1)
        redelivery.run()

    monkeypatch.setattr(stage.github, "redeliver", meanwhile)
    redelivery.run()
    assert met == [1]
    (row,) = stage.rows("SELECT delivery_id, asks FROM redeliveries")
    assert tuple(row) == (failed, 1)


def test_one_that_outlived_its_lease_writes_nothing_more(stage: Stage) -> None:
    def take(now: datetime) -> int:
        taken = transaction(
            stage.rt.engine,
            lambda db: sweep_runs.take(db, "redelivery", holder="test", lease=LEASE, again=False, now=now),
        )
        assert isinstance(taken, sweep_runs.Taken)
        return taken.lease_no

    def record(lease_no: int) -> bool:
        found = asks.Failed("a", 1, late)
        return transaction(
            stage.rt.engine,
            lambda db: asks.record_page(db, lease_no, failed=[found], accepted=[], progress=progress, now=late),
        )

    begun = transaction(
        stage.rt.engine, lambda db: asks.begin(db, overlap=timedelta(seconds=900), note=True, now=utcnow())
    )
    assert begun is not None
    progress = begun
    first = take(utcnow())
    late = utcnow() + timedelta(seconds=LEASE + 1)
    second = take(late)
    assert record(first) is False
    assert stage.rows("SELECT * FROM redeliveries") == []
    assert record(second) is True
    transaction(
        stage.rt.engine,
        lambda db: sweep_runs.end(db, "redelivery", first, outcome=Outcome.DONE, why=None, now=late),
    )
    (row,) = stage.rows("SELECT leased_until FROM sweeps")
    assert row.leased_until is not None


def test_a_kill_between_the_commit_of_an_ask_and_the_ask_costs_its_distance(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = stage.github.add("a")

    def die(**_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stage.github, "redeliver", die)
        with pytest.raises(KeyboardInterrupt):
            redelivery.run()
    assert stage.tick() == []
    stage.later(121)
    assert stage.tick() == [failed]


def test_a_tick_that_has_no_time_left_leaves_the_rest_to_the_next(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [stage.github.add(f"g{number}", ago=50 - number) for number in range(3)]
    with monkeypatch.context() as patch:
        patch.setattr(module, "remaining", lambda: 1.0 if stage.github.asked else 20.0)
        asked = stage.tick()
    assert asked == ids[:1]
    assert asked + stage.tick() == ids

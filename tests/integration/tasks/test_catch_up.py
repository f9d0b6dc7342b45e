"""The sweep `catch_up` on real rows, with a GitHub whose lists the test writes."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from sqlalchemy import Row

from models.db.engine import transaction
from models.intake import intake
from models.sweeps import catch_up as rows
from models.sweeps import sweep_runs, unresolved
from ostler import telemetry
from ostler.clock import utcnow
from ostler.errors import Forbidden, Gone, NotInstalled, RateLimited, Retryable, Suspended
from rules.claims.fairness import Budget
from tasks.sweeps import catch_up as sweep
from tasks.sweeps.catch_up import catch_up
from tasks.sweeps.frame.tick import Tick
from tests.integration.tasks.conftest import RUNNER, Stage
from tests.integration.tasks.listing import Listing, home_of, job
from tests.rows import author, insert_pool
from tests.timed import changed


def lists(repository: str) -> list[str]:
    """Return the requests for a repository in each check."""
    return [f"{status} {repository}" for status in ("queued", "in_progress", "waiting", "pending")]


@dataclass
class World:
    """Rows and a GitHub. Job 1 of `acme/shop` is known and over, so its repository is known."""

    stage: Stage
    github: Listing

    def tick(self, **arguments: Any) -> list[str]:
        """Run the sweep once, and return its requests."""
        self.github.asked.clear()
        catch_up.run(**arguments)
        return list(self.github.asked)

    def known(
        self,
        job_id: int,
        state: str = "queued",
        *,
        repository: str = "acme/shop",
        minutes: float = 5,
        run: int = 1,
        hold: str | None = None,
        installation: int = 501,
    ) -> None:
        """Insert a job that has been in this state for `minutes` minutes."""
        self.stage.job(job_id, state=state)
        self.stage.rows(
            """
            UPDATE jobs SET repository = :repository, run_id = :run, hold_reason = :hold,
                   installation_id = :installation, queued_at = t.at, changed_at = t.at
            FROM (SELECT now() - make_interval(secs => :age) AS at) t WHERE id = :id
            """,
            id=job_id,
            repository=repository,
            run=run,
            hold=hold,
            installation=installation,
            age=minutes * 60,
        )

    def claimed(self, job_id: int) -> int:
        """Insert a Pod whose claim executes a job."""
        self.stage.rows(
            """
            INSERT INTO runner_pods (pool_id, namespace, name, uid, attempt_id, template_hash, created_at)
            SELECT id, namespace, 'small-0', 'u', 'a', 'h', now() FROM pools
            """
        )
        claim = self.stage.claim("small-0", job_id=job_id, state="executing", age=4000, runner=RUNNER)
        self.stage.rows(
            """
            INSERT INTO executions (job_id, runner_name, claim_id, account_id, vcpu, memory, started_at)
            SELECT job_id, runner_name, id, account_id, vcpu, memory, now() FROM claims
            """
        )
        return claim

    def shown(self, job_id: int) -> tuple[str, str | None] | None:
        """Return state and conclusion of a job, or None if the job is not known."""
        found = self.stage.rows("SELECT state, conclusion FROM jobs WHERE id = :id", id=job_id)
        return (found[0].state, found[0].conclusion) if found else None

    def webhook(self, job_id: int, action: str = "queued", guid: str = "late") -> intake.Applied:
        """Apply the real webhook."""
        event = dataclasses.replace(job(job_id), action=action)
        budget = Budget(20, 80_000, 320 * 1024)
        return transaction(
            self.stage.rt.engine,
            lambda db: intake.apply(db, [intake.Received(guid, event)], budget=budget, now=utcnow()),
        )

    def later(self, minutes: float) -> None:
        """Let time pass for the stored progress of the sweep."""
        by = timedelta(minutes=minutes)
        self.stage.rows("UPDATE catch_up_quotas SET at = at - :by", by=by)
        self.stage.rows(
            "UPDATE catch_up_repositories SET not_before = not_before - :by, checked_at = checked_at - :by", by=by
        )
        self.stage.rows("UPDATE jobs SET ask_after = ask_after - :by", by=by)

    def run(self) -> Row[Any]:
        """Return the last run of the sweep."""
        return self.stage.rows("SELECT * FROM sweep_runs ORDER BY id DESC LIMIT 1")[0]

    def left(self, why: str) -> float:
        """Return the number of checks that did not finish for this reason, in all tests of this process."""
        found: float = telemetry.CATCH_UP_INCOMPLETE.labels(why)._value.get()
        return found

    def settings(self, **changes: Any) -> None:
        """Change settings."""
        self.stage.rt.settings = changed(self.stage.rt.settings, **changes)


@pytest.fixture
def world(clusterless: Stage) -> World:
    clusterless.rt.github = Listing()
    found = World(clusterless, clusterless.rt.github)
    found.known(1, "completed")
    return found


# What never came


def test_unknown_queued_job_is_recorded_as_by_its_webhook(world: World) -> None:
    world.github.run(job(7))
    world.tick()
    (found,) = world.stage.rows("SELECT * FROM jobs WHERE id = 7")
    assert (found.state, found.hold_reason, found.installation_id, found.account_id) == ("queued", None, 501, 1)
    assert (found.repository, found.scope, found.labels) == ("acme/shop", "orgs/acme", ["self-hosted"])
    assert utcnow() - found.queued_at > timedelta(minutes=9), "it keeps its age"
    assert world.stage.outbox.take("wake") == [{"pool_id": found.pool_id}]
    (repair,) = world.stage.rows("SELECT * FROM repairs")
    assert (repair.what, repair.job_id, repair.outcome) == ("bring", 7, "verified")
    (event,) = world.stage.rows("SELECT * FROM job_events WHERE job_id = 7")
    assert (event.transition, event.who) == ("job_seen", "test")
    (stall,) = world.stage.rows("SELECT * FROM stalls")
    assert (stall.cause, stall.found_by, stall.job_id) == ("webhook_lost", "catch_up", 7)


def test_a_webhook_that_comes_late_doubles_nothing(world: World) -> None:
    world.github.run(job(7))
    world.tick()
    world.stage.rows("UPDATE jobs SET state = 'completed' WHERE id = 7")
    assert world.webhook(7).wakes == frozenset()
    world.tick()
    assert world.shown(7) == ("completed", None)
    assert len(world.stage.rows("SELECT 1 FROM job_events WHERE job_id = 7")) == 1


def test_webhook_that_arrives_during_the_sweep_wins(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.github.run(job(7))
    original = Tick.repair

    def meanwhile(tick: Tick, *given: Any, **named: Any) -> Any:
        world.webhook(7)
        return original(tick, *given, **named)

    monkeypatch.setattr(Tick, "repair", meanwhile)
    world.tick()
    assert world.shown(7) == ("queued", None)
    assert len(world.stage.rows("SELECT 1 FROM job_events WHERE job_id = 7")) == 1
    assert (world.run().found, world.run().repaired, world.run().moved_on) == (1, 0, 1)


def test_a_young_job_may_still_be_told_of(world: World) -> None:
    world.github.run(job(7, minutes=1.9), job(8, minutes=2.1))
    world.github.run(job(9, minutes=1), minutes=1)
    asked = world.tick()
    assert (world.shown(7), world.shown(8)) == (None, ("queued", None))
    assert sum(each.startswith("jobs") for each in asked) == 1, "a run that young holds no older job"


def test_job_recorded_as_waiting_for_its_environment_is_queued(world: World) -> None:
    world.known(7, "waiting")
    world.github.run(job(7), job(8, "waiting"), status="in_progress")
    world.tick()
    assert world.shown(7) == ("queued", None)
    assert world.shown(8) is None


def test_jobs_of_a_matrix_are_found_in_a_run_that_is_in_progress(world: World) -> None:
    world.known(7, "running")
    world.github.run(job(6, "completed", conclusion="success"), job(7, "in_progress"), job(8), status="in_progress")
    world.tick()
    assert [world.shown(each) for each in (6, 7, 8)] == [None, ("running", None), ("queued", None)]


@pytest.mark.parametrize("status", ["waiting", "pending"])
def test_a_queued_job_is_found_beside_one_that_waits(world: World, status: str) -> None:
    world.github.run(job(6, status), job(7), status=status)
    world.tick()
    assert (world.shown(6), world.shown(7)) == (None, ("queued", None))


def test_a_run_of_several_pages_is_read_to_its_end(world: World) -> None:
    world.github.run(*(job(1000 + number) for number in range(230)))
    world.tick()
    assert len(world.stage.rows("SELECT 1 FROM jobs WHERE state = 'queued'")) == 230


def test_queued_job_behind_a_thousand_completed_jobs_is_found(world: World) -> None:
    over = [job(1000 + number, "completed", conclusion="success") for number in range(1150)]
    world.github.run(*over, *(job(3000 + number) for number in range(50)), status="in_progress")
    world.tick()
    assert world.shown(3049) == ("queued", None)
    assert len(world.stage.rows("SELECT 1 FROM jobs WHERE state = 'queued'")) == 50
    assert world.run().outcome != "unfinished"


def test_next_tick_goes_on_at_the_page_of_a_run_where_this_one_stopped(world: World) -> None:
    world.github.run(*(job(1000 + number, "completed", conclusion="success") for number in range(1150)), job(7))
    later = world.github.run(job(8))
    world.github.quota = 160  # eight calls an hour, two of them at once
    world.settings(catch_up_percent=5)
    pages = 0
    for _ in range(14):
        pages += sum(each.startswith("jobs") for each in world.tick())
        world.later(30)
    assert (world.shown(7), world.shown(8)) == (("queued", None), ("queued", None))
    assert f"jobs {later}" in world.github.asked or pages >= 13


def test_run_with_too_many_jobs_is_reported_and_hides_no_other_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "MOST_PAGES_OF_JOBS", 2)
    world.github.run(*(job(1000 + number) for number in range(230)))
    world.github.run(job(7))
    world.tick()
    assert len(world.stage.rows("SELECT 1 FROM jobs WHERE state = 'queued' AND id >= 1000")) == 200
    assert world.shown(7) == ("queued", None)
    assert "a run has 230 jobs, and only the first 200 are checked" in world.run().why


def test_job_behind_a_thousand_others_in_a_run_that_is_over_is_not_given_up(world: World) -> None:
    others = [job(1000 + number, "completed", conclusion="success") for number in range(1000)]
    run = world.github.run(*others, job(7, "completed", conclusion="success", over=90), status="completed")
    world.known(7, minutes=60 * 49, run=run)
    world.tick()
    assert world.shown(7) == ("completed", "success")


# What is over


@pytest.mark.parametrize("state", ["queued", "waiting", "claimed", "running"])
def test_a_job_that_github_ended_long_ago_is_finished(world: World, state: str) -> None:
    world.known(7, state)
    world.known(8, state)
    ended = job(7, "completed", conclusion="cancelled", minutes=90, over=61)
    just_ended = job(8, "completed", conclusion="cancelled", minutes=90, over=59)
    world.github.run(ended, just_ended, job(9), status="in_progress")
    world.tick()
    assert world.shown(7) == ("completed", "cancelled")
    assert world.shown(8) == (state, None)


def test_a_job_left_queued_by_a_run_that_could_not_start_is_finished(world: World) -> None:
    run = world.github.run(job(7), job(8), status="completed", conclusion="startup_failure")
    world.known(7, minutes=61, run=run)
    world.known(8, minutes=59, run=run)
    asked = world.tick()
    assert world.shown(7) == ("completed", "startup_failure")
    assert world.shown(8) == ("queued", None)
    assert asked[-2:] == [f"run {run}", f"jobs {run}"]
    (repair,) = world.stage.rows("SELECT * FROM repairs")
    assert "a run that is over (startup_failure)" in repair.why


def test_a_job_that_ended_in_a_run_that_is_over_ends_as_github_says(world: World) -> None:
    run = world.github.run(job(7, "completed", conclusion="success", over=3), status="completed", conclusion="failure")
    world.known(7, minutes=61, run=run)
    world.tick()
    assert world.shown(7) == ("completed", "success")


@pytest.mark.parametrize(("over", "ends"), [(61, True), (59, False)])
def test_a_running_job_whose_run_is_over_ends_with_its_claim_though_its_pod_hangs(
    world: World, over: float, *, ends: bool
) -> None:
    ended = job(7, "completed", conclusion="failure", minutes=90, over=over)
    run = world.github.run(ended, status="completed", conclusion="failure")
    world.known(7, "running", minutes=90, run=run)
    claim = world.claimed(7)
    world.tick()
    after = world.stage.see(claim)
    assert (after.state, after.end_reason) == (("ended", "completed") if ends else ("executing", None))
    assert world.shown(7) == (("completed", "failure") if ends else ("running", None))


def test_a_job_that_runs_in_an_active_run_costs_nothing(world: World) -> None:
    run = world.github.run(job(7, "in_progress", minutes=90), status="in_progress")
    world.known(7, "running", minutes=90, run=run)
    world.claimed(7)
    assert f"run {run}" not in world.tick()
    assert world.shown(7) == ("running", None)


def test_a_backlog_in_active_runs_hides_no_job_of_a_run_that_is_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "LIMIT", 1)
    waiting = world.github.run(job(7, minutes=90))
    world.known(7, minutes=90, run=waiting)
    over = world.github.run(job(8), status="completed", conclusion="startup_failure")
    world.known(8, minutes=90, run=over)
    world.tick()
    assert world.shown(8) == ("completed", "startup_failure")


def test_a_job_of_a_later_attempt_than_the_run_is_left(world: World) -> None:
    run = world.github.run(job(7, attempt=2), status="completed", conclusion="failure", attempt=1)
    world.known(7, minutes=61, run=run)
    world.tick()
    assert world.shown(7) == ("queued", None)


def test_jobs_that_still_wait_cost_nothing_and_are_left(world: World) -> None:
    run = world.github.run(job(7, minutes=90))
    world.known(7, minutes=90, run=run)
    assert f"run {run}" not in world.tick()
    assert world.shown(7) == ("queued", None)
    world.github.end(run, status="requested", conclusion=None)
    assert world.tick()[-1] == f"run {run}"
    assert world.tick()[-1] == "pending acme/shop", "asked at a distance"
    world.later(61)
    assert world.tick()[-1] == f"run {run}"
    assert world.shown(7) == ("queued", None)


def test_a_404_ends_only_what_can_be_queued_no_more(world: World) -> None:
    world.known(7, minutes=47 * 60, run=5)
    world.known(8, minutes=49 * 60, run=6)
    world.tick()
    assert world.shown(7) == ("queued", None)
    assert world.shown(8) == ("completed", "unknown")


@pytest.mark.parametrize("hold", ["set_aside", "backoff", "ask_github"])
def test_what_unresolved_jobs_asks_about_is_left_to_it(world: World, hold: str) -> None:
    run = world.github.run(job(7), status="completed", conclusion="startup_failure")
    world.known(7, minutes=61, run=run, hold=hold)
    assert f"run {run}" not in world.tick()


@pytest.mark.parametrize("hold", [None, "no_pool", "budget_zero"])
def test_a_held_job_may_be_over_too(world: World, hold: str | None) -> None:
    run = world.github.run(job(7), status="completed", conclusion="startup_failure")
    world.known(7, minutes=61, run=run, hold=hold)
    world.tick()
    assert world.shown(7) == ("completed", "startup_failure")


# What it costs


def test_only_repositories_that_were_seen_lately_or_have_open_jobs_are_asked_about(world: World) -> None:
    world.known(2, "completed", repository="acme/old", minutes=25 * 60)
    world.known(3, "queued", repository="acme/waits", minutes=25 * 60)
    world.known(4, "completed", repository="acme/young", minutes=23 * 60)
    asked = {each.partition(" ")[2] for each in world.tick() if each.startswith(("queued", "in_progress"))}
    assert asked == {"acme/shop", "acme/waits", "acme/young"}


def test_what_has_not_changed_is_paid_for_once(world: World) -> None:
    run = world.github.run(job(7), job(8, "in_progress"), status="in_progress")
    assert world.tick() == [*lists("acme/shop"), f"jobs {run}"]
    assert world.github.paid[501] == 5
    assert len(world.tick()) == 5
    assert world.github.paid[501] == 5
    (purse,) = world.stage.rows("SELECT * FROM catch_up_quotas")
    assert 62.5 - 5 <= purse.calls <= 62.5 - 4.9
    world.github.jobs[run].append(job(9))
    world.tick()
    assert world.github.paid[501] == 6
    assert world.shown(9) == ("queued", None)


def test_a_redirect_is_paid_for_and_not_given_back(world: World) -> None:
    world.github.redirects = 1
    world.tick()
    world.tick()  # a redirect to what has not changed
    (purse,) = world.stage.rows("SELECT * FROM catch_up_quotas")
    assert 62.5 - 12 <= purse.calls <= 62.5 - 11.9


@pytest.mark.parametrize("known", [True, False])
def test_redirect_of_a_run_lookup_is_charged_to_the_budget(world: World, *, known: bool) -> None:
    run = world.github.run(job(7), status="requested") if known else 5
    world.known(7, minutes=61, run=run)
    world.github.redirects = 1
    assert world.tick() == [*lists("acme/shop"), f"run {run}"]
    (purse,) = world.stage.rows("SELECT * FROM catch_up_quotas")
    assert 62.5 - 10 <= purse.calls <= 62.5 - 9.9


def test_what_is_given_back_does_not_undo_what_another_tick_paid(world: World) -> None:
    def pay() -> None:
        assert transaction(world.stage.rt.engine, lambda db: rows.pay(db, 501, percent=5, now=utcnow())) is not None

    original = world.github.list_runs

    def meanwhile(**named: Any) -> Any:
        for _ in range(5):
            pay()
        return original(**named)

    world.tick()
    world.github.list_runs = meanwhile  # type: ignore[method-assign]
    world.tick()
    (purse,) = world.stage.rows("SELECT * FROM catch_up_quotas")
    assert 62.5 - 24 <= purse.calls <= 62.5 - 23.9


def test_two_first_payments_at_once_are_two(world: World) -> None:
    engine = world.stage.rt.engine
    second = threading.Thread(target=lambda: transaction(engine, lambda db: rows.pay(db, 501, percent=5, now=utcnow())))
    waits = """
        SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
    """
    with engine.begin() as db:
        rows.pay(db, 501, percent=5, now=utcnow())
        second.start()
        end = time.monotonic() + 90
        while not world.stage.rows(waits):
            assert time.monotonic() < end
            time.sleep(0.01)
    second.join()
    (purse,) = world.stage.rows("SELECT * FROM catch_up_quotas")
    assert 62.5 - 2 <= purse.calls <= 62.5 - 1.9


def test_a_list_that_left_something_to_do_is_read_again(world: World) -> None:
    world.github.run(job(7, minutes=5), status="in_progress")
    world.settings(catch_up_after=360)
    world.tick()
    assert world.shown(7) is None
    world.settings(catch_up_after=240)
    world.tick()
    assert world.shown(7) == ("queued", None)


def test_no_hour_costs_more_than_its_share_of_the_quota(world: World) -> None:
    world.github.quota = 1000
    world.settings(catch_up_percent=2)
    for number in range(12):  # of which each check costs two and one for its run, as nothing is ever the same
        world.known(100 + number, "completed", repository=f"acme/r{number}")
    for minute in range(0, 60, 5):
        for number in range(12):
            world.github.run(job(1000 * (1 + minute) + number), repository=f"acme/r{number}")
        world.tick()
        world.later(5)
    assert 15 <= world.github.paid[501] <= 20
    assert world.run().outcome == "unfinished"
    assert world.run().why == (
        "the check of a repository is left to the next tick: the hourly calls of `catch_up` for the installation are "
        "used up"
    )
    assert world.left("allowance") > 0


def test_the_next_tick_goes_on_where_this_one_stopped(world: World) -> None:
    runs = [world.github.run(job(100 + number)) for number in range(90)]
    world.tick()
    first = [each for each in world.github.asked if each.startswith("jobs")]
    assert 50 < len(first) < 65
    (before,) = world.stage.rows("SELECT * FROM catch_up_repositories")
    assert (before.checked_at, before.next_run) == (None, runs[len(first)])
    world.later(30)
    world.tick()
    second = [each for each in world.github.asked if each.startswith("jobs")]
    assert [*first, *second] == [f"jobs {run}" for run in runs]
    (after,) = world.stage.rows("SELECT * FROM catch_up_repositories")
    assert after.checked_at == before.began_at
    assert (after.began_at, after.next_run) == (None, None)


def test_the_least_recently_tried_repository_comes_first(world: World) -> None:
    world.known(2, "completed", repository="acme/zoo")
    world.github.breaks["acme/shop"] = RateLimited("slow", after=600)
    assert world.tick() == ["queued acme/shop"]
    assert world.tick() == [*lists("acme/zoo"), "queued acme/shop"]


# What GitHub refuses


@pytest.mark.parametrize("error", [Gone("404"), Forbidden("403")], ids=str)
def test_unreachable_repository_is_listed_ever_less_often_and_changes_no_job(world: World, error: Exception) -> None:
    world.known(2, "queued", repository="acme/gone", minutes=90)
    world.github.breaks["acme/gone"] = error
    ticks = []
    for tick in range(40):
        if "queued acme/gone" in world.tick():
            ticks.append(tick)
        assert "queued acme/shop" in world.github.asked
        world.later(5)
    distances = [later - before for before, later in itertools.pairwise(ticks)]
    assert distances[0] <= 2
    assert distances[-1] in {12, 13}
    assert world.shown(2) == ("queued", None)
    del world.github.breaks["acme/gone"]
    world.later(60)
    world.tick()
    assert world.stage.rows("SELECT failures FROM catch_up_repositories WHERE repository = 'acme/gone'")[0][0] == 0


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (Retryable("500"), "no_answer"),
        (RateLimited("slow", after=600), "limited"),
        (NotInstalled("404"), "uninstalled"),
        (Suspended("403"), "uninstalled"),
    ],
    ids=str,
)
def test_an_installation_that_does_not_answer_is_left_and_stops_no_other(
    world: World, error: Exception, why: str
) -> None:
    for number in (2, 3, 5):
        world.known(number, "completed", repository=f"acme/r{number}")
        world.github.breaks[f"acme/r{number}"] = error
    world.known(4, "completed", repository="zoo/app", installation=777)
    world.github.breaks["acme/shop"] = error
    before = world.left(why)
    tried = ["queued acme/r2", "queued acme/r3", "queued acme/r5"][: 3 if why == "no_answer" else 1]
    assert world.tick() == [*tried, *lists("zoo/app")]
    assert world.left(why) == before + 4
    again = [each for each in world.tick() if "acme" in each]
    if why == "uninstalled":
        assert again == []
    else:
        assert again[0] == ("queued acme/shop" if why == "no_answer" else "queued acme/r3")


@pytest.mark.parametrize("error", [Retryable("502"), Gone("404"), ValueError("a bug")], ids=str)
def test_a_run_that_cannot_be_read_stops_no_other(world: World, error: Exception) -> None:
    bad, _ = world.github.run(job(7)), world.github.run(job(8))
    world.known(2, minutes=90, run=world.github.run(job(2), status="completed", conclusion="startup_failure"))
    world.github.broken[bad] = error
    if isinstance(error, ValueError):
        with pytest.raises(ValueError, match="a bug"):
            world.tick()
    else:
        world.tick()
        assert world.run().outcome == "unfinished"
    assert world.run().skipped == 1
    assert world.shown(8) == ("queued", None)
    assert world.shown(2) == ("completed", "startup_failure")
    world.github.broken.clear()
    world.tick()
    assert world.shown(7) == ("queued", None)


def test_runs_that_time_out_in_a_row_are_skipped_by_the_next_tick(world: World) -> None:
    for number in range(3):
        world.github.broken[world.github.run(job(10 + number))] = Retryable("502")
    world.github.run(job(8))
    before = world.left("no_answer")
    world.tick()
    assert (world.shown(8), world.left("no_answer")) == (None, before + 1)
    world.tick()
    assert world.shown(8) == ("queued", None)


def test_a_run_of_ours_that_cannot_be_read_stops_no_other_and_is_asked_for_later(world: World) -> None:
    bad = world.github.run(job(7), status="completed", conclusion="startup_failure")
    good = world.github.run(job(8), status="completed", conclusion="startup_failure")
    world.known(7, minutes=61, run=bad)
    world.known(8, minutes=61, run=good)
    world.github.broken[bad] = Retryable("502")
    world.tick()
    assert (world.shown(7), world.shown(8)) == (("queued", None), ("completed", "startup_failure"))
    assert f"run {bad}" not in world.tick()
    world.github.broken.clear()
    world.later(61)
    world.tick()
    assert world.shown(7) == ("completed", "startup_failure")


def test_a_repository_that_raises_what_nobody_expected_stops_no_other(world: World) -> None:
    world.known(2, "completed", repository="acme/zoo")
    world.github.breaks["acme/shop"] = ValueError("a bug")
    world.github.run(job(7), repository="acme/zoo")
    with pytest.raises(ValueError, match="a bug"):
        world.tick()
    assert world.shown(7) == ("queued", None)
    assert world.run().outcome == "failed"
    with pytest.raises(ValueError, match="a bug"):
        world.tick()
    assert world.github.asked[0] == "queued acme/shop"


def test_a_process_that_is_killed_at_a_repository_begins_with_another(world: World) -> None:
    world.known(2, "completed", repository="acme/zoo")
    world.tick()
    world.github.breaks["acme/shop"] = KeyboardInterrupt()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        world.tick()
    world.stage.rows("UPDATE sweeps SET leased_until = now() - interval '1 s'")
    world.github.breaks.clear()
    assert world.tick()[0] == "queued acme/zoo"


def test_list_cached_by_another_version_is_fetched_again(world: World) -> None:
    run = world.github.run(job(8))
    world.tick()
    world.stage.rows("""UPDATE catch_up_repositories SET lists = jsonb_set(lists, '{queued,runs}', '[{"id": 1}]')""")
    world.github.jobs[run].append(job(7))
    world.tick()
    assert world.shown(7) == ("queued", None)


def test_what_is_remembered_in_no_known_shape_is_forgotten(world: World) -> None:
    world.tick()
    world.stage.rows("UPDATE catch_up_repositories SET lists = '[]'")
    world.github.run(job(7))
    with pytest.raises(AttributeError):
        world.tick()
    world.tick()
    assert world.shown(7) == ("queued", None)


def test_a_wake_that_cannot_be_sent_is_left_to_resume(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_pool_id: int) -> bool:
        raise RedisConnectionError("away")

    monkeypatch.setattr(world.stage.rt.waker, "wake", fail)
    world.github.run(job(7), job(8))
    world.tick()
    assert (world.shown(7), world.shown(8)) == (("queued", None), ("queued", None))
    assert (world.run().outcome, world.run().skipped) == ("done", 0)


def test_one_message_that_cannot_be_sent_stops_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = world.stage
    (small,) = stage.rows("SELECT id FROM pools")
    large = insert_pool(stage.rt.engine, "large", namespace="none", labels=["large"])
    stage.rows(
        """
        INSERT INTO runner_pods (pool_id, namespace, name, uid, attempt_id, template_hash, created_at)
        VALUES (:pool, 'none', 'small-0', 'u', 'a', 'h', now())
        """,
        pool=small.id,
    )
    world.known(7, "running", minutes=90)
    stage.claim("small-0", job_id=7, state="executing", runner="small-0-abcdef01")
    world.known(8)
    world.known(9)
    stage.rows("UPDATE jobs SET pool_id = :pool WHERE id = 9", pool=large)
    world.github.run(
        job(7, "completed", conclusion="success", minutes=90, over=61, runner="small-0-abcdef01"), status="in_progress"
    )
    original = stage.outbox.wake

    def fail(pool_id: int) -> bool:
        if pool_id == small.id:
            raise RedisConnectionError("away for a moment")
        return original(pool_id)

    monkeypatch.setattr(stage.rt.waker, "wake", fail)
    world.tick()
    assert world.shown(7) == ("completed", "success")
    assert {"pool_id": large} in stage.outbox.take("wake")


def test_jobs_of_a_repository_that_was_given_away_are_asked_about_at_a_distance(world: World) -> None:
    run = world.github.run(job(7, "completed", conclusion="success"), status="completed", conclusion="success")
    world.github.jobs[run] = [dataclasses.replace(each, owner_id=9) for each in world.github.jobs[run]]
    world.known(7, minutes=90, run=run)
    assert f"run {run}" in world.tick()
    assert f"run {run}" not in world.tick()
    assert world.shown(7) == ("queued", None)


def test_the_lease_is_not_renewed_at_each_call(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    renewed = []
    original = Tick._renew

    def renew(tick: Tick) -> None:
        renewed.append(1)
        original(tick)

    monkeypatch.setattr(Tick, "_renew", renew)
    for number in range(50):
        world.github.run(job(100 + number, "in_progress"))
    assert len(world.tick()) > 50
    assert len(renewed) < 25, "once for a repository, and every few seconds"


def test_after_a_reinstall_the_new_installation_is_asked(world: World) -> None:
    world.github.run(job(7))
    world.stage.rows("INSERT INTO installations (id, account_id, created_at) VALUES (612, 1, now()), (9, 1, now())")
    world.tick()
    assert set(world.github.paid) == {612}
    assert world.stage.rows("SELECT installation_id FROM jobs WHERE id = 7")[0][0] == 612


def test_our_own_pace_is_waited_for_and_costs_nothing(world: World) -> None:
    world.github.refuses = [RateLimited("Ostler's own rate limit", after=0.01, paced=True)] * 2
    world.github.run(job(7))
    world.tick()
    assert world.shown(7) == ("queued", None)
    (purse,) = world.stage.rows("SELECT * FROM catch_up_quotas")
    assert 62.5 - 5 <= purse.calls <= 62.5 - 4.9


def test_a_list_shorter_than_it_counts_changes_nothing(world: World) -> None:
    world.github.run(job(7), job(8))
    world.github.withheld = 1
    world.tick()
    assert (world.shown(7), world.shown(8)) == (None, None)
    assert world.run().outcome == "aborted"
    world.github.withheld = 0
    world.tick()
    assert world.shown(7) == ("queued", None)


def test_a_renamed_repository_is_followed_and_its_jobs_have_its_new_name(world: World) -> None:
    world.github.moved["acme/shop"] = "acme/store"
    world.github.run(job(7), repository="acme/store")
    world.tick()
    assert world.stage.rows("SELECT repository FROM jobs WHERE id = 7")[0][0] == "acme/store"


def test_a_name_that_belongs_to_somebody_else_now_brings_nothing(world: World) -> None:
    run = world.github.run(job(7))
    world.github.jobs[run] = [dataclasses.replace(each, owner_id=9) for each in world.github.jobs[run]]
    world.github.runs[run] = dataclasses.replace(
        world.github.runs[run], home=dataclasses.replace(home_of("acme/shop"), owner_id=9)
    )
    world.tick()
    assert world.shown(7) is None


def test_one_job_that_postgres_refuses_stops_no_other(world: World) -> None:
    world.github.run(job(7), job(8))
    world.stage.rows("ALTER TABLE jobs ADD CONSTRAINT poison CHECK (id <> 7)")
    world.tick()
    assert (world.shown(7), world.shown(8)) == (None, ("queued", None))
    world.stage.rows("ALTER TABLE jobs DROP CONSTRAINT poison")
    world.tick()
    assert world.shown(7) == ("queued", None)


# The switches


def test_a_dry_run_changes_nothing_and_remembers_nothing(world: World) -> None:
    world.tick(dry=True)
    assert world.stage.rows("SELECT 1 FROM catch_up_repositories") == []
    world.tick()
    before = world.stage.rows("SELECT * FROM catch_up_repositories")
    run = world.github.run(job(7), job(8))
    world.known(9, minutes=90, run=run)
    world.tick(dry=True)
    assert world.shown(7) is None
    assert world.stage.rows("SELECT * FROM catch_up_repositories") == before
    assert world.run().outcome == "done"
    assert world.stage.rows("SELECT 1 FROM deliveries") == []
    assert [row.outcome for row in world.stage.rows("SELECT outcome FROM repairs")] == ["dry", "dry"]
    world.tick()
    assert world.shown(7) == ("queued", None)


def test_a_paused_sweep_asks_nothing(world: World) -> None:
    transaction(world.stage.rt.engine, lambda db: sweep_runs.pause(db, "catch_up", by=author("bo"), why=""))
    world.github.run(job(7))
    assert world.tick() == []


def test_two_copies_at_once_bring_a_job_once(world: World) -> None:
    world.github.run(job(7))
    world.stage.twice_at_once(catch_up.run)
    assert world.shown(7) == ("queued", None)
    assert len(world.stage.rows("SELECT 1 FROM job_events WHERE job_id = 7")) == 1
    assert len(world.stage.rows("SELECT 1 FROM repairs")) == 1


def test_coverage_is_the_checked_share_of_what_was_due(world: World) -> None:
    world.known(2, "completed", repository="acme/zoo")
    world.github.breaks["acme/zoo"] = Gone("404")
    world.tick()
    found = transaction(world.stage.rt.engine, lambda db: rows.coverage(db, now=utcnow()))
    assert (found.due, found.checked_at) == (2, 1)
    world.later(20)
    found = transaction(world.stage.rt.engine, lambda db: rows.coverage(db, now=utcnow()))
    assert (found.due, found.checked_at) == (2, 0)


def test_a_job_that_is_asked_about_here_is_not_asked_about_twice(world: World) -> None:
    run = world.github.run(job(7), status="requested")
    world.known(7, minutes=90, run=run)
    world.tick()
    world.stage.rows("UPDATE jobs SET hold_reason = 'backoff' WHERE id = 7")
    found = transaction(
        world.stage.rt.engine,
        lambda db: unresolved.unresolved_jobs(db, soon=timedelta(0), late=timedelta(0), now=utcnow()),
    )
    assert found == []

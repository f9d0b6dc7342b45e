"""The sweep `unresolved_jobs` on real rows: no job stays forever in a state that nothing of ours ends."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Row, event, text
from structlog.testing import capture_logs

from github_adapters.endpoints.jobs import JobSeen
from github_adapters.endpoints.runs import RunSeen
from models.db.engine import in_transaction, transaction
from models.routing import installations
from models.state import job_holds
from models.sweeps import unresolved
from ostler.clock import utcnow
from ostler.errors import Busy, Forbidden, Gone, Invalid, NotInstalled, RateLimited, Retryable, Suspended
from rules.claims.fairness import Budget
from tasks.sweeps.unresolved_jobs import unresolved_jobs
from tests.integration.tasks.conftest import Stage, run_seen
from tests.integration.tasks.listing import job_seen


@dataclass
class StubGitHub:
    """Jobs with a status, a conclusion or an error. An unknown job is a 404."""

    jobs: dict[int, Any] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)
    meanwhile: Any = None
    deleted: list[int] = field(default_factory=list)
    busy: bool = False
    run: tuple[str, str | None] | Exception = ("in_progress", None)
    attempt: int = 1
    repository_id: int | None = None
    runs: list[int | str] = field(default_factory=list)

    def delete_runner(self, *, runner_id: int, **_: Any) -> None:
        """Delete a runner."""
        if self.busy:
            raise Busy("busy")
        self.deleted.append(runner_id)

    def get_job(
        self, *, job_id: int, repository: str | int, installation_id: int, policy: Any, optional: bool
    ) -> JobSeen | None:
        """Return the job, by the repository's id only if another repository has its name."""
        assert not in_transaction()
        assert optional
        assert (installation_id, policy.attempts) == (501 + job_id // 100, 4)
        assert repository in {"acme/shop", self.repository_id}
        if repository == "acme/shop" and self.repository_id is not None:
            return None
        self.asked.append(job_id)
        if self.meanwhile:
            self.meanwhile()
        said = self.jobs.get(job_id)
        if isinstance(said, Exception):
            raise said
        if said is None:
            return None
        status, _, conclusion = said.partition("/")
        return job_seen(job_id, status, conclusion or None)

    def get_run(self, *, run_id: int, repository: str | int, policy: Any, **_: Any) -> RunSeen:
        """Return the run of all jobs."""
        assert not in_transaction()
        self.runs.append(repository)
        assert policy.attempts == 4
        if isinstance(self.run, Exception):
            raise self.run
        return run_seen(run_id, *self.run, attempt=self.attempt)


@dataclass
class World:
    """Rows and a GitHub."""

    stage: Stage
    github: StubGitHub

    def job(self, job_id: int, state: str, *, minutes: float = 5, hold: str | None = None) -> None:
        """Insert a job that has been in this state for some minutes. Jobs from 100 on have another installation."""
        self.stage.job(job_id, state=state)
        self.stage.rows(
            """
            UPDATE jobs SET hold_reason = :hold, installation_id = 501 + id / 100, queued_at = t.at, changed_at = t.at
            FROM (SELECT now() - make_interval(secs => :age) AS at) t WHERE id = :id
            """,
            id=job_id,
            hold=hold,
            age=minutes * 60,
        )

    def runs_on(self, job_id: int, runner: str, *, minted: bool = False) -> None:
        """Record an execution. A `minted` runner is one of ours."""
        self.stage.rows(
            """
            INSERT INTO executions (job_id, runner_name, account_id, vcpu, memory, started_at)
            VALUES (:job, :runner, 1, 2000, 4096, now())
            """,
            job=job_id,
            runner=runner,
        )
        if minted:
            claim = self.claim(None)
            self.stage.rows("UPDATE claims SET state = 'ended', ended_at = now(), end_reason = 'pod_gone'")
            self.stage.rows(
                """
                INSERT INTO mint_attempts (claim_id, runner_name, runner_id, outcome, created_at)
                VALUES (:claim, :runner, 77, 'minted', now())
                """,
                claim=claim,
                runner=runner,
            )

    def claim(self, job_id: int | None) -> int:
        """Insert a live claim on a Pod."""
        self.stage.rows(
            """
            INSERT INTO runner_pods (pool_id, namespace, name, uid, attempt_id, template_hash, created_at)
            SELECT min(id), 'none', 'pod', 'uid', 'a', 'h', now() FROM pools
            """
        )
        return self.stage.claim("pod", job_id=job_id, state="executing")

    def tick(self) -> list[int]:
        """Run the sweep once, and return the jobs that it asked about."""
        self.github.asked.clear()
        unresolved_jobs.run()
        return sorted(self.github.asked)

    def later(self, minutes: float) -> None:
        """Let time pass."""
        by = {"age": minutes * 60}
        self.stage.rows(
            """
            UPDATE jobs SET changed_at = changed_at - make_interval(secs => :age),
                   queued_at = queued_at - make_interval(secs => :age),
                   ask_after = ask_after - make_interval(secs => :age)
            """,
            **by,
        )

    def see(self, job_id: int) -> Row[Any]:
        """Return a job."""
        (row,) = self.stage.rows("SELECT * FROM jobs WHERE id = :id", id=job_id)
        return row

    def shown(self, job_id: int) -> tuple[str, str | None, str | None]:
        """Return state, hold and conclusion of a job."""
        row = self.see(job_id)
        return row.state, row.hold_reason, row.conclusion


@pytest.fixture
def world(clusterless: Stage) -> World:
    clusterless.rt.github = StubGitHub()
    return World(clusterless, clusterless.rt.github)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("queued", ("queued", None, None)),
        ("completed/success", ("completed", None, "success")),
        ("completed", ("completed", None, "unknown")),
        (None, ("completed", None, "unknown")),
        ("in_progress", ("running", "ask_github", None)),
    ],
)
def test_a_job_whose_outcome_was_not_known_goes_where_github_says(world: World, said: str | None, shown: Any) -> None:
    world.job(7, "running", hold="ask_github")
    world.runs_on(7, "small-0-abcdef01")
    world.github.jobs[7] = said
    age = world.see(7).queued_at
    assert world.tick() == [7]
    assert world.shown(7) == shown
    assert world.see(7).queued_at == age
    open_executions = world.stage.rows("SELECT 1 FROM executions WHERE ended_at IS NULL")
    assert bool(open_executions) is (said == "in_progress")
    assert ("wake", {"pool_id": world.see(7).pool_id}) in world.stage.outbox.sent or said != "queued"


@pytest.mark.parametrize(
    ("state", "hold"), [("running", "ask_github"), ("queued", "backoff"), ("waiting", None), ("claimed", None)]
)
@pytest.mark.parametrize("conclusion", ["startup_failure", "cancelled", None])
def test_a_job_that_is_queued_in_a_run_that_is_over_is_finished(
    world: World, state: str, hold: str | None, conclusion: str | None
) -> None:
    world.job(7, state, minutes=61, hold=hold)
    world.github.jobs[7] = "queued"
    world.github.run = ("completed", conclusion)
    assert world.tick() == [7]
    assert world.shown(7) == ("completed", None, conclusion or "unknown")
    (repair,) = world.stage.rows("SELECT why FROM repairs")
    assert "its run is over" in repair.why


def test_a_run_of_an_earlier_attempt_than_the_job_proves_nothing(world: World) -> None:
    world.job(7, "running", hold="ask_github")
    world.github.jobs[7] = "queued"
    world.github.run, world.github.attempt = ("completed", "failure"), 0
    world.tick()
    assert world.shown(7) == ("queued", None, None)


def test_while_the_run_cannot_be_asked_for_nothing_is_queued_again(world: World) -> None:
    world.job(7, "running", hold="ask_github")
    world.github.jobs[7] = "queued"
    world.github.run = Retryable("down")
    world.tick()
    assert world.shown(7) == ("running", "ask_github", None)
    world.github.run = ("queued", None)
    world.later(60)
    world.tick()
    assert world.shown(7) == ("queued", None, None)


def test_job_is_checked_ever_less_often_until_github_answers(world: World) -> None:
    world.job(7, "running", minutes=2.1, hold="ask_github")
    world.github.jobs[7] = Retryable("down")
    asked_at = []
    for minute in range(120):
        if world.tick():
            asked_at.append(minute)
        world.later(1)
    assert world.shown(7) == ("running", "ask_github", None)
    assert 5 < len(asked_at) < 15
    distances = [after - before for before, after in itertools.pairwise(asked_at)]
    assert distances == sorted(distances)
    world.github.jobs[7] = "queued"
    world.later(60)
    world.tick()
    assert world.shown(7) == ("queued", None, None)


def test_a_young_hold_may_be_answered_by_its_webhook_first(world: World) -> None:
    world.job(7, "running", minutes=1, hold="ask_github")
    assert world.tick() == []


@pytest.mark.parametrize("hold", ["backoff", "set_aside", "ask_github"])
def test_a_404_ends_no_job_that_may_still_be_queued(world: World, hold: str) -> None:
    world.job(7, "running" if hold == "ask_github" else "queued", minutes=61, hold=hold)
    before = world.shown(7)
    assert world.tick() == [7]
    assert world.shown(7) == before
    world.github.jobs[7] = "queued"
    world.later(61)
    assert world.tick() == [7]
    assert world.shown(7) == ("queued", None if hold == "ask_github" else hold, None)


def test_a_404_ends_a_job_that_waits_longer_than_github_lets_one_wait(world: World) -> None:
    for job in (7, 8):
        world.job(job, "queued", minutes=49 * 60, hold="backoff")
    world.stage.rows(
        """
        INSERT INTO job_events (job_id, at, transition, to_state, who, why)
        VALUES (8, now() - interval '2 hours', 'job_ready', 'queued', 'test', 'its environment let it go')
        """
    )
    assert world.tick() == [7, 8]
    assert world.shown(7) == ("completed", None, "unknown")
    assert world.shown(8) == ("queued", "backoff", None)


def test_jobs_of_an_unavailable_installation_make_room_for_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unresolved, "LIMIT", 3)
    for job in range(4):
        world.job(job, "queued", hold="backoff", minutes=120)
        world.github.jobs[job] = Suspended("suspended")
    world.job(107, "running", hold="ask_github")
    world.github.jobs[107] = "completed/success"
    assert world.tick() == [0]
    assert world.tick() == [3, 107]
    assert world.tick() == []


@pytest.mark.parametrize("error", [Forbidden("403"), Invalid("422"), Gone("404")], ids=str)
def test_what_is_wrong_with_one_job_leaves_the_rest_of_its_installation(world: World, error: Exception) -> None:
    for job in (1, 2, 3):
        world.job(job, "running", hold="ask_github")
    world.github.jobs = {1: error, 2: "completed/success", 3: "queued"}
    assert world.tick() == [1, 2, 3]
    assert [world.shown(job)[0] for job in (1, 2, 3)] == ["running", "completed", "queued"]
    assert world.tick() == []


def _wait_a_second_for_locks(connection: Any, _record: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '1s'")
    connection.commit()


def test_a_job_that_is_locked_leaves_the_rest_of_its_installation(world: World) -> None:
    for job in (1, 2):
        world.job(job, "running", hold="ask_github")
    world.github.jobs = {1: "completed/success", 2: "completed/success"}
    engine = world.stage.rt.engine
    engine.dispose()
    event.listen(engine, "connect", _wait_a_second_for_locks)
    with engine.connect() as other:
        other.execute(text("SELECT 1 FROM jobs WHERE id = 1 FOR UPDATE"))
        assert world.tick() == [1, 2]
    assert [world.shown(job)[0] for job in (1, 2)] == ["running", "completed"]


@pytest.mark.parametrize("error", [Retryable("down"), RateLimited("slow", after=60), NotInstalled("404")], ids=str)
def test_an_installation_that_does_not_answer_stops_no_other_and_is_asked_once(world: World, error: Exception) -> None:
    for job in (1, 2, 3, 107):
        world.job(job, "running", hold="ask_github")
    world.github.jobs = {1: error, 2: error, 3: error, 107: "completed/success"}
    assert world.tick() == [1, 107]
    assert world.shown(107) == ("completed", None, "success")
    assert [world.shown(job)[0] for job in (1, 2, 3)] == ["running"] * 3


def test_one_that_always_fails_does_not_keep_its_neighbours_from_an_answer(world: World) -> None:
    for job in (1, 2):
        world.job(job, "running", hold="ask_github")
    world.github.jobs = {1: Retryable("500"), 2: "completed/success"}
    assert world.tick() == [1]
    assert world.tick() == []
    world.later(1.5)
    assert world.tick() == [2]
    assert world.shown(2) == ("completed", None, "success")


def test_where_the_app_was_removed_nothing_is_concluded(world: World) -> None:
    world.job(7, "running", hold="ask_github")
    world.github.jobs[7] = NotInstalled("404 to its token")
    world.tick()
    assert world.shown(7) == ("running", "ask_github", None)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("waiting", ("waiting", None, None)),
        ("queued", ("queued", "no_pool", None)),
        ("in_progress", ("running", "ask_github", None)),
        ("completed/cancelled", ("completed", None, "cancelled")),
    ],
)
def test_job_that_waits_for_long_might_have_been_approved(world: World, said: str, shown: Any) -> None:
    world.job(6, "waiting", minutes=59)
    world.job(7, "waiting", minutes=61)
    world.github.jobs[7] = said
    assert world.tick() == [7]
    assert world.shown(7) == shown
    assert world.tick() == []


@pytest.mark.parametrize("hold", ["set_aside", "backoff"])
def test_a_job_set_aside_for_long_may_be_over(world: World, hold: str) -> None:
    world.job(6, "queued", minutes=61, hold=hold)
    world.job(7, "queued", minutes=61, hold=hold)
    world.job(8, "queued", minutes=59, hold=hold)
    world.job(9, "queued", minutes=90)
    world.job(10, "queued", minutes=90, hold="no_pool")
    world.github.jobs = {6: "queued", 7: "completed/cancelled"}
    assert world.tick() == [6, 7]
    assert world.shown(6) == ("queued", hold, None)
    assert world.shown(7) == ("completed", None, "cancelled")
    assert world.tick() == []


@pytest.mark.parametrize("state", ["claimed", "running"])
@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("queued", ("queued", None, None)),
        ("in_progress", ("running", "ask_github", None)),
        ("completed/failure", ("completed", None, "failure")),
    ],
)
def test_a_job_whose_claim_was_lost_by_a_bug_is_repaired(world: World, state: str, said: str, shown: Any) -> None:
    world.job(6, state, minutes=1)
    world.job(7, state)
    world.github.jobs[7] = said
    assert world.tick() == [7]
    assert world.shown(7) == shown


def test_a_job_with_a_live_claim_is_its_claims(world: World) -> None:
    world.job(7, "running", minutes=600)
    world.job(8, "running", minutes=600, hold="ask_github")
    world.claim(7)
    world.stage.rows("UPDATE claims SET pod_uid = 'other'")
    world.stage.rows("UPDATE runner_pods SET name = 'other', uid = 'other'")
    world.claim(8)
    assert world.tick() == []


def test_what_runs_on_runners_of_others_is_asked_about_seldom_and_on_ours_soon(world: World) -> None:
    world.job(6, "running", minutes=59)
    world.runs_on(6, "GitHub Actions 5")
    world.job(7, "running", minutes=61)
    world.runs_on(7, "GitHub Actions 6")
    world.job(8, "running", minutes=3)
    world.runs_on(8, "small-0-abcdef01", minted=True)
    world.github.jobs = {7: "in_progress", 8: "in_progress"}
    assert world.tick() == [7, 8]
    assert world.shown(7) == ("running", None, None)
    assert world.shown(8) == ("running", "ask_github", None)
    assert world.tick() == []


@pytest.mark.parametrize(
    ("claim", "kind"),
    [
        ("UPDATE claims SET ended_at = now() - interval '6 min'", "outlived"),
        ("UPDATE claims SET ended_at = now() - interval '4 min'", "bug"),  # live when GitHub told
        ("UPDATE claims SET state = 'executing', ended_at = NULL, end_reason = NULL", "bug"),
    ],
)
def test_only_an_execution_reported_after_the_end_of_its_claim_is_no_bug(world: World, claim: str, kind: str) -> None:
    world.job(7, "running", minutes=5)
    world.runs_on(7, "small-0-abcdef01", minted=True)
    world.stage.rows(claim)
    world.github.jobs = {7: "completed/failure"}
    with capture_logs() as logs:
        assert world.tick() == [7]
    assert world.shown(7) == ("completed", None, "failure")
    assert [each["event"] for each in logs if each["event"] == "unresolved_jobs.impossible_state_repaired"] == [
        "unresolved_jobs.impossible_state_repaired"
    ] * (kind == "bug")
    (row,) = world.stage.rows("SELECT why FROM repairs")
    assert row.why.startswith(f"{kind}: ")


def test_a_job_that_moves_while_github_is_asked_is_left_alone(world: World) -> None:
    world.job(7, "running", hold="ask_github")
    world.github.jobs[7] = "queued"
    world.github.meanwhile = lambda: world.stage.rows(
        "UPDATE jobs SET state = 'completed', conclusion = 'success', hold_reason = NULL, changed_at = now()"
    )
    world.tick()
    assert world.shown(7) == ("completed", None, "success")


def test_a_claim_that_comes_while_github_is_asked_keeps_its_job(world: World) -> None:
    world.job(7, "running", hold="ask_github")
    world.github.jobs[7] = "queued"
    world.github.meanwhile = lambda: world.claim(7)
    world.tick()
    assert world.shown(7) == ("running", "ask_github", None)


def test_a_job_that_starts_elsewhere_while_github_is_asked_is_not_queued_again(world: World) -> None:
    world.job(7, "running", hold="ask_github")
    world.github.jobs[7] = "queued"
    world.github.meanwhile = lambda: world.runs_on(7, "GitHub Actions 5")
    world.tick()
    assert world.shown(7) == ("running", "ask_github", None)
    assert len(world.stage.rows("SELECT 1 FROM executions WHERE ended_at IS NULL")) == 1


def test_two_executions_complete_a_job_once(world: World) -> None:
    world.job(7, "running", hold="ask_github")
    world.github.jobs[7] = "queued"
    world.stage.twice_at_once(unresolved_jobs.run)
    assert world.shown(7) == ("queued", None, None)
    assert len(world.stage.rows("SELECT 1 FROM job_events WHERE transition = 'job_requeue'")) == 1


def test_the_runner_of_a_pod_that_is_over_is_removed_before_its_job_is_queued_again(world: World) -> None:
    world.job(7, "running", hold="ask_github")
    claim = world.claim(7)
    world.stage.rows("UPDATE claims SET state = 'ended', ended_at = now(), end_reason = 'pod_spent'")
    world.stage.rows(
        """
        INSERT INTO mint_attempts (claim_id, runner_name, runner_id, outcome, created_at)
        VALUES (:claim, 'r', 77, 'minted', now())
        """,
        claim=claim,
    )
    world.github.jobs[7] = "queued"
    world.github.busy = True
    world.tick()
    assert world.shown(7) == ("running", "ask_github", None)
    world.github.busy = False
    world.later(10)
    world.tick()
    assert (world.shown(7), world.github.deleted) == (("queued", None, None), [77])


@pytest.mark.parametrize("error", [Gone("404"), Forbidden("403")], ids=str)
def test_a_runner_out_of_reach_keeps_no_job_from_the_queue(world: World, error: Exception) -> None:
    world.job(7, "running", hold="ask_github")
    claim = world.claim(7)
    world.stage.rows(
        "UPDATE claims SET state = 'ended', ended_at = now(), end_reason = 'pod_spent', installation_id = 1"
    )
    world.stage.rows(
        """
        INSERT INTO mint_attempts (claim_id, runner_name, runner_id, outcome, created_at)
        VALUES (:claim, 'r', 77, 'minted', now())
        """,
        claim=claim,
    )
    asked = []

    def refuse(*, installation_id: int, **_: Any) -> None:
        asked.append(installation_id)
        raise error

    world.github.delete_runner = refuse  # type: ignore[method-assign, assignment]
    world.github.jobs[7] = "queued"
    world.tick()
    assert (world.shown(7), asked) == (("queued", None, None), [501])


def test_a_new_installation_takes_over_what_the_old_one_had_under_way(world: World) -> None:
    for job, state in ((1, "waiting"), (2, "queued"), (3, "running"), (4, "completed"), (5, "claimed")):
        world.job(job, state)
    live = world.claim(3)
    with world.stage.rt.engine.begin() as db:
        installations.come_back(
            db, installation_id=900, account_id=1, login="acme", budget=Budget(1, 1, 1), now=utcnow()
        )
    assert [world.see(job).installation_id for job in (1, 2, 3, 4, 5)] == [900, 900, 900, 501, 900]
    assert world.stage.rows("SELECT installation_id FROM claims WHERE id = :id", id=live)[0][0] == 900


def test_a_job_whose_repository_lost_its_name_to_another_is_found_by_its_id(world: World) -> None:
    world.job(7, "running", hold="ask_github", minutes=5)
    world.stage.rows("UPDATE jobs SET repository_id = 41")
    world.github.jobs[7], world.github.repository_id = "queued", 41
    world.tick()
    assert world.shown(7) == ("queued", None, None)
    assert world.github.runs == [41]  # by its name GitHub would show another repository's, or none


def test_a_404_to_name_and_id_changes_nothing(world: World) -> None:
    world.job(7, "running", hold="ask_github", minutes=5)
    world.stage.rows("UPDATE jobs SET repository_id = 41")
    world.github.repository_id = 41
    world.tick()
    assert world.shown(7) == ("running", "ask_github", None)


def test_a_tick_asks_for_the_run_of_many_jobs_once(world: World) -> None:
    for job in (7, 8, 9):
        world.job(job, "running", hold="ask_github", minutes=5)
        world.github.jobs[job] = "queued"
    world.github.run = ("completed", "startup_failure")
    assert world.tick() == [7, 8, 9]
    assert len(world.github.runs) == 1
    assert world.shown(9) == ("completed", None, "startup_failure")
    world.later(5)
    world.tick()
    assert len(world.github.runs) == 1  # and it was the tick's: nothing was left to be asked


def test_a_tick_is_bounded(world: World) -> None:
    for job in range(unresolved.LIMIT + 5):
        world.job(job, "running", hold="ask_github", minutes=5)
        world.stage.rows("UPDATE jobs SET installation_id = 501")
    world.github.get_job = lambda **asked: world.github.asked.append(asked["job_id"])  # type: ignore[method-assign]
    assert len(world.tick()) == unresolved.LIMIT
    assert len(world.tick()) == 5


def test_later_question_is_written_to_no_job_that_has_ended(clusterless: Stage) -> None:
    clusterless.job(1, state="running")
    clusterless.job(2, state="completed")
    later = utcnow() + timedelta(minutes=1)
    transaction(clusterless.rt.engine, lambda db: job_holds.ask_later(db, [1, 2], ask_after=later))
    assert [row.ask_after for row in clusterless.rows("SELECT ask_after FROM jobs ORDER BY id")] == [later, None]

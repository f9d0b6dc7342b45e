"""The small sweeps and the steps that they start: the work that they leave, and the work that they repair."""

from __future__ import annotations

from typing import Any

import pytest

from models.db.engine import transaction
from models.routing.usage import usage_of
from models.state import claim_checks
from models.state.claim_leases import WAITS
from models.sweeps import sweeps
from ostler import telemetry
from ostler.clock import utcnow
from ostler.errors import Forbidden, Gone, NotInstalled, RateLimited, UpstreamError
from ostler.reasons import meaning_of
from rules.claims.job_outcomes import JobOutcome, NextStep
from tasks.claims.retire import retire
from tasks.pools.reconcile import reconcile
from tasks.sweeps import unused_runners as of_unused
from tasks.sweeps.finished_jobs import finished_jobs
from tasks.sweeps.missing_pods import missing_pods
from tasks.sweeps.missing_stamps import missing_stamps
from tasks.sweeps.orphaned_runners import orphaned_runners
from tasks.sweeps.stale_claims import stale_claims
from tasks.sweeps.unresolved_jobs import unresolved_jobs
from tasks.sweeps.unused_runners import unused_runners
from tests.integration.tasks.conftest import RUNNER, Stage, StubGitHub
from tests.integration.tasks.test_failed_steps import assert_due, failing


@pytest.mark.parametrize(
    ("state", "age", "ends"),
    [("claimed", 400, True), ("minted", 400, True), ("claimed", 200, False), ("delivered", 400, False)],
)
def test_only_a_claim_that_was_never_delivered_gets_stale(
    stage: Stage, pod: str, state: str, age: float, *, ends: bool
) -> None:
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state=state, age=age)
    stale_claims.run()
    stage.released()
    after = stage.see(claim)
    assert (after.state, after.end_reason) == (("ended", "released") if ends else (state, None))
    assert after.job_state == ("queued" if ends else "claimed")


def test_release_before_delivery_removes_the_stamp_and_deregisters_the_runner(
    stage: Stage, pod: str, github: StubGitHub
) -> None:
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="minted", age=400, runner=RUNNER)
    github.runner = "offline"
    stale_claims.run()
    stage.released()
    assert stage.see(claim).end_reason == "released"
    assert github.deleted == [77]
    after = stage.pods()[pod]
    assert after.owner is None
    assert after.stamp == f"{claim}.1"
    assert stage.rows("SELECT id FROM claims WHERE purpose = 'retire'") == []


def test_an_empty_list_of_pods_ends_no_claim(stage: Stage, pod: str) -> None:
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="executing")
    for name in stage.pods():
        stage.kube.request("DELETE", f"/api/v1/namespaces/{stage.namespace}/pods/{name}")
    missing_pods.run()
    assert stage.see(claim).state == "executing"


@pytest.mark.parametrize(
    ("answer", "job_state", "hold", "conclusion"),
    [
        (("queued", None, None), "queued", None, None),
        (("in_progress", None, RUNNER), "running", "ask_github", None),
        (("completed", "failure", RUNNER), "completed", None, "failure"),
        (None, "running", "ask_github", None),
    ],
    ids=["queued", "in progress", "over", "unknown to GitHub"],
)
def test_a_claim_whose_pod_is_gone_ends_and_its_job_follows_github(
    stage: Stage, pod: str, github: StubGitHub, answer: Any, job_state: str, hold: str | None, conclusion: str | None
) -> None:
    stage.job(7, state="running")
    claim = stage.claim(pod, job_id=7, state="executing", runner=RUNNER)
    github.job = answer
    stage.kube.request("DELETE", f"/api/v1/namespaces/{stage.namespace}/pods/{pod}")
    missing_pods.run()
    after = stage.see(claim)
    assert (after.state, after.end_reason) == ("ended", "pod_gone")
    assert (after.job_state, after.hold_reason, after.conclusion) == (job_state, hold, conclusion)


def test_a_claim_whose_pod_is_gone_waits_while_github_cannot_be_asked(
    stage: Stage, pod: str, github: StubGitHub
) -> None:
    stage.job(7, state="running")
    claim = stage.claim(pod, job_id=7, state="executing", runner=RUNNER)
    github.broken = True
    stage.kube.request("DELETE", f"/api/v1/namespaces/{stage.namespace}/pods/{pod}")
    missing_pods.run()
    assert stage.see(claim).state == "executing"
    assert github.optional == [True]


def test_claim_of_a_gone_pod_stays_while_its_runner_is_busy_and_then_deregisters_it(
    stage: Stage, pod: str, github: StubGitHub
) -> None:
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="executing", runner=RUNNER)
    stage.kube.request("DELETE", f"/api/v1/namespaces/{stage.namespace}/pods/{pod}")
    github.runner = "busy"
    missing_pods.run()
    before = stage.see(claim)
    assert (before.state, before.job_state) == ("executing", "claimed")

    github.runner = "offline"
    missing_pods.run()

    after = stage.see(claim)
    assert (after.end_reason, after.job_state) == ("pod_gone", "queued")
    assert github.deleted == [77]


def test_a_claim_whose_pod_is_gone_ends_where_its_runner_may_not_be_deregistered(
    stage: Stage, pod: str, github: StubGitHub
) -> None:
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="executing", runner=RUNNER)
    stage.kube.request("DELETE", f"/api/v1/namespaces/{stage.namespace}/pods/{pod}")
    github.keeps = True
    missing_pods.run()
    after = stage.see(claim)
    assert (after.end_reason, after.job_state) == ("pod_gone", "queued")


def test_a_runner_that_may_not_be_removed_is_asked_for_once_a_minute(
    stage: Stage, pod: str, github: StubGitHub
) -> None:
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="delivered", age=100, runner=RUNNER)
    github.runner, github.keeps = "offline", True

    with pytest.raises(Forbidden):
        stage.release(claim)

    after = stage.see(claim)
    assert (after.state, after.leased_until, after.last_error) == ("releasing", None, "access is refused")
    assert 50 < (after.due_at - utcnow()).total_seconds() <= 60


def test_a_spent_pod_does_not_wait_for_a_github_that_cannot_be_asked(
    stage: Stage, pod: str, github: StubGitHub
) -> None:
    stage.job(7, state="running")
    claim = stage.claim(pod, job_id=7, state="executing", runner=RUNNER)
    (pool,) = stage.rows("SELECT id FROM pools")
    stage.finish(pod)
    github.broken = True
    reconcile.run(pool_id=pool.id)
    assert stage.see(claim).state == "executing"
    stage.rows("UPDATE runner_pods SET terminal_at = now() - interval '31 s' WHERE terminal_at IS NOT NULL")
    reconcile.run(pool_id=pool.id)
    after = stage.see(claim)
    assert (after.state, after.end_reason) == ("ended", "pod_spent")
    assert (after.job_state, after.hold_reason) == ("running", "ask_github")
    reconcile.run(pool_id=pool.id)
    assert pod not in stage.pods()

    for _ in range(3):  # GitHub is away, tick after tick
        stage.rows("UPDATE jobs SET changed_at = changed_at - interval '1 h', ask_after = NULL")
        unresolved_jobs.run()
        after = stage.see(claim)
        assert (after.job_state, after.hold_reason) == ("running", "ask_github")
    github.broken, github.job = False, ("completed", "success", RUNNER)
    stage.rows("UPDATE jobs SET ask_after = NULL")
    unresolved_jobs.run()
    after = stage.see(claim)
    assert (after.job_state, after.hold_reason, after.conclusion) == ("completed", None, "success")


def test_a_delivered_claim_without_its_stamp_is_stamped_and_a_young_one_not_yet(stage: Stage, pod: str) -> None:
    other = max(stage.pods())
    stage.job(7)
    stage.job(8)
    old = stage.claim(pod, job_id=7, state="delivered", age=60)
    stage.claim(other, job_id=8, state="delivered", age=1)
    missing_stamps.run()
    assert stage.outbox.take("ostler.stamp") == [{"claim_id": old}]


@pytest.mark.parametrize(
    ("runner", "job", "state", "after_job", "counted"),
    [
        ("busy", ("in_progress", None, RUNNER), "executing", (7, "running"), "execute"),
        ("busy", ("queued", None, None), "executing", (None, "queued"), "execute_unidentified"),
        ("online", ("queued", None, None), "delivered", (7, "claimed"), "wait"),
        ("online", ("in_progress", None, "another"), "spare", (None, "running"), "spare"),
        ("online", ("completed", "cancelled", None), "spare", (None, "completed"), "spare"),
        ("offline", ("queued", None, None), "releasing", (7, "claimed"), "release_never_started"),
        (None, ("queued", None, None), "delivered", (7, "claimed"), "wait"),
    ],
    ids=["busy with it", "busy with another", "idle", "it runs elsewhere", "it is over", "offline", "absent once"],
)
def test_a_runner_without_an_execution_is_judged_by_what_github_shows(
    stage: Stage, pod: str, github: StubGitHub, runner: str | None, job: Any, state: str, after_job: Any, counted: str
) -> None:
    before = looks()
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="delivered", age=90, runner=RUNNER)
    github.runner, github.job = runner, job
    unused_runners.run()
    (after,) = stage.rows("SELECT state, job_id, spare_since FROM claims WHERE id = :id", id=claim)
    shown = "spare" if after.spare_since is not None else after.state
    assert shown == state
    (own,) = stage.rows("SELECT state FROM jobs WHERE id = 7")
    assert (after.job_id, own.state) == after_job
    assert {verdict: many - before[verdict] for verdict, many in looks().items() if many > before[verdict]} == {
        counted: 1
    }


def looks() -> dict[str, float]:
    """Return the count of each verdict."""
    (family,) = telemetry.UNUSED_RUNNER_CHECKS.collect()
    return {each.labels["verdict"]: each.value for each in family.samples}


@pytest.mark.parametrize(
    ("has", "runner", "said"),
    [
        (None, "online", None),
        (7, "online", ("in_progress", None, "another")),
        (7, "busy", ("in_progress", None, "another")),
    ],
    ids=["a spare", "one whose job runs elsewhere", "one whose runner is busy with another job"],
)
def test_claim_that_gets_another_job_during_its_check_keeps_that_job(
    stage: Stage, pod: str, github: StubGitHub, monkeypatch: pytest.MonkeyPatch, has: int | None, runner: str, said: Any
) -> None:
    for job in (7, 8):
        stage.job(job)
    claim = stage.claim(pod, job_id=has, state="delivered", age=90, runner=RUNNER)
    github.runner, github.job = runner, said
    act = of_unused.act

    def after_a_match(*judged: Any) -> None:
        stage.rows("UPDATE claims SET job_id = 8, spare_since = NULL")
        act(*judged)

    monkeypatch.setattr(of_unused, "act", after_a_match)
    unused_runners.run()
    after = stage.see(claim)
    assert (after.state, after.job_id, after.job_state) == ("delivered", 8, "claimed")
    (run,) = stage.rows("SELECT found, repaired, moved_on FROM sweep_runs")
    assert tuple(run) == (1, 0, 1)


def test_absent_runner_is_released_only_after_two_checks_a_minute_apart(
    stage: Stage, pod: str, github: StubGitHub
) -> None:
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="delivered", age=90, runner=RUNNER)
    unused_runners.run()
    unused_runners.run()
    assert stage.see(claim).state == "delivered"
    stage.later()
    unused_runners.run()
    stage.released()
    after = stage.see(claim)
    assert (after.state, after.end_reason, after.job_state) == ("ended", "never_started", "queued")
    assert github.job is not None


def test_a_list_from_the_time_when_a_runner_started_says_nothing_of_it(
    stage: Stage, pod: str, github: StubGitHub
) -> None:
    stage.job(7)
    stage.job(8)
    stage.claim(max(stage.pods()), job_id=8, state="delivered", age=900, runner="another")
    claim = stage.claim(pod, job_id=7, state="delivered", age=90, runner=RUNNER)
    github.runner = "offline"
    unused_runners.run()
    assert stage.see(claim).state == "releasing"
    stage.rows("UPDATE claims SET state = 'delivered' WHERE id = :id", id=claim)
    stage.rows("UPDATE runner_lists SET taken_at = taken_at - interval '40 s'")

    unused_runners.run()
    assert stage.see(claim).state == "delivered"
    stage.later()
    unused_runners.run()

    assert stage.see(claim).state == "releasing"


def test_a_runner_that_came_online_since_the_list_is_not_released(stage: Stage, pod: str, github: StubGitHub) -> None:
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="delivered", age=90, runner=RUNNER)
    github.runner = "offline"
    orphaned_runners.run()  # takes the list
    github.runner = "online"

    unused_runners.run()

    assert stage.see(claim).state == "delivered"


def test_a_job_that_ended_on_this_runner_since_the_list_is_finished(stage: Stage, pod: str, github: StubGitHub) -> None:
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="delivered", age=90, runner=RUNNER)
    github.runner = "busy"
    orphaned_runners.run()  # takes the list
    github.runner, github.job = None, ("completed", "success", RUNNER)

    unused_runners.run()
    stage.released()

    (own,) = stage.rows("SELECT state, conclusion FROM jobs WHERE id = 7")
    assert (stage.see(claim).state, own.state, own.conclusion) == ("ended", "completed", "success")


def test_a_list_that_fails_changes_nothing(stage: Stage, pod: str, github: StubGitHub) -> None:
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="delivered", age=90, runner=RUNNER)
    github.broken = True
    unused_runners.run()
    assert stage.see(claim).state == "delivered"
    assert stage.see(claim).runner_absent_at is None


def test_a_delivered_claim_whose_runner_github_calls_busy_is_not_released(
    stage: Stage, pod: str, github: StubGitHub
) -> None:
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="delivered", age=90, runner=RUNNER)
    github.runner = "busy"
    stage.release(claim)
    assert stage.see(claim).state == "executing"
    assert pod in stage.pods()


def test_a_spare_that_got_no_job_is_deregistered_and_its_pod_retired_under_a_claim(
    stage: Stage, pod: str, github: StubGitHub
) -> None:
    stage.job(7)
    claim = stage.claim(pod, job_id=None, state="delivered", age=90, runner=RUNNER)
    github.runner = "online"
    unused_runners.run()
    stage.released()
    assert stage.see(claim).end_reason == "never_started"
    assert github.deleted == [77]
    assert pod in stage.pods()
    for message in stage.outbox.take("ostler.retire"):
        retire.run(**message)
    assert pod not in stage.pods()


@pytest.mark.parametrize("took_it", ["before the list", "after the list"])
def test_spare_with_an_unreported_job_counts_until_its_runner_is_idle_and_retires(
    stage: Stage, pod: str, github: StubGitHub, took_it: str
) -> None:
    claim = stage.claim_without_job(pod, state="delivered", age=4000, runner=RUNNER)

    def used() -> int:
        with stage.rt.engine.connect() as db:
            return usage_of(db, [1])[1].count

    github.runner = "busy" if took_it == "before the list" else "online"
    unused_runners.run()
    github.runner = "busy"
    stage.released()
    assert (stage.see(claim).state, used()) == ("executing", 1)

    stage.rows("UPDATE claims SET changed_at = now() - interval '1 h'")
    github.runner = "online"
    for _ in range(2):
        stage.later()
        finished_jobs.run()

    assert (stage.see(claim).end_reason, used(), github.deleted) == ("completed", 0, [77])
    for message in stage.outbox.take("ostler.retire"):
        retire.run(**message)
    assert pod not in stage.pods()


def test_a_pod_whose_runner_turns_out_busy_is_not_deleted_by_its_retirement(
    stage: Stage, pod: str, github: StubGitHub
) -> None:
    stage.job(7)
    claim = stage.claim(pod, job_id=None, state="delivered", age=90, runner=RUNNER)
    github.runner = "online"
    unused_runners.run()
    stage.released()
    stage.rows("UPDATE mint_attempts SET outcome = 'minted' WHERE claim_id = :id", id=claim)
    github.runner = "busy"
    for message in stage.outbox.take("ostler.retire"):
        retire.run(**message)
    assert pod in stage.pods()
    (retirement,) = stage.rows("SELECT state, due_at FROM claims WHERE purpose = 'retire'")
    assert retirement.state == "claimed"
    assert retirement.due_at is not None


def retiring(stage: Stage, pod: str, github: StubGitHub, *, earlier_delivered: bool) -> int:
    """Retire a Pod that served two accounts, the first of them without the App, and return the retire claim."""
    stage.job(6)
    stage.job(7)
    first = stage.claim(pod, job_id=6, state="delivered", runner="small-0-00000001")
    stage.rows(
        """
        UPDATE claims SET state = 'ended', ended_at = now(), end_reason = 'released', installation_id = 601,
               delivered_at = CASE WHEN :delivered THEN delivered_at END WHERE id = :id
        """,
        id=first,
        delivered=earlier_delivered,
    )
    second = stage.claim(pod, job_id=7, state="delivered", age=90, runner=RUNNER)
    github.runner, github.without_app = "offline", 601
    stage.release(second)
    assert stage.see(second).end_reason == "never_started"
    (message,) = stage.outbox.take("ostler.retire")
    claim_id: int = message["claim_id"]
    return claim_id


def forbid(github: StubGitHub) -> None:
    """Install the App again, without the right to remove runners."""
    github.without_app, github.keeps = None, True


@pytest.mark.parametrize("forbidden", [False, True], ids=["the App was removed", "403"])
def test_retirement_does_not_wait_for_an_unstartable_runner_that_github_keeps(
    stage: Stage, pod: str, github: StubGitHub, *, forbidden: bool
) -> None:
    claim = retiring(stage, pod, github, earlier_delivered=False)
    if forbidden:
        forbid(github)
    retire.run(claim_id=claim)
    assert stage.see(claim).end_reason == "retired"
    assert pod not in stage.pods()


@pytest.mark.parametrize("over", ["alive", "terminal", "gone"])
@pytest.mark.parametrize("error", [NotInstalled, Forbidden])
def test_a_pod_whose_runner_github_keeps_is_retired_once_it_is_over(
    stage: Stage, pod: str, github: StubGitHub, over: str, error: type[UpstreamError]
) -> None:
    claim = retiring(stage, pod, github, earlier_delivered=True)
    if error is Forbidden:
        forbid(github)
    began = utcnow()
    with pytest.raises(error):
        retire.run(claim_id=claim)
    row = stage.see(claim)
    assert (row.leased_until, row.last_error) == (None, meaning_of(error("")))
    assert_due(row.due_at, 60, since=began)
    stage.rows("UPDATE claims SET leased_until = NULL WHERE id = :id", id=claim)
    if over == "alive":
        stage.finish(pod, phase="Running", runner=None)
        with pytest.raises(error):
            retire.run(claim_id=claim)
        assert stage.see(claim).state == "claimed"
        assert pod in stage.pods()
        return
    if over == "terminal":
        stage.finish(pod)
    else:
        stage.kube.request("DELETE", f"/api/v1/namespaces/{stage.namespace}/pods/{pod}")
    retire.run(claim_id=claim)
    assert stage.see(claim).end_reason == "retired"
    assert pod not in stage.pods()


@pytest.mark.parametrize(("after", "wait"), [(7, 7), (600, 60)])
def test_a_retirement_that_meets_the_rate_limit_of_github_waits_for_its_turn(
    stage: Stage, pod: str, github: StubGitHub, monkeypatch: pytest.MonkeyPatch, after: float, wait: float
) -> None:
    claim = retiring(stage, pod, github, earlier_delivered=True)
    github.without_app = None
    with monkeypatch.context() as limited:
        limited.setattr(StubGitHub, "delete_runner", failing(RateLimited("429", after=after)))
        began = utcnow()
        retire.run(claim_id=claim)
    row = stage.see(claim)
    assert (row.state, row.leased_until, row.last_error) == ("claimed", None, WAITS)
    assert_due(row.due_at, wait, since=began)
    assert pod in stage.pods()

    retire.run(claim_id=claim)
    assert stage.see(claim).end_reason == "retired"
    assert (github.deleted, pod in stage.pods()) == ([77, 77], False)


def test_release_follows_a_renamed_owner_and_obeys_its_busy_runner(stage: Stage, pod: str, github: StubGitHub) -> None:
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="delivered", age=90, runner=RUNNER)
    github.runner, github.login = "busy", "acme-two"

    stage.release(claim)

    after = stage.see(claim)
    assert (after.state, after.scope) == ("releasing", "orgs/acme-two")
    assert stage.rows("SELECT id FROM claims WHERE due_at <= now()") != []
    stage.release(claim)
    assert stage.see(claim).state == "executing"
    assert pod in stage.pods()


def test_the_end_of_a_pod_ends_a_release_that_github_will_never_answer(
    stage: Stage, pod: str, github: StubGitHub
) -> None:
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="delivered", age=90, runner=RUNNER)
    github.removed = True
    with pytest.raises(Gone):
        stage.release(claim)
    stage.kube.request("DELETE", f"/api/v1/namespaces/{stage.namespace}/pods/{pod}")
    missing_pods.run()
    after = stage.see(claim)
    assert (after.state, after.job_state, after.hold_reason) == ("ended", "running", "ask_github")


def test_a_claim_that_was_never_delivered_is_released_although_the_app_was_removed(
    stage: Stage, pod: str, github: StubGitHub
) -> None:
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="minted", age=400, runner=RUNNER)
    github.removed = True
    stale_claims.run()
    stage.released()
    after = stage.see(claim)
    assert (after.state, after.job_state) == ("ended", "queued")
    assert stage.pods()[pod].owner is None


def test_what_an_account_runs_on_other_runners_uses_nothing_of_its_budget(stage: Stage, pod: str) -> None:
    stage.job(7, state="running")
    stage.job(8, state="running")
    claim = stage.claim(pod, job_id=None, state="delivered", runner=RUNNER)
    insert = """
        INSERT INTO executions (job_id, runner_name, account_id, vcpu, memory, started_at)
        VALUES (:job, :runner, 1, 2000, 4096, now())
    """
    stage.rows(insert, job=7, runner="GitHub Actions 5")
    stage.rows(insert, job=8, runner=RUNNER)
    stage.rows("UPDATE claims SET state = 'ended', ended_at = now(), end_reason = 'released' WHERE id = :id", id=claim)
    with stage.rt.engine.connect() as db:
        assert usage_of(db, [1])[1].count == 1


def test_late_check_of_a_runner_changes_no_ended_claim(clusterless: Stage) -> None:
    stage = clusterless
    stage.add_pod("pod-1")
    stage.job(7)
    claim = stage.claim("pod-1", job_id=7, state="delivered")
    stage.rows("UPDATE claims SET state = 'ended', ended_at = now(), end_reason = 'completed'")
    transaction(stage.rt.engine, lambda db: claim_checks.set_absent(db, claim, absent=True, now=utcnow()))
    assert stage.see(claim).runner_absent_at is None


def test_late_answer_about_a_job_makes_no_spare_of_a_claim_that_executes_it(clusterless: Stage) -> None:
    stage = clusterless
    stage.add_pod("pod-1")
    stage.job(7, state="running")
    claim = stage.claim("pod-1", job_id=7, state="executing")
    before = stage.see(claim)
    cancelled = JobOutcome(NextStep.FINISH, "GitHub says that the job is over", conclusion="cancelled")
    made = transaction(
        stage.rt.engine,
        lambda db: sweeps.make_spare(db, claim, job_id=7, job_outcome=cancelled, now=utcnow(), who="late"),
    )
    assert not made
    assert stage.see(claim) == before

"""The sweeps over orphans, on a real API server and a real Postgres: the objects that they leave and delete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from beat_schedule import SPREAD, periods
from github_adapters.endpoints.runners import RunnerSeen
from k8s_adapters.calls import metadata
from k8s_adapters.calls.metadata import metadata_pages
from k8s_adapters.names import OWNER_LABEL
from ostler.errors import Gone, NotInstalled, Retryable
from rules.routing.scopes import Scope
from tasks.claims.retire import retire
from tasks.pools.mirror_pools import pools
from tasks.pools.reconcile import reconcile
from tasks.sweeps import finished_jobs as of_finished
from tasks.sweeps import orphaned_stamps as of_stamps
from tasks.sweeps.finished_jobs import finished_jobs
from tasks.sweeps.frame.lists import runner_pages
from tasks.sweeps.orphaned_runners import orphaned_runners
from tasks.sweeps.orphaned_service_accounts import orphaned_service_accounts
from tasks.sweeps.orphaned_stamps import orphaned_stamps
from tasks.sweeps.unresolved_jobs import unresolved_jobs
from tasks.sweeps.unused_runners import unused_runners
from tests.integration.tasks.conftest import RUNNER, Stage, StubGitHub

MERGE = "application/merge-patch+json"


def stamp(stage: Stage, pod: str) -> None:
    """Put an owner label on a Pod, and let it be old."""
    path = f"/api/v1/namespaces/{stage.namespace}/pods/{pod}"
    stage.kube.request("PATCH", path, body={"metadata": {"labels": {OWNER_LABEL: "1"}}}, content_type=MERGE)
    stage.with_settings(orphaned_stamp_after=0)


def grown(stage: Stage, *, replicas: int) -> list[str]:
    """Let the pool have `replicas` Pods, and return their names."""
    stage.pool(replicas=replicas)
    pools.run()
    for message in stage.outbox.take("ostler.reconcile"):
        reconcile.run(**message)
    stage.outbox.sent.clear()
    return sorted(stage.pods())


def retirements(stage: Stage) -> list[str]:
    """Return the Pods that have a live retire claim."""
    return [
        row.name
        for row in stage.rows("""
            SELECT p.name FROM claims c JOIN runner_pods p ON p.id = c.runner_pod_id
            WHERE c.purpose = 'retire' AND c.ended_at IS NULL ORDER BY p.name
        """)
    ]


def ended(stage: Stage, claim: int, *, ago: float = 3600, reason: str = "released") -> None:
    """Let a claim have ended `ago` seconds ago."""
    stage.rows(
        """
        UPDATE claims SET state = 'ended', end_reason = :reason, jit = NULL, due_at = NULL,
               ended_at = now() - make_interval(secs => :ago) WHERE id = :id
        """,
        id=claim,
        ago=ago,
        reason=reason,
    )


class TestOrphanedStamps:
    def test_a_stamped_pod_that_no_claim_leads_to_is_retired(self, stage: Stage, pod: str) -> None:
        stamp(stage, pod)

        orphaned_stamps.run()

        assert retirements(stage) == [pod]
        assert len(stage.outbox.take("ostler.retire")) == 1
        (repair,) = stage.rows("SELECT * FROM repairs")
        assert (repair.sweep, repair.what, repair.kills, len(repair.witnesses)) == (
            "orphaned_stamps",
            "retire",
            True,
            2,
        )

    def test_of_many_only_those_go_that_nothing_leads_to(self, stage: Stage, pod: str) -> None:
        """About thirty stamped Pods without a claim once blocked a fleet. A reaper then deleted live Pods with them."""
        other = max(stage.pods())
        for each in (pod, other):
            stamp(stage, each)
        stage.job(7)
        stage.claim(other, job_id=7, state="executing", runner=RUNNER)

        orphaned_stamps.run()

        assert retirements(stage) == [pod]

    def test_what_is_not_stamped_or_has_a_claim_stays(self, stage: Stage, pod: str) -> None:
        stamp(stage, pod)
        stage.job(7)
        stage.claim(pod, job_id=7, state="claimed")

        orphaned_stamps.run()

        assert retirements(stage) == []

    def test_a_pod_that_was_given_a_jit_is_left_to_another_sweep(self, stage: Stage, pod: str) -> None:
        stamp(stage, pod)
        stage.job(7)
        ended(stage, stage.claim(pod, job_id=7, state="delivered"))

        orphaned_stamps.run()

        assert retirements(stage) == []

    def test_the_grace_counts_from_the_end_of_its_last_claim(self, stage: Stage, pod: str) -> None:
        stamp(stage, pod)
        stage.job(7)
        ended(stage, stage.claim(pod, job_id=7, state="claimed", age=4000), ago=100)
        stage.with_settings(orphaned_stamp_after=300)
        orphaned_stamps.run()
        assert retirements(stage) == []

        stage.rows("UPDATE claims SET ended_at = ended_at - interval '201 s'")
        orphaned_stamps.run()

        assert retirements(stage) == [pod]

    def test_a_pod_whose_poller_wrote_a_jit_stays_whatever_postgres_says(self, stage: Stage, pod: str) -> None:
        stamp(stage, pod)
        stage.finish(pod, phase="Running", poller=0, runner=None)

        orphaned_stamps.run()

        assert retirements(stage) == []

    def test_a_pod_that_has_no_row_stays(self, stage: Stage, pod: str) -> None:
        stamp(stage, pod)
        stage.rows("DELETE FROM runner_pods WHERE name = :name", name=pod)

        orphaned_stamps.run()

        assert retirements(stage) == []

    def test_a_pod_that_is_claimed_between_the_verdict_and_the_action_stays(
        self, stage: Stage, pod: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stamp(stage, pod)
        stage.job(7)
        during(monkeypatch, of_stamps, "get_pod", lambda: stage.claim(pod, job_id=7, state="claimed"))

        orphaned_stamps.run()

        assert retirements(stage) == []

    def test_pod_claimed_and_released_since_the_verdict_stays(
        self, stage: Stage, pod: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stamp(stage, pod)
        stage.job(7)
        during(monkeypatch, of_stamps, "get_pod", lambda: ended(stage, stage.claim(pod, job_id=7, state="claimed")))

        orphaned_stamps.run()

        assert retirements(stage) == []

    def test_a_list_that_breaks_off_changes_nothing_after_its_break(
        self, stage: Stage, pod: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in stage.pods():
            stamp(stage, name)
        monkeypatch.setattr(metadata, "PAGE", 1)
        breaking(monkeypatch, after=1)

        orphaned_stamps.run()

        assert retirements(stage) == [pod]  # it was on the page that came
        (run,) = stage.rows("SELECT outcome FROM sweep_runs")
        assert run.outcome == "aborted"

    def test_dry_run_reports_and_changes_nothing(self, stage: Stage, pod: str) -> None:
        stamp(stage, pod)

        orphaned_stamps.run(dry=True)

        assert retirements(stage) == []
        (repair,) = stage.rows("SELECT outcome, dry FROM repairs")
        assert tuple(repair) == ("dry", True)

    @pytest.mark.usefixtures("github")
    def test_budget_counts_all_runner_pods_that_are_listed(self, stage: Stage) -> None:
        """Of 8 Pods, half may be deleted in a tick: all 4 orphans. They are half of the fleet, not of the orphans."""
        pods = grown(stage, replicas=8)
        for name in pods[:4]:
            stamp(stage, name)
        stage.with_settings(repair_budget_least=1, repair_budget_percent=50)

        orphaned_stamps.run()

        assert retirements(stage) == pods[:4]

    @pytest.mark.usefixtures("github")
    def test_28_orphans_at_once_are_retired_in_the_first_tick_after_their_grace(self, stage: Stage) -> None:
        pods = grown(stage, replicas=28)
        for name in pods:
            stamp(stage, name)
            stage.poll_on(name)

        orphaned_stamps.run()

        assert retirements(stage) == pods
        assert periods(stage.rt.timings)["orphaned_stamps"] + SPREAD <= 75

    @pytest.mark.usefixtures("github")
    def test_orphans_whose_pollers_are_unknown_get_the_budget_of_5(self, stage: Stage) -> None:
        """Only the budget of the other Pods grows, and its retirements count in the budget of all."""
        pods = grown(stage, replicas=14)
        for name in pods:
            stamp(stage, name)
        for name in pods[:6]:
            stage.poll_on(name)

        orphaned_stamps.run()

        gone = retirements(stage)
        assert set(gone) >= set(pods[:6])
        assert len(set(gone) - set(pods[:6])) <= 5
        assert len(gone) < 14

    @pytest.mark.usefixtures("github")
    def test_28_orphans_without_a_status_are_retired_within_6_ticks(self, stage: Stage) -> None:
        pods = grown(stage, replicas=28)
        for name in pods:
            stamp(stage, name)

        left = []
        for _ in range(6):
            orphaned_stamps.run()
            for message in stage.outbox.take("ostler.retire"):
                retire.run(**message)
            left.append(28 - len(stage.rows("SELECT 1 FROM claims WHERE purpose = 'retire'")))

        assert left == [23, 18, 13, 8, 3, 0]

    @pytest.mark.usefixtures("github")
    def test_tick_says_how_many_orphans_its_budget_left(self, stage: Stage) -> None:
        for name in grown(stage, replicas=8):
            stamp(stage, name)

        orphaned_stamps.run()

        (run,) = stage.rows("SELECT outcome, why, overflow FROM sweep_runs")
        assert (run.outcome, run.overflow) == ("unfinished", 3)
        assert run.why == "3 repairs are left to later ticks: of 8 objects listed, one tick may repair 5"

    def test_a_pod_that_is_being_retired_is_not_retired_again(self, stage: Stage, pod: str) -> None:
        stamp(stage, pod)
        orphaned_stamps.run()
        orphaned_stamps.run()

        assert len(stage.rows("SELECT 1 FROM claims")) == 1


class TestServiceAccounts:
    def test_one_that_outlived_its_pod_goes_and_one_with_a_pod_stays(self, stage: Stage, pod: str) -> None:
        stage.with_settings(orphaned_account_after=0)
        other = max(stage.pods())
        remove(stage, pod)

        orphaned_service_accounts.run()

        assert accounts(stage) == [other]

    def test_one_whose_pod_is_still_to_be_created_stays(self, stage: Stage, pod: str) -> None:
        stage.with_settings(orphaned_account_after=0)
        remove(stage, pod)
        stage.rows("UPDATE runner_pods SET gone_at = NULL, uid = NULL WHERE name = :name", name=pod)

        orphaned_service_accounts.run()

        assert pod in accounts(stage)

    def test_a_young_one_stays(self, stage: Stage, pod: str) -> None:
        remove(stage, pod)

        orphaned_service_accounts.run()

        assert pod in accounts(stage)

    def test_one_whose_row_was_taken_up_again_meanwhile_stays(
        self, stage: Stage, pod: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stage.with_settings(orphaned_account_after=0)
        remove(stage, pod)

        def take_up() -> None:
            stage.rows("UPDATE runner_pods SET gone_at = NULL WHERE name = :name", name=pod)

        from tasks.sweeps import orphaned_service_accounts as module  # noqa: PLC0415  the module, not its task

        during(monkeypatch, module, "get_pod", take_up)

        orphaned_service_accounts.run()

        assert pod in accounts(stage)
        assert [row.moved_on for row in stage.rows("SELECT moved_on FROM sweep_runs")] == [1]

    def test_a_namesake_that_came_meanwhile_stays(
        self, stage: Stage, pod: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stage.with_settings(orphaned_account_after=0)
        remove(stage, pod)
        path = f"/api/v1/namespaces/{stage.namespace}/serviceaccounts"

        def replace() -> None:
            stage.kube.request("DELETE", f"{path}/{pod}")
            body = {"metadata": {"name": pod, "labels": {"ostler.dev/pool": "small"}}}
            stage.kube.request("POST", path, body=body)

        from tasks.sweeps import orphaned_service_accounts as module  # noqa: PLC0415  the module, not its task

        during(monkeypatch, module, "get_pod", replace)

        orphaned_service_accounts.run()

        assert pod in accounts(stage)


def cut_off_in_removing(stage: Stage, pod: str, github: StubGitHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill a tick after its request to remove a runner, before the answer was recorded."""
    stage.job(7)
    ended(stage, stage.claim(pod, job_id=7, state="minted", runner=RUNNER))
    github.runner = "offline"

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tasks.sweeps.orphaned_runners.releases.registration_removed", killed)
        with pytest.raises(KeyboardInterrupt):
            orphaned_runners.run()
    assert github.deleted == [77]
    assert [row.outcome for row in stage.rows("SELECT outcome FROM mint_attempts")] == ["minted"]
    stage.rows("UPDATE sweeps SET leased_until = now() - interval '1 s'")
    stage.later()


class TestOrphanedRunners:
    def test_an_offline_runner_of_an_ended_claim_is_deregistered(
        self, stage: Stage, pod: str, github: StubGitHub
    ) -> None:
        stage.job(7)
        ended(stage, stage.claim(pod, job_id=7, state="minted", runner=RUNNER))
        github.runner = "offline"

        orphaned_runners.run()

        assert github.deleted == [77]
        (attempt,) = stage.rows("SELECT outcome FROM mint_attempts")
        assert attempt.outcome == "removed"

    def test_a_removal_whose_tick_was_killed_is_asked_for_again_by_the_next(
        self, stage: Stage, pod: str, github: StubGitHub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cut_off_in_removing(stage, pod, github, monkeypatch)

        orphaned_runners.run()

        assert [row.outcome for row in stage.rows("SELECT outcome FROM mint_attempts")] == ["removed"]
        assert [row.outcome for row in stage.rows("SELECT outcome FROM repairs")] == ["verified"]

    def test_a_list_that_leaves_a_busy_runner_out_does_not_write_its_removal_down(
        self, stage: Stage, pod: str, github: StubGitHub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The DELETE never arrived, its runner took a job, and other runners left between two pages of the list."""
        cut_off_in_removing(stage, pod, github, monkeypatch)
        github.runner = "busy"
        monkeypatch.setattr(StubGitHub, "list_runners", lambda *_, **__: [])

        orphaned_runners.run()

        assert [row.outcome for row in stage.rows("SELECT outcome FROM mint_attempts")] == ["minted"]
        assert [row.outcome for row in stage.rows("SELECT outcome FROM repairs")] == ["begun"]

    @pytest.mark.parametrize("state", ["online", "busy"])
    def test_a_runner_that_is_online_or_busy_stays(
        self, stage: Stage, pod: str, github: StubGitHub, state: str
    ) -> None:
        stage.job(7)
        ended(stage, stage.claim(pod, job_id=7, state="minted", runner=RUNNER))
        github.runner = state

        orphaned_runners.run()

        assert github.deleted == []

    def test_the_runner_of_an_ended_claim_is_found_where_it_is_today(
        self, stage: Stage, pod: str, github: StubGitHub
    ) -> None:
        stage.job(7)
        ended(stage, stage.claim(pod, job_id=7, state="minted", runner=RUNNER))
        github.runner, github.login, github.without_app = "offline", "acme-two", 501
        stage.rows("INSERT INTO installations VALUES (700, 1, now())")
        orphaned_runners.run()  # learns the name

        orphaned_runners.run()

        assert github.deleted == [77]

    def test_the_grace_counts_up_to_the_time_of_the_list(self, stage: Stage, pod: str, github: StubGitHub) -> None:
        stage.with_settings(orphaned_runner_after=20)
        stage.job(7)
        ended(stage, stage.claim(pod, job_id=7, state="minted", runner=RUNNER), ago=10)
        github.runner = "offline"
        orphaned_runners.run()
        stage.rows("UPDATE claims SET ended_at = ended_at - interval '15 s'")
        stage.rows("UPDATE runner_lists SET taken_at = taken_at - interval '15 s'")
        orphaned_runners.run()
        assert github.deleted == []  # it may have come online since

        stage.later()
        orphaned_runners.run()

        assert github.deleted == [77]

    def test_the_runner_of_a_live_claim_stays(self, stage: Stage, pod: str, github: StubGitHub) -> None:
        stage.job(7)
        stage.claim(pod, job_id=7, state="delivered", age=4000, runner=RUNNER)
        github.runner = "offline"

        orphaned_runners.run()

        assert github.deleted == []

    @pytest.mark.parametrize(("number", "path"), [(11, "/repositories/11"), (None, "/repos/acme/shop")])
    def test_a_runner_of_a_repository_is_removed_by_its_id_where_that_is_known(
        self,
        stage: Stage,
        pod: str,
        github: StubGitHub,
        monkeypatch: pytest.MonkeyPatch,
        number: int | None,
        path: str,
    ) -> None:
        stage.job(7)
        claim = stage.claim(pod, job_id=7, state="delivered", runner=RUNNER)
        stage.rows("UPDATE jobs SET repository_id = :number", number=number)
        stage.rows("UPDATE claims SET scope = 'repos/acme/shop'")
        github.runner = "offline"
        asked: list[str] = []
        monkeypatch.setattr(StubGitHub, "delete_runner", lambda _self, *, scope, **_: asked.append(scope.path))

        stage.release(claim)

        assert asked == [path]

    def test_a_spare_of_a_repository_is_removed_by_the_id_that_its_claim_was_made_with(
        self, stage: Stage, pod: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        claim = stage.claim_without_job(pod, state="delivered", runner=RUNNER)
        stage.rows("UPDATE claims SET scope = 'repos/acme/shop', repository_id = 11")
        asked: list[str] = []
        monkeypatch.setattr(StubGitHub, "delete_runner", lambda _self, *, scope, **_: asked.append(scope.path))

        stage.release(claim)

        assert asked == ["/repositories/11"]
        assert stage.see(claim).end_reason == "never_started"

    def test_that_a_name_which_may_be_anothers_shows_no_runner_proves_nothing(self, stage: Stage, pod: str) -> None:
        claim = stage.claim_without_job(pod, state="delivered", runner=RUNNER)
        stage.rows("UPDATE claims SET scope = 'repos/acme/shop'")

        with pytest.raises(Gone):
            stage.release(claim)

        assert stage.see(claim).state == "releasing"
        assert stage.rows("SELECT outcome FROM mint_attempts") == [("minted",)]
        assert pod in stage.pods()
        stage.finish(pod)
        stage.rows("UPDATE claims SET leased_until = NULL, due_at = now()")
        stage.with_settings(spent_after=0)
        (row,) = stage.rows("SELECT id FROM pools")
        for _ in range(2):
            reconcile.run(pool_id=row.id)

        assert stage.see(claim).end_reason == "pod_spent"

    def test_a_name_is_asked_whether_it_still_has_the_runner_that_was_listed_under_it(
        self, stage: Stage, pod: str, github: StubGitHub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stage.job(7)
        ended(stage, stage.claim(pod, job_id=7, state="minted", runner=RUNNER))
        stage.rows("UPDATE claims SET scope = 'repos/acme/shop'")
        github.runner = "offline"
        monkeypatch.setattr(StubGitHub, "find_runner", lambda _self, **_: None)  # it is another's since the list

        orphaned_runners.run()

        assert github.deleted == []
        assert stage.rows("SELECT outcome FROM mint_attempts") == [("minted",)]

    def test_runners_of_a_repository_are_listed_by_its_id(
        self, stage: Stage, pod: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stage.claim_without_job(pod, state="delivered", age=4000, runner=RUNNER)
        stage.rows("UPDATE claims SET scope = 'repos/acme/shop', repository_id = 11")
        asked: list[str] = []

        def listed(_self: StubGitHub, *, scope: Scope, **_: Any) -> list[RunnerSeen]:
            asked.append(scope.path)
            return []

        monkeypatch.setattr(StubGitHub, "list_runners", listed)

        unused_runners.run()
        stage.later()
        orphaned_runners.run()
        stage.rows("UPDATE claims SET repository_id = 12")  # another one of that name
        orphaned_runners.run()

        assert asked == ["/repositories/11", "/repositories/11", "/repositories/12"]

    @pytest.mark.parametrize(("state", "kept"), [("executing", 0), ("delivered", 1)])
    def test_an_empty_list_is_nobody_elses_while_a_claim_of_its_scope_executes(
        self, stage: Stage, pod: str, state: str, kept: int
    ) -> None:
        stage.job(7)
        stage.claim(pod, job_id=7, state=state, age=4000, runner=RUNNER)

        orphaned_runners.run()

        assert len(stage.rows("SELECT 1 FROM runner_lists WHERE taken_at IS NOT NULL")) == kept

    def test_a_runner_that_is_only_named_like_ours_stays(self, stage: Stage, pod: str, github: StubGitHub) -> None:
        stage.job(7)
        ended(stage, stage.claim(pod, job_id=7, state="minted", runner=RUNNER.replace("-0-", "-1-")))
        github.runner = "offline"

        orphaned_runners.run()

        assert github.deleted == []

    def test_a_github_that_is_down_changes_nothing(self, stage: Stage, pod: str, github: StubGitHub) -> None:
        stage.job(7)
        ended(stage, stage.claim(pod, job_id=7, state="minted", runner=RUNNER))
        github.runner, github.broken = "offline", True

        orphaned_runners.run()

        assert github.deleted == []
        (run,) = stage.rows("SELECT outcome FROM sweep_runs")
        assert run.outcome == "aborted"  # it may not count as one that ran


class TestFinishedJobs:
    @pytest.fixture
    def over(self, stage: Stage, pod: str, github: StubGitHub) -> int:
        """A claim that has ended with its job, while its Pod still runs."""
        stage.job(7)
        claim = stage.claim(pod, job_id=7, state="executing", age=4000, runner=RUNNER)
        finish_job(stage)
        ended(stage, claim, reason="completed")
        github.runner = "online"
        return claim

    @pytest.mark.usefixtures("over")
    def test_pod_that_does_not_end_is_retired_after_two_checks(self, stage: Stage, pod: str) -> None:
        finished_jobs.run()
        assert retirements(stage) == []
        finished_jobs.run()
        assert retirements(stage) == []  # the second check came too early

        stage.later()
        finished_jobs.run()

        assert retirements(stage) == [pod]
        assert len(stage.outbox.take("ostler.retire")) == 1

    @pytest.mark.usefixtures("over")
    def test_check_that_finds_the_runner_busy_starts_over(self, stage: Stage, github: StubGitHub) -> None:
        finished_jobs.run()
        stage.later()
        github.runner = "busy"
        finished_jobs.run()
        stage.later()
        github.runner = "online"
        finished_jobs.run()

        assert retirements(stage) == []

    def test_job_that_ended_a_moment_ago_is_not_checked(self, stage: Stage, over: int) -> None:
        stage.rows("UPDATE jobs SET completed_at = now() - interval '14 min'")
        finished_jobs.run()

        assert stage.see(over).runner_idle_at is None

    @pytest.fixture
    def lingers(self, stage: Stage, over: int, github: StubGitHub) -> int:
        """A claim whose runner executed its job, which ended two minutes ago, while its Pod still runs."""
        stage.rows("UPDATE jobs SET completed_at = now() - interval '2 min', started_at = NULL")
        stage.rows("UPDATE claims SET ended_at = now() - interval '2 min', changed_at = now() - interval '2 min'")
        stage.rows(
            """
            INSERT INTO executions (job_id, runner_name, claim_id, account_id, vcpu, memory, started_at, ended_at)
            VALUES (7, :runner, :claim, 1, 2000, 4096, now() - interval '3 min', now() - interval '2 min')
            """,
            runner=RUNNER,
            claim=over,
        )
        github.runner = None
        return over

    @pytest.mark.usefixtures("lingers")
    def test_a_pod_that_lingers_is_retired_when_its_runner_is_absent_in_two_checks(
        self, stage: Stage, pod: str
    ) -> None:
        finished_jobs.run()
        finished_jobs.run()
        assert retirements(stage) == []  # the second check came too early
        stage.later()

        finished_jobs.run()

        assert retirements(stage) == [pod]
        (repair,) = stage.rows("SELECT * FROM repairs")
        assert (repair.kills, len(repair.witnesses)) == (True, 3)

    @pytest.mark.usefixtures("lingers")
    @pytest.mark.parametrize("runner", ["online", "offline", "busy"])
    def test_a_pod_that_lingers_stays_for_15_minutes_while_its_runner_is_registered(
        self, stage: Stage, github: StubGitHub, runner: str
    ) -> None:
        finished_jobs.run()
        stage.later()
        github.runner = runner
        finished_jobs.run()
        github.runner = None
        finished_jobs.run()  # absent again: the first check of two

        assert retirements(stage) == []

    def test_a_pod_lingers_only_by_the_end_of_the_job_that_its_runner_executed(
        self, stage: Stage, lingers: int
    ) -> None:
        stage.rows("DELETE FROM executions")
        finished_jobs.run()
        stage.later()
        finished_jobs.run()

        assert stage.see(lingers).runner_absent_at is None
        assert retirements(stage) == []

    def test_pod_whose_job_ended_less_than_90_seconds_ago_is_not_checked(self, stage: Stage, lingers: int) -> None:
        stage.rows("UPDATE jobs SET completed_at = now() - interval '80 s'")
        finished_jobs.run()

        assert stage.see(lingers).runner_absent_at is None

    @pytest.mark.usefixtures("lingers")
    def test_check_from_before_the_job_ended_does_not_count_for_a_lingering_pod(self, stage: Stage) -> None:
        stage.rows("UPDATE claims SET runner_absent_at = now() - interval '121 s', runner_idle_at = NULL")
        finished_jobs.run()

        assert retirements(stage) == []

    def test_the_end_of_the_claimed_job_proves_nothing_while_another_runs(
        self, stage: Stage, over: int, github: StubGitHub
    ) -> None:
        stage.job(8, state="running")
        stage.rows(
            """
            INSERT INTO executions (job_id, runner_name, claim_id, account_id, vcpu, memory, started_at)
            VALUES (8, :runner, :claim, 1, 2000, 4096, now())
            """,
            runner=RUNNER,
            claim=over,
        )
        github.runner = None

        finished_jobs.run()

        assert stage.see(over).runner_idle_at is None

    def test_check_from_before_the_job_ended_is_not_the_first_of_two(
        self, stage: Stage, pod: str, github: StubGitHub
    ) -> None:
        stage.job(7)
        claim = stage.claim(pod, job_id=7, state="executing", age=4000, runner=RUNNER)
        finish_job(stage)
        stage.rows("UPDATE claims SET runner_idle_at = now() - interval '2 h'")
        github.runner = "online"

        finished_jobs.run()
        assert stage.see(claim).state == "executing"
        stage.later()
        finished_jobs.run()

        assert stage.see(claim).end_reason == "completed"

    def test_a_live_delivered_claim_is_released_and_obeys_a_refusal(
        self, stage: Stage, pod: str, github: StubGitHub
    ) -> None:
        stage.job(7)
        claim = stage.claim(pod, job_id=7, state="delivered", age=4000, runner=RUNNER)
        finish_job(stage)
        github.runner = "online"
        finished_jobs.run()
        stage.later()

        finished_jobs.run()
        assert stage.see(claim).state == "releasing"
        github.runner = "busy"  # it took a job right then
        stage.released()

        assert stage.see(claim).state == "executing"
        assert retirements(stage) == []

    def test_a_live_executing_claim_ends_as_completed_would_have_ended_it(
        self, stage: Stage, pod: str, github: StubGitHub
    ) -> None:
        stage.job(7)
        claim = stage.claim(pod, job_id=7, state="executing", age=4000, runner=RUNNER)
        finish_job(stage)
        github.runner = None
        finished_jobs.run()
        stage.later()

        finished_jobs.run()

        after = stage.see(claim)
        assert (after.state, after.end_reason, after.job_state) == ("ended", "completed", "completed")
        assert retirements(stage) == [pod]

    def test_a_live_executing_claim_whose_runner_takes_a_job_right_then_goes_on(
        self, stage: Stage, pod: str, github: StubGitHub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        claim = stage.claim_without_job(pod, state="executing", age=4000, runner=RUNNER)
        github.runner = "online"
        finished_jobs.run()
        stage.later()
        during(monkeypatch, of_finished, "get_pod", lambda: setattr(github, "runner", "busy"))

        finished_jobs.run()

        assert stage.see(claim).state == "executing"
        assert retirements(stage) == []
        stage.later()
        finished_jobs.run()
        assert stage.see(claim).runner_idle_at is None

    @pytest.mark.parametrize(
        ("told", "state", "hold"),
        [
            (("queued", None, None), "queued", None),
            (("in_progress", None, "another"), "running", "ask_github"),
            (("completed", "cancelled", None), "completed", None),
        ],
        ids=["queued", "running elsewhere", "over"],
    )
    def test_the_own_job_of_a_claim_that_executed_another_goes_where_github_says(
        self, stage: Stage, pod: str, github: StubGitHub, told: Any, state: str, hold: str | None
    ) -> None:
        stage.job(7)
        finish_job(stage)
        stage.job(8)
        claim = stage.claim(pod, job_id=8, state="executing", age=4000, runner=RUNNER)
        stage.rows(
            """
            INSERT INTO executions (job_id, runner_name, claim_id, account_id, vcpu, memory, started_at, ended_at)
            VALUES (7, :runner, :claim, 1, 2000, 4096, now(), now())
            """,
            runner=RUNNER,
            claim=claim,
        )
        github.runner, github.job = "online", told
        finished_jobs.run()
        stage.later()

        finished_jobs.run()

        (own,) = stage.rows("SELECT state, hold_reason FROM jobs WHERE id = 8")
        assert tuple(own) == (state, hold)
        assert (stage.see(claim).end_reason, github.deleted) == ("completed", [77])
        assert retirements(stage) == [pod]
        assert github.optional == [True]

    def test_claim_with_an_unreported_execution_is_found_too(self, stage: Stage, pod: str, github: StubGitHub) -> None:
        claim = stage.claim_without_job(pod, state="executing", age=4000, runner=RUNNER)
        github.runner = "busy"
        finished_jobs.run()
        assert stage.see(claim).runner_idle_at is None
        stage.later()
        github.runner = None
        finished_jobs.run()
        stage.later()

        finished_jobs.run()

        assert stage.see(claim).end_reason == "completed"
        assert retirements(stage) == [pod]

    @pytest.fixture
    def endless(self, stage: Stage, pod: str, github: StubGitHub) -> int:
        """A claim that has been executing for six days: its Pod hangs, and GitHub shows neither its job nor the run."""
        days = 6 * 86400 + 60
        stage.job(7, state="running")
        claim = stage.claim(pod, job_id=7, state="executing", age=days, runner=RUNNER)
        stage.rows(
            """
            INSERT INTO executions (job_id, runner_name, claim_id, account_id, vcpu, memory, started_at)
            VALUES (7, :runner, :claim, 1, 2000, 4096, now() - make_interval(secs => :days))
            """,
            runner=RUNNER,
            claim=claim,
            days=days,
        )
        stage.rows("UPDATE jobs SET started_at = now() - make_interval(secs => :days)", days=days)
        github.runner, github.job = None, None
        return claim

    def test_claim_executing_beyond_githubs_job_limit_ends_with_its_job(
        self, stage: Stage, pod: str, github: StubGitHub, endless: int
    ) -> None:
        finished_jobs.run()
        assert stage.see(endless).state == "executing"
        stage.later()

        finished_jobs.run()

        after = stage.see(endless)
        assert (after.end_reason, after.job_state, after.hold_reason) == ("completed", "running", "ask_github")
        assert github.deleted == [77]
        assert retirements(stage) == [pod]
        (repair,) = stage.rows("SELECT why, kills FROM repairs")
        assert tuple(repair) == (
            (
                "the claim has executed for longer than GitHub allows, the runner of the Pod is absent, "
                "and the Pod has not ended"
            ),
            True,
        )
        stage.rows("UPDATE jobs SET changed_at = now() - interval '3 min'")
        unresolved_jobs.run()
        (job,) = stage.rows("SELECT state, conclusion FROM jobs WHERE id = 7")
        assert tuple(job) == ("completed", "unknown")
        assert stage.rows("SELECT 1 FROM executions WHERE ended_at IS NULL") == []  # the account's budget is free

    def test_a_busy_runner_executes_for_as_long_as_github_lets_it(
        self, stage: Stage, github: StubGitHub, endless: int
    ) -> None:
        github.runner = "busy"
        for _ in range(3):
            finished_jobs.run()
            stage.later()
        assert (stage.see(endless).state, stage.see(endless).runner_idle_at) == ("executing", None)

        github.runner = "online"
        finished_jobs.run()
        stage.later()
        github.runner = "busy"
        finished_jobs.run()

        assert (stage.see(endless).state, github.deleted) == ("executing", [])
        assert stage.rows("SELECT 1 FROM repairs") == []  # nobody even tried

    @pytest.mark.parametrize("began", ["UPDATE claims SET changed_at = {}", "UPDATE jobs SET started_at = {}"])
    def test_claim_executing_within_githubs_job_limit_is_not_checked(
        self, stage: Stage, endless: int, began: str
    ) -> None:
        stage.rows(began.format("now() - interval '5 d 23 h'"))

        finished_jobs.run()

        assert stage.see(endless).runner_idle_at is None

    @pytest.mark.usefixtures("over")
    def test_list_older_than_the_end_of_the_job_is_no_check(self, stage: Stage, over: int) -> None:
        stage.with_settings(finished_job_after=5)
        finished_jobs.run()
        assert stage.see(over).runner_idle_at is not None
        stage.rows("UPDATE runner_lists SET taken_at = taken_at - interval '20 s'")
        stage.rows("UPDATE claims SET runner_idle_at = NULL")
        stage.rows("UPDATE jobs SET completed_at = now() - interval '10 s'")

        finished_jobs.run()

        assert stage.see(over).runner_idle_at is None

    def test_an_owner_that_has_another_name_is_asked_under_that(
        self, stage: Stage, pod: str, github: StubGitHub, over: int
    ) -> None:
        github.login = "acme-two"  # and nobody told us
        finished_jobs.run()
        assert stage.see(over).runner_idle_at is None
        finished_jobs.run()
        stage.later()
        finished_jobs.run()
        assert retirements(stage) == [pod]

        run_retirements(stage)

        assert github.deleted == [77]
        assert pod not in stage.pods()

    def test_reinstalled_app_is_asked_through_its_new_installation(
        self, stage: Stage, pod: str, github: StubGitHub, over: int
    ) -> None:
        github.without_app = 501
        finished_jobs.run()
        stage.later()
        finished_jobs.run()
        assert stage.see(over).runner_idle_at is None  # removed: whether its runner is free, nobody says
        stage.rows("INSERT INTO installations VALUES (501, 1, now()), (700, 1, now())")

        finished_jobs.run()
        stage.later()
        finished_jobs.run()
        run_retirements(stage)

        assert github.deleted == [77]
        assert pod not in stage.pods()

    @pytest.mark.parametrize("what", ["renamed", "installed anew", "removed", "renamed and removed"])
    @pytest.mark.usefixtures("over")
    def test_a_retirement_asks_under_the_names_of_today(
        self, stage: Stage, pod: str, github: StubGitHub, what: str
    ) -> None:
        finished_jobs.run()
        stage.later()
        finished_jobs.run()
        if "renamed" in what:
            github.login = "acme-two"
        if what != "renamed":
            github.without_app = 501
        if what == "installed anew":
            stage.rows("INSERT INTO installations VALUES (700, 1, now())")
        (message,) = stage.outbox.take("ostler.retire")
        if "removed" in what:
            with pytest.raises(NotInstalled):
                retire.run(**message)
            (claim,) = stage.rows("""
                SELECT last_error, due_at > now() + interval '30 s' AS asked_later FROM claims WHERE state = 'claimed'
            """)
            assert tuple(claim) == ("the App is not installed in the account or repository", True)
            assert pod in stage.pods()
            return

        retire.run(**message)
        retire.run(**message)

        assert github.deleted == [77]
        assert pod not in stage.pods()

    def test_a_pod_that_has_ended_is_the_reconcilers(self, stage: Stage, pod: str) -> None:
        finished_jobs.run()
        stage.later()
        stage.finish(pod)

        finished_jobs.run()

        assert retirements(stage) == []

    @pytest.mark.usefixtures("over")
    def test_a_github_that_is_down_changes_nothing(self, stage: Stage, github: StubGitHub) -> None:
        finished_jobs.run()
        stage.later()
        github.broken = True

        finished_jobs.run()

        assert retirements(stage) == []


def finish_job(stage: Stage) -> None:
    """Let the job have ended an hour ago."""
    stage.rows("UPDATE jobs SET state = 'completed', conclusion = 'success', completed_at = now() - interval '1 h'")


def run_retirements(stage: Stage) -> None:
    """Run the retirements that were sent."""
    for message in stage.outbox.take("ostler.retire"):
        retire.run(**message)


def remove(stage: Stage, pod: str) -> None:
    """Delete a Pod without Ostler's knowledge, and mark its row as gone."""
    stage.kube.request("DELETE", f"/api/v1/namespaces/{stage.namespace}/pods/{pod}", body={"gracePeriodSeconds": 0})
    stage.rows("UPDATE runner_pods SET gone_at = now() WHERE name = :name", name=pod)


def accounts(stage: Stage) -> list[str]:
    """Return the ServiceAccounts of runners."""
    pages = metadata_pages(stage.kube, "serviceaccounts", namespace=stage.namespace, selector=metadata.OF_POOLS)
    return sorted(account.name for page in pages for account in page)


def during(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, act: Callable[[], object]) -> None:
    """Do something once, just before a function of a module returns."""
    real = getattr(module, name)
    todo = [act]

    def first(*args: Any, **kwargs: Any) -> Any:
        if todo:
            todo.pop()()
        return real(*args, **kwargs)

    monkeypatch.setattr(module, name, first)


def breaking(monkeypatch: pytest.MonkeyPatch, *, after: int) -> None:
    """Let the lists of metadata fail after some pages."""

    def pages(*args: Any, **kwargs: Any) -> Any:
        for number, page in enumerate(runner_pages(*args, **kwargs)):
            if number == after:
                raise Retryable("the list expired")
            yield page

    monkeypatch.setattr(of_stamps, "runner_pages", pages)

"""Persistent runners on a real API server and Postgres: registration, jobs, removal, and failures of GitHub."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from cryptography.fernet import Fernet
from structlog.testing import capture_logs

from github_adapters.endpoints.app import AppInstallation, InstallationSeen
from github_adapters.endpoints.runners import RunnerSeen
from k8s_adapters.calls.client import MERGE_PATCH, object_path
from k8s_adapters.runners.owners.volumes import list_volumes
from models.claims import deliver, registrations
from models.intake import binding_locks, bindings
from models.routing.usage import usage_of
from ostler.clock import utcnow
from ostler.encryption import Cipher
from ostler.errors import Busy, Forbidden, Retryable, UpstreamError
from ostler.secrets import Secret
from rules.claims.registrations import REGISTERS_AGAIN
from rules.intake.events import WorkflowJobEvent
from rules.routing.runner_groups import GroupSeen
from tasks.claims.dispatch import dispatch
from tasks.claims.mint import mint
from tasks.claims.release import release
from tasks.claims.stamp import unstamp
from tasks.pools.autoscale import autoscale
from tasks.sweeps.missing_pods import missing_pods
from tasks.sweeps.orphaned_runners import orphaned_runners
from tasks.sweeps.persistent_runners import persistent_runners
from tasks.sweeps.resume import resume
from tasks.sweeps.unresolved_jobs import unresolved_jobs
from tests.integration.tasks.conftest import Stage
from tests.integration.tasks.pools.dead_nodes import all_pods
from tests.integration.tasks.pools.drains import delete, drain, seen, tick
from tests.integration.tasks.pools.fleet import NEW, beats, images, polls, reasons, rounds, spec, status
from tests.integration.tasks.pools.test_stateful_sets import CACHE, started
from tests.integration.tasks.pools.test_stateful_sets import grown as all_polled
from tests.integration.tasks.test_may_hold_jit import put_stamp
from tests.waiting import eventually

LIFE: dict[str, Any] = {"lifecycle": "persistent", "registration": {"organization": "acme"}}
TOKEN = "AAREGISTRATIONTOKEN"


class GitHub:
    """A GitHub that stores runners by name and lists them."""

    def __init__(self) -> None:
        self.runners: dict[str, RunnerSeen] = {}
        self.deletions: list[str] = []
        self.fails: UpstreamError | None = None
        self.groups = [GroupSeen(id=1, name="Default", visibility="all", public=False)]
        self.lists = 0

    def list_runner_groups(self, **_call: Any) -> list[GroupSeen]:
        self.lists += 1
        if self.fails is not None:
            raise self.fails
        return self.groups

    def registration_token(self, **_call: Any) -> Secret:
        if self.fails is not None:
            raise self.fails
        return Secret(TOKEN)

    def find_runner(self, *, name: str, **_call: Any) -> RunnerSeen | None:
        return self.runners.get(name)

    def list_runners(self, **_call: Any) -> list[RunnerSeen]:
        return list(self.runners.values())

    def delete_runner(self, *, runner_id: int, **_call: Any) -> None:
        if self.fails is not None:
            raise self.fails
        found = next((each for each in self.runners.values() if each.id == runner_id), None)
        if found is None:
            return
        self.deletions.append(found.name)
        if found.busy:
            raise Busy("it executes a job")
        del self.runners[found.name]

    def show(self, name: str, *, online: bool = True, busy: bool = False) -> None:
        number = self.runners[name].id if name in self.runners else len(self.runners) + 100
        shown = "online" if online else "offline"
        self.runners[name] = RunnerSeen(id=number, name=name, status=shown, busy=busy, labels=())


@pytest.fixture
def github(stage: Stage) -> GitHub:
    found = GitHub()
    stage.rt.github = found
    stage.rt.cipher = Cipher([Secret(Fernet.generate_key().decode())])  # type: ignore[attr-defined]
    stage.rt.settings = type("Settings", (type(stage.rt.settings),), {"github_url": "https://github.com"})(
        stage.namespace
    )
    stage.job(1, state="completed")
    stage.rows("DELETE FROM jobs")
    stage.rows("INSERT INTO installations (id, account_id, created_at) VALUES (501, 1, now())")
    beats(stage)
    return found


def offers(stage: Stage) -> None:
    """Let every created Pod poll."""
    polls(stage)
    stage.rows(
        """
        INSERT INTO offers (pod_uid, pool_id, web_id, poll_id, until)
        SELECT uid, pool_id, 'w', uid, now() + interval '1 hour' FROM runner_pods
        WHERE uid IS NOT NULL AND gone_at IS NULL ON CONFLICT DO NOTHING
        """
    )


def offered(stage: Stage) -> None:
    """Create the Pods of the pool, and let them poll."""
    tick(stage)
    tick(stage)
    offers(stage)


def match(stage: Stage) -> list[int]:
    """Run the matcher of the pool, and return its claims."""
    before = {row.id for row in stage.rows("SELECT id FROM claims")}
    (pool,) = stage.rows("SELECT id FROM pools WHERE deleted_at IS NULL")
    dispatch.run(pool_id=pool.id)
    return sorted(row.id for row in stage.rows("SELECT id FROM claims") if row.id not in before)


def mints(stage: Stage, claims: list[int]) -> None:
    """Stamp and mint these claims."""
    stage.rows("UPDATE claims SET stamp = 'gave_up' WHERE id = ANY(:ids)", ids=claims)
    for claim_id in claims:
        mint.run(claim_id=claim_id)


def delivers(stage: Stage, claims: list[int]) -> list[str]:
    """Deliver the registrations to their Pods, and return what the Pods get."""
    given = []
    for claim_id in claims:
        row = stage.see(claim_id)
        found = stage.rt.transaction(
            deliver.deliver, claim_id=claim_id, pod_uid=row.pod_uid, poll_id=row.pod_uid, now=utcnow(), who="web"
        )
        assert found is not None
        given.append(stage.rt.cipher.decrypt(found.jit).reveal())  # type: ignore[attr-defined]
    return given


@pytest.fixture
def no_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the steps of claims and the keys of wakes to the test."""
    monkeypatch.setattr("tasks.claims.dispatch.start_chains", lambda _claims, **_more: None)
    monkeypatch.setattr("tasks.claims.dispatch.clear_wake", lambda _rt, _pool_id: None)


def registered(stage: Stage, github: GitHub, count: int, **more: Any) -> list[int]:
    """Create a pool with `count` online runners, and return their claims in the order of their Pods' names."""
    stage.pool(replicas=count, **{**LIFE, **more})
    return grown(stage, github, count)


def grown(stage: Stage, github: GitHub, count: int) -> list[int]:
    offered(stage)
    return online(stage, github, count)


def online(stage: Stage, github: GitHub, count: int) -> list[int]:
    """Register `count` polling Pods, show their runners as online, and return their claims."""
    claims = match(stage)
    assert len(claims) == count
    mints(stage, claims)
    delivers(stage, claims)
    for claim_id in claims:
        github.show(str(stage.see(claim_id).runner_name))
    sweep(stage)
    return claims


def sweep(stage: Stage, *, later: float = 61) -> None:
    stage.later(later)
    persistent_runners.run()
    stage.outbox.take("ostler.release")


def releases(stage: Stage) -> None:
    """Run the release of every claim that is being released."""
    for row in stage.rows("SELECT id FROM claims WHERE state = 'releasing' ORDER BY id"):
        stage.rows("UPDATE claims SET leased_until = NULL WHERE id = :id", id=row.id)
        stage.release(row.id)


def runs(stage: Stage, claim_id: int, job_id: int, action: str) -> list[int]:
    """Apply the webhook of a job on the runner of a claim, and return the claims to release now."""
    name = stage.see(claim_id).runner_name
    over = action == "completed"
    event = WorkflowJobEvent(
        action=action,
        job_id=job_id,
        run_id=1,
        run_attempt=1,
        name="build",
        workflow_name=None,
        status=action,
        conclusion="success" if over else None,
        labels=("self-hosted",),
        runner_name=name,
        runner_id=None,
        created_at=utcnow(),
        started_at=utcnow(),
        completed_at=utcnow() if over else None,
        head_branch=None,
        repository="acme/shop",
        repository_id=1,
        owner_id=1,
        owner_login="acme",
        owner_type="Organization",
        installation_id=501,
    )

    def apply(db: Any) -> list[int]:
        locked = binding_locks.lock(db, [event])
        return bindings.apply(db, locked, [event], now=utcnow(), who="web").releases

    return stage.rt.transaction(apply)


@pytest.mark.usefixtures("no_chains")
def test_a_pod_that_polls_gets_a_registration_and_nothing_else_holds_the_token(stage: Stage, github: GitHub) -> None:
    stage.pool(replicas=1, **LIFE)
    offered(stage)
    (claim_id,) = match(stage)
    assert match(stage) == [], "a Pod has one live claim"
    mints(stage, [claim_id])
    minted = stage.see(claim_id)
    assert (minted.purpose, minted.state, minted.runner_id, minted.account_id) == ("register", "minted", None, 1)

    (given,) = delivers(stage, [claim_id])

    assert given.splitlines() == [
        "url=https://github.com/acme",
        f"token={TOKEN}",
        f"name={minted.runner_name}",
        "labels=self-hosted,small",
        "group=",
    ]
    assert TOKEN not in str(list(stage.rows("SELECT * FROM claims")))
    github.show(minted.runner_name)
    sweep(stage)
    seen = stage.see(claim_id)
    assert (seen.jit, seen.runner_id, seen.runner_seen, seen.online_at is None) == (None, 100, "online", False)


@pytest.mark.usefixtures("no_chains")
def test_a_refused_token_leaves_a_warm_pod_and_one_test_after_a_growing_wait(stage: Stage, github: GitHub) -> None:
    stage.pool(replicas=3, **LIFE)
    offered(stage)
    github.fails = Forbidden("no")
    first = match(stage)
    mints(stage, first)
    releases(stage)
    assert {row.state for row in stage.rows("SELECT state FROM claims")} == {"ended"}
    assert match(stage) == [], "it waits"
    assert "no" in degraded(stage)

    stage.rows("UPDATE claims SET ended_at = ended_at - interval '1 hour'")
    second = match(stage)
    assert len(second) == 1, "one registration tests GitHub"
    github.fails = None
    mints(stage, second)
    delivers(stage, second)
    assert match(stage) == []
    assert "no" in degraded(stage)
    github.show(str(stage.see(second[0]).runner_name))
    sweep(stage)
    assert degraded(stage) == "", "the last registration succeeded"

    third = match(stage)
    assert len(third) == 2
    mints(stage, third)
    delivers(stage, third)
    stage.rows("UPDATE claims SET delivered_at = delivered_at - interval '601 s' WHERE id = ANY(:ids)", ids=third)
    sweep(stage)
    assert "its runner did not come online within 600 s" in degraded(stage)


@pytest.mark.usefixtures("no_chains")
@pytest.mark.parametrize("visibility", ["all", "selected"])
def test_no_runner_joins_a_group_for_public_repositories_without_allowed_forks(
    stage: Stage, github: GitHub, visibility: str
) -> None:
    github.groups = [GroupSeen(id=1, name="Default", visibility=visibility, public=True)]
    stage.pool(replicas=2, **LIFE)
    offered(stage)
    claims = match(stage)
    mints(stage, claims)
    releases(stage)
    assert {row.state for row in stage.rows("SELECT state FROM claims")} == {"ended"}
    assert "runner group 1 of acme admits public repositories" in degraded(stage)
    assert github.lists == 1, "the list is kept"

    spec(stage, allowForks=True)
    tick(stage)
    stage.rows("UPDATE claims SET ended_at = ended_at - interval '1 hour'")
    (claim_id,) = match(stage)
    mints(stage, [claim_id])
    assert delivers(stage, [claim_id])


@pytest.mark.usefixtures("no_chains")
@pytest.mark.parametrize("public", [True, False])
def test_a_runner_of_one_repository_is_registered_only_if_the_repository_is_private(
    stage: Stage, github: GitHub, public: bool
) -> None:
    stage.pool(replicas=1, **{**LIFE, "registration": {"repository": "acme/shop"}})
    stage.job(1, state="completed")
    stage.rows("UPDATE jobs SET repository_id = 7, public = :public", public=public)
    offered(stage)
    claims = match(stage)
    mints(stage, claims)
    if public:
        releases(stage)
        assert "acme/shop is public, so a job of a fork could reach" in degraded(stage)
    else:
        assert len(delivers(stage, claims)) == 1
    assert github.lists == 0, "a repository has no groups"


def admit_public(stage: Stage, github: GitHub) -> None:
    """Let the group admit public repositories, and let Ostler read the groups again."""
    github.groups = [GroupSeen(id=1, name="Default", visibility="all", public=True)]
    stage.rows("DELETE FROM runner_group_lists")


def states(stage: Stage) -> list[str]:
    return [row.state for row in stage.rows("SELECT state FROM claims WHERE purpose = 'register' ORDER BY id")]


@pytest.mark.usefixtures("no_chains")
@pytest.mark.parametrize("allow_forks", [False, True])
def test_runners_leave_a_group_that_admits_public_repositories_now(
    stage: Stage, github: GitHub, allow_forks: bool
) -> None:
    claims = registered(stage, github, 2, allowForks=allow_forks)
    busy = str(stage.see(claims[1]).runner_name)
    github.show(busy, busy=True)
    github.groups = [GroupSeen(id=1, name="Default", visibility="all", public=True)]
    sweep(stage)
    assert states(stage) == ["delivered", "delivered"], "the list of groups is used for an hour"
    stage.rows("UPDATE runner_group_lists SET read_at = now() - interval '61 min'")

    sweep(stage)
    releases(stage)
    tick(stage)
    if allow_forks:
        assert states(stage) == ["delivered", "delivered"]
        return
    assert states(stage) == ["ended", "releasing"]
    assert busy in github.runners, "GitHub refuses while it executes a job"
    assert "admits public repositories" in stage.see(claims[0]).release_reason
    assert stage.see(claims[1]).pod_uid in {pod.uid for pod in stage.pods().values()}


@pytest.mark.usefixtures("no_chains")
@pytest.mark.parametrize("fails", [Forbidden("no"), Retryable("503")])
def test_runners_stay_if_github_does_not_list_the_groups(stage: Stage, github: GitHub, fails: UpstreamError) -> None:
    registered(stage, github, 2)
    stage.rows("DELETE FROM runner_group_lists")
    github.fails = fails
    sweep(stage)
    github.fails = None
    github.groups = []
    sweep(stage)
    assert states(stage) == ["delivered", "delivered"]
    assert stage.rows("SELECT 1 FROM runner_group_lists"), "the groups were listed"


@pytest.mark.usefixtures("no_chains")
def test_a_runner_of_an_earlier_template_is_not_judged_by_the_present_group(stage: Stage, github: GitHub) -> None:
    registered(stage, github, 1)
    admit_public(stage, github)
    stage.rows("UPDATE runner_pods SET template_hash = 'earlier'")
    sweep(stage)
    assert states(stage) == ["delivered"]


@pytest.mark.usefixtures("no_chains")
def test_an_absence_is_forgotten_when_a_look_up_finds_the_runner(
    stage: Stage, github: GitHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    (claim_id,) = registered(stage, github, 1)
    known, github.runners = github.runners, {}
    sweep(stage)
    assert stage.see(claim_id).runner_absent_at is not None
    monkeypatch.setattr(github, "find_runner", lambda *, name, **_call: known[name])
    sweep(stage)
    assert (stage.see(claim_id).state, stage.see(claim_id).runner_absent_at) == ("delivered", None)


@pytest.mark.usefixtures("no_chains")
def test_a_runner_of_a_repository_that_becomes_public_leaves(stage: Stage, github: GitHub) -> None:
    stage.job(1, state="completed")
    stage.rows("UPDATE jobs SET repository_id = 7, public = false")
    registered(stage, github, 1, registration={"repository": "acme/shop"})
    sweep(stage)
    assert states(stage) == ["delivered"]
    stage.rows("UPDATE jobs SET public = true")
    sweep(stage)
    assert states(stage) == ["releasing"]


@pytest.mark.usefixtures("no_chains")
def test_a_lost_runner_that_executes_a_job_stays_though_its_group_is_public(stage: Stage, github: GitHub) -> None:
    (claim_id,) = registered(stage, github, 1)
    stage.job(7, state="queued")
    runs(stage, claim_id, 7, "in_progress")
    github.runners.clear()
    admit_public(stage, github)
    for _ in range(3):
        sweep(stage)
    assert states(stage) == ["delivered"]


@pytest.mark.usefixtures("no_chains", "github")
def test_no_runner_is_registered_for_an_account_that_the_pool_does_not_allow(stage: Stage) -> None:
    stage.pool(replicas=1, allowedAccounts=[999], **LIFE)
    offered(stage)
    assert match(stage) == []
    assert "allowedAccounts of the pool does not contain 1" in degraded(stage)
    spec(stage, allowedAccounts=[999, 1])
    tick(stage)
    assert len(match(stage)) == 1


@pytest.mark.usefixtures("no_chains")
def test_a_runner_leaves_if_its_account_is_not_allowed_any_more(stage: Stage, github: GitHub) -> None:
    registered(stage, github, 1, allowedAccounts=[1])
    sweep(stage)
    assert states(stage) == ["delivered"]
    spec(stage, allowedAccounts=[2])
    tick(stage)
    sweep(stage)
    assert states(stage) == ["releasing"]


@pytest.mark.usefixtures("no_chains")
def test_a_list_of_groups_that_github_refuses_is_the_reason_on_record(stage: Stage, github: GitHub) -> None:
    stage.pool(replicas=1, **LIFE)
    offered(stage)
    github.fails = Forbidden("no")
    claims = match(stage)
    mints(stage, claims)
    releases(stage)
    assert "GitHub did not list the runner groups of acme: " in degraded(stage)


@pytest.mark.usefixtures("no_chains", "github")
@pytest.mark.parametrize("change", [{"allowForks": True}, {"runnerGroup": "other"}])
def test_a_change_of_who_may_use_the_runners_replaces_them(stage: Stage, change: dict[str, Any]) -> None:
    stage.pool(replicas=1, **LIFE)
    tick(stage)
    (before,) = stage.rows("SELECT template_hash FROM pools")
    spec(stage, **change)
    tick(stage)
    (after,) = stage.rows("SELECT template_hash FROM pools")
    assert after.template_hash != before.template_hash


@pytest.mark.usefixtures("no_chains")
def test_a_group_of_selected_private_repositories_is_enough_for_a_registration(stage: Stage, github: GitHub) -> None:
    github.groups = [GroupSeen(id=1, name="Default", visibility="selected", public=False)]
    claims = registered(stage, github, 2)
    assert len(claims) == 2
    assert github.lists == 1


def degraded(stage: Stage) -> str:
    """Reconcile, and return the message of the pool's condition Degraded, or an empty text if there is no problem."""
    tick(stage)
    (pool,) = stage.rows("SELECT status FROM pools")
    (found,) = [each for each in pool.status["conditions"] if each["type"] == "Degraded"]
    if found["status"] == "False":
        return ""
    assert found["reason"] == "RunnersNotRegistered"
    return str(found["message"])


@pytest.mark.usefixtures("no_chains", "github")
def test_a_runner_that_does_not_come_online_brakes_the_next_registrations(stage: Stage) -> None:
    stage.pool(replicas=3, **LIFE)
    offered(stage)
    first = match(stage)
    assert len(first) == 3
    mints(stage, first)
    delivers(stage, first)
    stage.rows("UPDATE claims SET delivered_at = delivered_at - interval '601 s'")
    sweep(stage)
    for _ in range(4):
        releases(stage)
        rounds(stage, 1)
    offers(stage)
    assert match(stage) == [], "it waits"
    stage.rows("UPDATE claims SET ended_at = ended_at - interval '1 hour'")
    assert len(match(stage)) == 1, "one registration tests the image"


@pytest.mark.usefixtures("no_chains")
def test_a_template_whose_runners_do_not_register_stops_its_rollout(stage: Stage, github: GitHub) -> None:
    registered(stage, github, 3)
    spec(stage, image=NEW)
    for _ in range(6):
        rounds(stage, 1, polling=False)
        offers(stage)
        made = match(stage)
        mints(stage, made)
        delivers(stage, made)
        releases(stage)
    assert [len(names) for names in images(stage).values()] == [3, 1]
    stage.rows("UPDATE pools SET status_at = NULL")
    tick(stage)
    assert status(stage)["warm"] == 3


@pytest.mark.usefixtures("no_chains")
def test_an_installation_that_was_wrongly_recorded_as_removed_works_again(stage: Stage, github: GitHub) -> None:
    stage.rows("UPDATE installations SET left_at = now()")
    stage.pool(replicas=1, **LIFE)
    offered(stage)
    assert match(stage) == []
    found = AppInstallation(id=501, login="acme", organization=True, suspended=False, permissions={}, events=())
    seen_one = InstallationSeen(account_id=1, login="acme", suspended=False)
    github.list_installations = lambda **_call: [found]  # type: ignore[attr-defined]
    github.get_installation = lambda **_call: seen_one  # type: ignore[attr-defined]
    sweep(stage)
    assert len(match(stage)) == 1


@pytest.mark.usefixtures("no_chains")
def test_a_token_that_did_not_arrive_is_sent_again_until_no_runner_could_come_of_it(
    stage: Stage, github: GitHub
) -> None:
    stage.pool(replicas=1, **LIFE)
    offered(stage)
    (claim_id,) = match(stage)
    mints(stage, [claim_id])
    delivers(stage, [claim_id])
    (name,) = stage.pods()
    put_stamp(stage, name)
    stage.poll_on(name)
    stage.rows("UPDATE claims SET stamp = 'on', due_at = NULL, delivered_at = now() - interval '20 s'")
    stage.rows("UPDATE runner_pods SET poller_ended_at = NULL")
    resume.run()
    for message in stage.outbox.take("ostler.unstamp"):
        unstamp.run(**message)
    assert stage.pods()[name].owner is None
    assert stage.see(claim_id).stamp == "off"

    uid = stage.pods()[name].uid
    again: dict[str, Any] = {"claim_id": claim_id, "pod_uid": uid, "who": "web"}
    assert stage.rt.transaction(deliver.delivered_before, **again, now=utcnow()) is not None
    late = utcnow() + timedelta(seconds=REGISTERS_AGAIN)
    assert stage.rt.transaction(deliver.delivered_before, **again, now=late) is None
    assert github.deletions == []


@pytest.mark.usefixtures("no_chains")
@pytest.mark.parametrize(("shown", "over"), [("busy", False), ("offline", False), ("online", True), ("absent", True)])
def test_a_job_that_github_hides_runs_on_while_its_runner_might_be_busy(
    stage: Stage, github: GitHub, shown: str, *, over: bool
) -> None:
    (claim_id,) = registered(stage, github, 1)
    name = str(stage.see(claim_id).runner_name)
    stage.job(7, state="queued")
    runs(stage, claim_id, 7, "in_progress")
    if shown == "absent":
        github.runners.clear()
    else:
        github.show(name, online=shown != "offline", busy=shown == "busy")
    sweep(stage)
    stage.rows("UPDATE jobs SET changed_at = now() - interval '2 h', started_at = now() - interval '2 h'")
    github.get_job = lambda **_call: None  # type: ignore[attr-defined]
    unresolved_jobs.run()
    (job,) = stage.rows("SELECT state FROM jobs")
    assert job.state == ("completed" if over else "running")


@pytest.mark.usefixtures("no_chains")
def test_a_pool_without_runners_forgets_the_last_failure(stage: Stage, github: GitHub) -> None:
    stage.pool(replicas=1, **LIFE)
    offered(stage)
    github.fails = Forbidden("no")
    mints(stage, match(stage))
    releases(stage)
    assert degraded(stage)
    spec(stage, replicas=0)
    assert degraded(stage) == ""


@pytest.mark.usefixtures("no_chains", "github")
def test_a_repository_without_jobs_is_named_as_the_cause(stage: Stage) -> None:
    stage.pool(replicas=1, lifecycle="persistent", registration={"repository": "acme/other"})
    tick(stage)
    assert "first job of the repository" in degraded(stage)


@pytest.mark.usefixtures("no_chains")
def test_without_an_installation_nothing_is_claimed_and_the_sweep_asks_github(stage: Stage, github: GitHub) -> None:
    stage.rows("DELETE FROM installations")
    stage.pool(replicas=1, **LIFE)
    offered(stage)
    assert match(stage) == []
    asked: list[str] = []

    def list_installations(**_call: Any) -> list[Any]:
        asked.append("installations")
        return []

    github.list_installations = list_installations  # type: ignore[attr-defined]
    sweep(stage)
    assert asked == ["installations"]
    (pool,) = stage.rows("SELECT id FROM pools")
    told = stage.rt.transaction(registrations.runners_of_pool, pool.id)
    assert told is not None
    assert "not installed in orgs/acme" in str(told.failure)


@pytest.mark.usefixtures("no_chains")
def test_a_runner_runs_job_after_job_and_its_account_is_charged_meanwhile(stage: Stage, github: GitHub) -> None:
    (claim_id,) = registered(stage, github, 1)
    for job_id in (7, 8):
        stage.job(job_id, state="queued")
        assert charged(stage) == 0
        runs(stage, claim_id, job_id, "in_progress")
        assert charged(stage) == 1
        assert stage.see(claim_id).state == "delivered"
        tick(stage)
        assert rows_busy(stage) == 1
        runs(stage, claim_id, job_id, "completed")
        assert charged(stage) == 0
    assert stage.see(claim_id).ended_at is None
    tick(stage)
    assert rows_busy(stage) == 0


AUTOSCALED = {"enabled": True, "minWarm": 0, "maxReplicas": 9, "scaleDownDelay": "1m", "targetBusyPercent": 50}


def scaled(stage: Stage) -> int:
    """Run the autoscaler long after everything before. Return the replicas of the pool."""
    stage.rows("UPDATE pools SET scaled_up_at = now() - interval '1 h', typical_at = NULL, create_after = NULL")
    autoscale.run()
    found = seen(stage)
    assert found is not None
    return found.replicas


@pytest.mark.usefixtures("no_chains")
def test_a_pool_grows_with_its_queue_and_shrinks_by_idle_runners(stage: Stage, github: GitHub) -> None:
    claims = registered(stage, github, 3, autoscaling=AUTOSCALED)
    for job_id in (7, 8, 9, 10, 11):
        stage.job(job_id, state="queued")
    runs(stage, claims[0], 7, "in_progress")
    github.show(str(stage.see(claims[0]).runner_name), busy=True)
    stage.outbox.sent.clear()
    match(stage)
    assert stage.outbox.take("ostler.autoscale") == [{}]
    assert scaled(stage) == 5

    stage.rows("UPDATE jobs SET state = 'completed', completed_at = now() WHERE id > 7")
    assert scaled(stage) == 1
    for _ in range(3):
        tick(stage)
        releases(stage)
    alive = stage.rows(
        "SELECT id FROM claims WHERE ended_at IS NULL AND purpose = 'register' AND delivered_at IS NOT NULL"
    )
    assert [row.id for row in alive] == [claims[0]]


@pytest.mark.usefixtures("no_chains")
def test_a_pool_keeps_the_runners_that_were_usually_busy_at_its_share(stage: Stage, github: GitHub) -> None:
    claims = registered(stage, github, 3, autoscaling=AUTOSCALED)
    for claim_id, job_id in zip(claims, (7, 8, 9), strict=True):
        stage.job(job_id, state="queued")
        runs(stage, claim_id, job_id, "in_progress")
    assert scaled(stage) == 3, "busy for a moment"
    stage.rows("UPDATE executions SET started_at = now() - interval '50 min'")
    assert scaled(stage) == 6
    for claim_id, job_id in zip(claims, (7, 8, 9), strict=True):
        runs(stage, claim_id, job_id, "completed")
    assert scaled(stage) == 6
    (row,) = stage.rows("SELECT scaling FROM pools")
    assert row.scaling["why"] == "0 with jobs + 0 queued, usually 3 (6 at 50 % busy) + 0 warm = 6"
    stage.rows("UPDATE executions SET started_at = now() - interval '3 h', ended_at = now() - interval '2 h'")
    assert scaled(stage) == 0


@pytest.mark.usefixtures("no_chains")
def test_a_job_that_only_the_list_of_runners_shows_is_load(stage: Stage, github: GitHub) -> None:
    claims = registered(stage, github, 3, autoscaling=AUTOSCALED)
    for claim_id in claims[:2]:
        github.show(str(stage.see(claim_id).runner_name), busy=True)
    sweep(stage)
    assert scaled(stage) == 2
    stage.job(7, state="queued")
    assert scaled(stage) == 3


@pytest.mark.usefixtures("no_chains")
def test_a_pool_with_idle_runners_does_not_grow_for_jobs_that_github_gives_to_none(
    stage: Stage, github: GitHub
) -> None:
    registered(stage, github, 1, autoscaling=AUTOSCALED)
    stage.job(7, state="queued")
    stage.job(8, state="queued")
    stage.rows("UPDATE jobs SET queued_at = now() - interval '5 min'")
    assert scaled(stage) == 1
    (row,) = stage.rows("SELECT scaling FROM pools")
    assert "although Pods are idle" in row.scaling["why"]


def charged(stage: Stage) -> int:
    return stage.rt.transaction(usage_of, [1])[1].count


def rows_busy(stage: Stage) -> int:
    stage.rows("UPDATE pools SET status_at = NULL")
    tick(stage)
    return int(status(stage)["busy"])


@pytest.mark.usefixtures("no_chains")
def test_a_job_that_was_claimed_elsewhere_leaves_its_claim(stage: Stage, github: GitHub) -> None:
    (claim_id,) = registered(stage, github, 1)
    stage.add_pod("other")
    stage.job(7)
    other = stage.claim("other", job_id=7, state="delivered")

    runs(stage, claim_id, 7, "in_progress")

    assert stage.see(other).job_id is None
    assert stage.see(other).spare_since is not None
    assert stage.see(claim_id).job_id is None


@pytest.mark.usefixtures("no_chains")
def test_a_busy_runner_outlives_its_scale_down_and_leaves_after_its_job(stage: Stage, github: GitHub) -> None:
    claims = registered(stage, github, 2)
    for claim_id in claims:
        github.show(str(stage.see(claim_id).runner_name), busy=True)  # GitHub has just given them jobs
    spec(stage, replicas=1)
    tick(stage)
    (marked,) = stage.rows("SELECT id, runner_name FROM claims WHERE state = 'releasing'")
    releases(stage)
    assert github.deletions == [marked.runner_name]
    later = stage.see(marked.id)
    assert later.last_error == "GitHub says that the runner is busy"
    assert timedelta(seconds=50) < later.due_at - utcnow() < timedelta(seconds=61)
    for _ in range(3):
        tick(stage)
    assert len(stage.pods()) == 2
    assert len(stage.rows("SELECT 1 FROM claims WHERE state = 'releasing'")) == 1, "no other runner is marked"

    github.show(marked.runner_name)
    releases(stage)
    tick(stage)
    assert marked.runner_name not in github.runners
    assert len(stage.pods()) == 1
    (ended,) = stage.rows("SELECT end_reason FROM claims WHERE id = :id", id=marked.id)
    assert ended.end_reason == "released"


@pytest.mark.usefixtures("no_chains")
def test_a_busy_runner_of_a_deleted_pool_is_asked_for_and_again_when_its_job_ends(stage: Stage, github: GitHub) -> None:
    (claim_id,) = registered(stage, github, 1)
    name = str(stage.see(claim_id).runner_name)
    stage.job(7, state="queued")
    assert runs(stage, claim_id, 7, "in_progress") == []
    github.show(name, busy=True)
    delete(stage)
    drain(stage)
    assert stage.see(claim_id).state == "releasing"
    releases(stage)
    assert github.deletions == [name]
    stage.rows("UPDATE pools SET status_at = NULL")
    drain(stage)
    told = next(each for each in status(stage)["conditions"] if each["type"] == "Draining")
    assert "job 7 has been running since" in told["message"]
    assert len(stage.pods()) == 1

    github.show(name)
    assert runs(stage, claim_id, 7, "completed") == [claim_id]
    stage.release(claim_id)
    assert stage.see(claim_id).state == "ended"
    drain(stage)
    assert stage.pods() == {}


@pytest.mark.usefixtures("no_chains")
@pytest.mark.parametrize(
    ("error", "says", "least", "most"),
    [(Forbidden("no"), "access is refused", 60, 60), (Retryable("no answer"), "the server did not answer", 2, 20)],
    ids=["403", "no answer"],
)
def test_a_runner_that_github_does_not_remove_keeps_its_pod(
    stage: Stage, github: GitHub, error: UpstreamError, says: str, least: int, most: int
) -> None:
    (claim_id,) = registered(stage, github, 1)
    spec(stage, replicas=0)
    tick(stage)
    github.fails = error
    for _ in range(3):
        asked = utcnow()
        with pytest.raises(type(error)):
            releases(stage)
        claim = stage.see(claim_id)
        assert (claim.state, claim.last_error) == ("releasing", says)
        assert asked + timedelta(seconds=least) <= claim.due_at <= utcnow() + timedelta(seconds=most)
        tick(stage)
    assert stage.see(claim_id).state == "releasing"
    assert len(stage.pods()) == 1


@pytest.mark.usefixtures("no_chains")
def test_a_rollout_replaces_one_runner_after_the_other(stage: Stage, github: GitHub) -> None:
    registered(stage, github, 3, rollout={"maxSurge": 1})
    spec(stage, image=NEW)
    for _ in range(12):
        tick(stage)
        assert len(stage.pods()) <= 4
        offers(stage)
        made = match(stage)
        mints(stage, made)
        delivers(stage, made)
        for claim_id in made:
            github.show(str(stage.see(claim_id).runner_name))
        sweep(stage)
        online = sum(each.online for each in github.runners.values())
        assert online >= 2
        releases(stage)
        rounds(stage, 1, polling=False)
    assert [len(names) for names in images(stage).values()] == [0, 3]
    assert len(github.runners) == 3


@pytest.mark.usefixtures("no_chains")
@pytest.mark.parametrize("rollout", [{"maxSurge": 0}, {}], ids=["without surge", "with surge"])
def test_an_idle_runner_above_the_maximum_age_is_replaced_and_a_busy_one_stays(
    stage: Stage, github: GitHub, rollout: dict[str, Any]
) -> None:
    idle, busy = registered(stage, github, 2, maxRunnerAge="2h", rollout=rollout)
    old, kept = (stage.see(claim_id).pod_uid for claim_id in (idle, busy))
    stage.job(7, state="queued")
    runs(stage, busy, 7, "in_progress")
    github.show(str(stage.see(busy).runner_name), busy=True)

    def runners(age: str) -> set[str]:
        stage.rows("UPDATE claims SET online_at = now() - CAST(:age AS interval)", age=age)
        for _ in range(4):
            tick(stage)
            offers(stage)
            made = match(stage)
            mints(stage, made)
            delivers(stage, made)
            for claim_id in made:
                github.show(str(stage.see(claim_id).runner_name))
            sweep(stage)
            releases(stage)
        return {pod.uid for pod in stage.pods().values()}

    assert runners("119 min") == {old, kept}
    after = runners("121 min")
    assert old not in after
    assert kept in after
    assert len(after) == 2 + ("maxSurge" not in rollout), "a surge Pod waits for the end of the busy runner's job"
    assert stage.see(idle).release_reason == "the runner is older than spec.maxRunnerAge"
    assert stage.see(busy).state == "delivered"


@pytest.mark.usefixtures("no_chains")
def test_a_runner_that_is_registering_is_neither_idle_nor_chosen(stage: Stage, github: GitHub) -> None:
    stage.pool(replicas=1, **LIFE)
    offered(stage)
    claims = match(stage)
    mints(stage, claims)
    delivers(stage, claims)
    spec(stage, replicas=0)
    for _ in range(3):
        tick(stage)
        sweep(stage)
    assert stage.see(claims[0]).state == "delivered"
    assert github.deletions == []

    stage.rows("UPDATE claims SET delivered_at = delivered_at - interval '601 s'")
    sweep(stage)
    assert stage.see(claims[0]).state == "releasing"
    assert stage.see(claims[0]).release_reason == "its runner did not come online within 600 s"


WORKLOADS: tuple[dict[str, Any], ...] = ({"workload": "Pod"}, {"workload": "StatefulSet", "volumes": CACHE})


def cache_uids(stage: Stage) -> dict[str, str]:
    """Return the UIDs of the pool's volumes that are not being deleted, by name."""
    found = list_volumes(stage.kube, namespace=stage.namespace, pool="small")
    return {each.name: each.uid for each in found if not each.terminating}


def set_uids(stage: Stage) -> set[str]:
    items = stage.kube.request("GET", object_path("statefulsets", namespace=stage.namespace, group="apps"))["items"]
    return {each["metadata"]["uid"] for each in items}


@contextmanager
def replaced_runner(stage: Stage) -> Iterator[None]:
    """After the block, reconcile until another runner has replaced the only runner. Only its volume is left.

    If the other runner has the same name, it uses this volume.
    """
    ((_, pod),), sets, volumes = all_pods(stage).items(), set_uids(stage), cache_uids(stage)
    assert len(sets) == len(volumes) == int(pod.of_a_set)
    yield

    def is_replaced() -> bool:
        stage.rows("UPDATE pools SET create_after = NULL")
        releases(stage)
        tick(stage)
        (row,) = stage.rows("SELECT array_agg(uid) AS uids FROM runner_pods WHERE gone_at IS NULL")
        uids = [each.uid for each in all_pods(stage).values()]
        return uids == row.uids and uids != [pod.uid]

    eventually(is_replaced)
    assert stage.service_accounts() - {"default"} == set(stage.pods())
    assert len(set_uids(stage)) == len(sets)
    assert set_uids(stage).isdisjoint(sets)
    assert cache_uids(stage).items() >= volumes.items()


@pytest.mark.usefixtures("no_chains")
@pytest.mark.cluster  # StatefulSets
@pytest.mark.parametrize("more", WORKLOADS, ids=["Pod", "StatefulSet"])
def test_a_runner_that_never_comes_online_is_replaced_after_a_timeout(
    stage: Stage, github: GitHub, more: dict[str, Any]
) -> None:
    stage.pool(replicas=1, **LIFE, **more)
    (name,) = all_polled(stage, 1)
    offers(stage)
    (claim_id,) = match(stage)
    mints(stage, [claim_id])
    delivers(stage, [claim_id])
    stage.poll_on(name)
    github.show(str(stage.see(claim_id).runner_name), online=False)
    ended = {"exitCode": 0, "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:01:00Z"}
    register = {"name": "register", "image": "runner:1", "imageID": "", "ready": False, "restartCount": 0}
    stage.kube.request(
        "PATCH",
        f"/api/v1/namespaces/{stage.namespace}/pods/{name}/status",
        body={"status": {"phase": "Running", "containerStatuses": [{**register, "state": {"terminated": ended}}]}},
        content_type=MERGE_PATCH,
    )
    stage.rows("UPDATE claims SET delivered_at = delivered_at - interval '590 s'")
    sweep(stage)
    tick(stage)
    assert (states(stage), set(stage.pods())) == (["delivered"], {name})

    with replaced_runner(stage):
        stage.rows("UPDATE claims SET delivered_at = delivered_at - interval '11 s'")
        sweep(stage)
    assert stage.see(claim_id).release_reason == "its runner did not come online within 600 s"
    assert (states(stage), github.runners) == (["ended"], {})
    stage.rows("UPDATE claims SET ended_at = ended_at - interval '1 hour'")  # a registration waits after a failure
    offers(stage)
    online(stage, github, 1)


@pytest.mark.usefixtures("no_chains", "github")
@pytest.mark.cluster  # StatefulSets
@pytest.mark.parametrize("more", WORKLOADS, ids=["Pod", "StatefulSet"])
def test_a_pod_that_does_not_poll_is_replaced_after_the_start_timeout(stage: Stage, more: dict[str, Any]) -> None:
    stage.pool(replicas=1, provisioning={"startTimeout": "1h"}, **LIFE, **more)

    def after_a_tick(read: Callable[[Stage], Any]) -> Any:
        tick(stage)
        return read(stage)

    eventually(lambda: after_a_tick(all_pods))
    with replaced_runner(stage):
        spec(stage, provisioning={"startTimeout": "1s"})
        why = eventually(lambda: after_a_tick(reasons))
        spec(stage, provisioning={"startTimeout": "1h"})
    assert list(why.values()) == ["the Pod did not start to poll: the Pod did not poll within 1 s"]


@pytest.mark.usefixtures("no_chains")
def test_a_stray_message_releases_no_runner_that_is_registering(stage: Stage, github: GitHub) -> None:
    stage.pool(replicas=1, **LIFE)
    offered(stage)
    claims = match(stage)
    mints(stage, claims)
    delivers(stage, claims)
    release.run(claim_id=claims[0])
    assert stage.see(claims[0]).state == "delivered"

    github.show(str(stage.see(claims[0]).runner_name))
    sweep(stage)
    stage.release(claims[0])
    assert (stage.see(claims[0]).state, github.runners) == ("ended", {})


@pytest.mark.usefixtures("no_chains")
def test_a_runner_that_a_person_deleted_is_replaced_after_two_lists(stage: Stage, github: GitHub) -> None:
    (claim_id,) = registered(stage, github, 1)
    tick(stage)
    assert status(stage)["warm"] == 1
    github.runners.clear()
    sweep(stage)
    tick(stage)
    assert (stage.see(claim_id).state, status(stage)["warm"]) == ("delivered", 0)
    sweep(stage)
    assert stage.see(claim_id).state == "releasing"
    releases(stage)
    tick(stage)
    assert stage.see(claim_id).state == "ended"


@pytest.mark.usefixtures("no_chains")
def test_a_runner_that_executes_a_job_is_not_removed_because_github_does_not_know_it(
    stage: Stage, github: GitHub
) -> None:
    (claim_id,) = registered(stage, github, 1)
    stage.job(7, state="queued")
    runs(stage, claim_id, 7, "in_progress")
    github.runners.clear()
    for _ in range(3):
        sweep(stage)
    assert stage.see(claim_id).state == "delivered"

    runs(stage, claim_id, 7, "completed")
    sweep(stage)
    assert stage.see(claim_id).state == "releasing"


@pytest.mark.usefixtures("no_chains")
def test_a_runner_busy_for_too_long_leaves_though_the_begin_of_its_job_was_lost(stage: Stage, github: GitHub) -> None:
    (claim_id,) = registered(stage, github, 1)
    github.show(str(stage.see(claim_id).runner_name), busy=True)
    sweep(stage)
    stage.rows("UPDATE claims SET runner_seen_at = now() - interval '6 days'")
    stage.job(7, state="queued")
    runs(stage, claim_id, 7, "in_progress")
    runs(stage, claim_id, 7, "completed")
    sweep(stage)
    assert stage.see(claim_id).state == "delivered", "another job than the first has begun since"

    stage.rows("UPDATE executions SET ended_at = now() - interval '6 days'")
    sweep(stage)
    assert stage.see(claim_id).state == "releasing"
    assert stage.see(claim_id).release_reason == "its job has been running for longer than GitHub allows"


@pytest.mark.usefixtures("no_chains")
def test_a_runner_whose_job_runs_for_too_long_leaves_as_soon_as_github_agrees(stage: Stage, github: GitHub) -> None:
    (claim_id,) = registered(stage, github, 1)
    name = str(stage.see(claim_id).runner_name)
    stage.job(7, state="queued")
    runs(stage, claim_id, 7, "in_progress")
    github.show(name, busy=True)
    sweep(stage)
    assert stage.see(claim_id).state == "delivered"

    stage.rows("UPDATE executions SET started_at = now() - interval '6 days'")
    sweep(stage)
    for _ in range(2):
        releases(stage)
        assert stage.see(claim_id).state == "releasing"
    tick(stage)
    assert len(stage.pods()) == 1
    github.show(name)
    releases(stage)
    assert stage.see(claim_id).state == "ended"


@pytest.mark.usefixtures("no_chains")
@pytest.mark.parametrize(
    ("offline", "gone", "seconds", "left"), [(1, 0, 601, 2), (3, 0, 601, 3), (3, 0, 3601, 0), (3, 3, 601, 0)]
)
def test_an_offline_runner_is_replaced_later_while_most_runners_are_offline(
    stage: Stage, github: GitHub, offline: int, gone: int, seconds: int, left: int
) -> None:
    claims = registered(stage, github, 3)
    uids = [stage.see(claim_id).pod_uid for claim_id in claims[:gone]]
    stage.rows("UPDATE runner_pods SET node_gone_at = now() WHERE uid = ANY(:uids)", uids=uids)
    for claim_id in claims[:offline]:
        github.show(str(stage.see(claim_id).runner_name), online=False)
    sweep(stage)
    stage.rows("UPDATE claims SET runner_seen_at = runner_seen_at - make_interval(secs => :s)", s=seconds)
    sweep(stage)
    states = [stage.see(claim_id).state for claim_id in claims]
    assert states.count("delivered") == left
    (run,) = stage.rows("SELECT * FROM sweeps WHERE name = 'persistent_runners'")
    assert ("3 of 3 runners in orgs/acme are offline" in str(run)) is (left == 3)


@pytest.mark.usefixtures("no_chains")
def test_a_runner_without_a_job_for_a_day_is_shown(stage: Stage, github: GitHub) -> None:
    claims = registered(stage, github, 2)
    day = timedelta(days=1)
    assert stage.rt.transaction(registrations.unused, since=utcnow() - day) == []
    stage.rows("UPDATE claims SET online_at = online_at - interval '25 h'")
    assert stage.rt.transaction(registrations.unused, since=utcnow() - day) == [("small", 2)]
    stage.job(7, state="queued")
    for action in ("in_progress", "completed"):
        runs(stage, claims[0], 7, action)
        assert stage.rt.transaction(registrations.unused, since=utcnow() - day) == [("small", 1)]
    stage.rows("UPDATE executions SET ended_at = now() - interval '25 h'")
    assert stage.rt.transaction(registrations.unused, since=utcnow() - day) == [("small", 2)]


@pytest.mark.usefixtures("no_chains")
def test_a_runner_by_hand_is_left_alone(stage: Stage, github: GitHub) -> None:
    github.show("by-hand", online=False)
    (claim_id,) = registered(stage, github, 1)
    # After weeks, nothing but the live registration names the scope.
    stage.rows("UPDATE mint_attempts SET created_at = now() - interval '30 days'")
    with capture_logs() as lines:
        for _ in range(3):
            sweep(stage)
            orphaned_runners.run()
        github.show("another")
        sweep(stage)
        orphaned_runners.run()
    assert "by-hand" in github.runners
    assert stage.see(claim_id).state == "delivered"
    told = [line for line in lines if line["event"] == "runners.ignored_because_ostler_did_not_register_them"]
    assert [(line["names"], line["count"], line["scope"]) for line in told] == [
        (["by-hand"], 1, "orgs/acme"),
        (["another"], 1, "orgs/acme"),
    ]


def _deleted(stage: Stage, name: str) -> None:
    path = f"/api/v1/namespaces/{stage.namespace}/pods/{name}"
    stage.kube.request("DELETE", path, body={"gracePeriodSeconds": 0})


def _crashed(stage: Stage, name: str) -> None:
    stage.finish(name, phase="Failed", runner=1)


@pytest.mark.usefixtures("no_chains")
@pytest.mark.parametrize("end", [_deleted, _crashed])
def test_a_runner_whose_pod_is_over_or_gone_is_removed_and_replaced(
    stage: Stage, github: GitHub, end: Callable[[Stage, str], None]
) -> None:
    (claim_id,) = registered(stage, github, 1)
    (name,) = stage.pods()
    github.show(str(stage.see(claim_id).runner_name), online=False)
    stage.poll_on(name)
    end(stage, name)
    for _ in range(4):
        stage.rows("UPDATE runner_pods SET terminal_at = terminal_at - interval '1 hour'")
        missing_pods.run()
        tick(stage)
        releases(stage)
    assert stage.see(claim_id).ended_at is not None
    assert github.runners == {}
    assert set(stage.pods()).isdisjoint({name})
    assert len(stage.pods()) == 1


@pytest.mark.cluster  # volumes
@pytest.mark.usefixtures("no_chains")
def test_a_runner_whose_pod_vanishes_leaves_its_volume_to_the_next_runner(stage: Stage, github: GitHub) -> None:
    """A replacement is created before the volume of its predecessor is free, so the second replacement uses it."""

    def replacement_of(name: str) -> str:
        """Register the runner of a Pod, delete the Pod, and return the name of the Pod that replaces it."""
        offers(stage)
        (claim_id,) = online(stage, github, 1)
        uid = stage.pods()[name].uid
        _deleted(stage, name)

        def is_replaced() -> bool:
            stage.rows("UPDATE runner_pods SET terminal_at = terminal_at - interval '1 hour'")
            missing_pods.run()
            tick(stage)
            releases(stage)
            uids = [row.uid for row in stage.rows("SELECT uid FROM runner_pods WHERE gone_at IS NULL")]
            return len(uids) == 1 and uids[0] not in {uid, None}

        eventually(is_replaced)
        assert github.runners == {}
        assert stage.see(claim_id).ended_at is not None
        return next(iter(stage.pods()))

    (first,) = started(stage, 1, **LIFE, volumes=CACHE)
    before = cache_uids(stage)
    assert set(before) == {f"cache-{first}"}
    second = replacement_of(first)
    assert second != first
    assert replacement_of(second) == first
    assert cache_uids(stage).items() > before.items()
    offers(stage)
    assert len(online(stage, github, 1)) == 1

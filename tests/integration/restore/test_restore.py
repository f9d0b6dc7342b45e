"""`ostler restore` on a real cluster: the lost rows of busy Pods are rebuilt before any Pod may be deleted again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, text

from github_adapters.endpoints.jobs import JobSeen
from github_adapters.endpoints.runners import RunnerSeen
from lab.postgres import Postgres
from models.db import epochs
from models.restore import restoring as models_restoring
from models.state import claim_transitions
from ostler.errors import Retryable, StoreUnreachable
from rules.restore.restoring import Act
from rules.routing.scopes import Scope
from tasks.claims.release import release
from tasks.pools.reconcile import reconcile
from tasks.restore import restoring
from tasks.restore.epochs import compare, epoch
from tasks.restore.restoring import NotCompared, NotRestored, Report
from tasks.sweeps.finished_jobs import finished_jobs
from tests.integration.restore.conftest import Stage, StubGitHub
from tests.integration.tasks.listing import job_seen
from tests.timed import changed

MERGE = "application/merge-patch+json"


class Crowd(StubGitHub):
    """A GitHub with any runners and jobs. It answers that an unknown job is queued."""

    def __init__(self) -> None:
        super().__init__()
        self.runners: list[RunnerSeen] = []
        self.jobs: dict[int, tuple[str, str | None]] = {}
        self.down: set[int] = set()
        self.asked: list[str] = []

    def list_runners(self, *, installation_id: int, scope: Scope, **_: Any) -> list[RunnerSeen]:
        self._answer()
        self.asked.append(scope.path)
        if installation_id in self.down:
            raise Retryable("down")
        return self.runners if installation_id == 501 else []

    def get_job(self, *, job_id: int, **_: Any) -> JobSeen | None:
        status, conclusion = self.jobs.get(job_id, ("queued", None))
        return job_seen(job_id, status, conclusion)


@dataclass
class World:
    """A stage whose Postgres is about to be found older than the cluster, and a GitHub with any runners and jobs."""

    stage: Stage
    github: Crowd
    said: list[str] = field(default_factory=list)

    def runner(self, pod: str, *, busy: bool = False, online: bool = True) -> str:
        """Add a runner of this Pod to GitHub's list."""
        name = f"{pod}-0123abcd"
        status = "online" if online else "offline"
        runners = self.github.runners
        runners.append(RunnerSeen(id=90 + len(runners), name=name, status=status, busy=busy, labels=()))
        return name

    def stamp(self, pod: str, *, claim: int, owner: int = 1) -> None:
        """Stamp a Pod for a claim that Postgres has lost."""
        body = {
            "metadata": {
                "labels": {"ostler.dev/runner-pool-owner": str(owner)},
                "annotations": {"ostler.dev/claim": f"{claim}.1"},
            }
        }
        path = f"/api/v1/namespaces/{self.stage.namespace}/pods/{pod}"
        self.stage.kube.request("PATCH", path, body=body, content_type=MERGE)

    def poller_exited(self, pod: str) -> None:
        """Write the kubelet's status of a Pod whose poller wrote the JIT and exited 0, and whose runner runs."""
        containers: list[dict[str, Any]] = [
            {"name": name, "state": state, "image": "runner:1", "imageID": "", "ready": False, "restartCount": 0}
            for name, state in (("poller", {"terminated": {"exitCode": 0}}), ("runner", {"running": {}}))
        ]
        body = {"status": {"phase": "Running", "containerStatuses": containers}}
        path = f"/api/v1/namespaces/{self.stage.namespace}/pods/{pod}/status"
        self.stage.kube.request("PATCH", path, body=body, content_type=MERGE)

    def put_back(self) -> None:
        """Make Postgres older than the cluster."""
        self.stage.rows("UPDATE epochs SET number = number - 1")
        epoch.run()

    def restore(self, *, dry: bool = False, anyway: bool = False, emptied: bool = False) -> Report:
        rt: Any = self.stage.rt
        return restoring.restore(rt, dry=dry, anyway=anyway, emptied=emptied, say=self.said.append)

    def frozen(self) -> bool:
        return bool(self.stage.rows("SELECT 1 FROM epochs WHERE older_since IS NOT NULL"))

    def claims(self) -> list[Any]:
        return self.stage.rows(
            "SELECT c.*, p.name AS pod FROM claims c JOIN runner_pods p ON p.id = c.runner_pod_id"
            " WHERE c.ended_at IS NULL ORDER BY p.name"
        )

    def acts(self, report: Report) -> dict[str, Act]:
        return {judgement.pod.name: judgement.verdict.act for judgement in report.judgements}


@pytest.fixture
def world(stage: Stage, pod: str, monkeypatch: pytest.MonkeyPatch) -> World:
    """Two Pods of account 1, with both epochs at 2."""
    assert pod
    monkeypatch.setattr(restoring, "QUIET_SECONDS", 0)
    stage.job(1, state="completed")
    stage.rows("INSERT INTO installations VALUES (501, 1, now())")
    stage.rt.github = Crowd()
    world = World(stage, stage.rt.github)
    compare(stage.rt)  # type: ignore[arg-type]
    compare(stage.rt)  # type: ignore[arg-type]
    return world


def test_a_postgres_that_is_current_is_left_as_it_is(world: World) -> None:
    report = world.restore()
    assert (report.needed, report.let_go, world.claims()) == (False, False, [])


def test_a_busy_pod_that_postgres_forgot_gets_its_claim_back_and_is_not_scaled_down(world: World) -> None:
    busy, warm = sorted(world.stage.pods())
    world.stamp(busy, claim=4711)
    world.poller_exited(busy)
    name = world.runner(busy, busy=True)
    world.put_back()
    world.stage.rows("UPDATE pools SET replicas = 0")
    pool_id = world.stage.rows("SELECT id FROM pools")[0].id
    reconcile.run(pool_id=pool_id)
    assert world.claims() == []  # nothing is retired while that is known

    report = world.restore()

    assert world.acts(report) == {busy: Act.REBUILD, warm: Act.LEAVE}
    assert report.let_go
    (claim,) = world.claims()
    assert (claim.pod, claim.state, claim.stamp, claim.account_id) == (busy, "executing", "on", 1)
    assert (claim.runner_name, claim.installation_id, claim.scope) == (name, 501, "orgs/acme")
    assert claim.id > 4711
    assert world.stage.rows("SELECT runner_name, runner_id FROM mint_attempts WHERE claim_id = :id", id=claim.id)
    world.stage.rows("UPDATE pools SET replicas = 0")  # it had been read anew from the cluster
    reconcile.run(pool_id=pool_id)
    assert [(each.pod, each.purpose) for each in world.claims()] == [(busy, "job"), (warm, "retire")]


def test_a_second_restore_finds_everything_done(world: World) -> None:
    busy, warm = sorted(world.stage.pods())
    world.stamp(busy, claim=4711)
    world.poller_exited(busy)
    world.runner(busy, busy=True)
    world.stamp(warm, claim=4712)
    world.put_back()
    world.restore()
    before = world.claims()
    report = world.restore(anyway=True)
    assert world.acts(report)[busy] is Act.LEAVE
    assert [each.id for each in world.claims()] == [each.id for each in before]


def test_a_dry_run_changes_nothing(world: World) -> None:
    busy = min(world.stage.pods())
    world.stamp(busy, claim=4711)
    world.poller_exited(busy)
    world.runner(busy, busy=True)
    world.stage.rows("UPDATE epochs SET number = number - 1")
    before = world.stage.rows("SELECT * FROM epochs")
    report = world.restore(dry=True)
    assert (report.needed, report.let_go, world.acts(report)[busy]) == (True, False, Act.REBUILD)
    assert (world.stage.rows("SELECT * FROM epochs"), world.claims()) == (before, [])


def test_claim_from_before_the_copy_is_found_delivered(world: World) -> None:
    pod = min(world.stage.pods())
    world.stage.job(7)
    claim_id = world.stage.claim(pod, job_id=7, state="claimed")
    world.stamp(pod, claim=claim_id)
    world.poller_exited(pod)
    name = world.runner(pod, busy=True)
    world.put_back()
    world.restore()
    claim = world.stage.see(claim_id)
    assert (claim.state, claim.runner_name, claim.job_id) == ("executing", name, 7)
    assert claim.delivered_at is not None


def test_old_claim_ends_and_its_job_is_checked_when_its_pod_serves_a_later_claim(world: World) -> None:
    pod = min(world.stage.pods())
    world.stage.job(7)
    claim_id = world.stage.claim(pod, job_id=7, state="minted")
    world.stamp(pod, claim=claim_id + 40, owner=2)
    world.poller_exited(pod)
    world.runner(pod, busy=True)
    world.github.jobs[7] = ("completed", "success")
    world.put_back()
    world.restore()
    assert world.stage.see(claim_id).end_reason == "released"
    (claim,) = world.claims()
    assert (claim.state, claim.account_id, claim.job_id) == ("executing", 2, None)
    assert world.stage.rows("SELECT state, conclusion FROM jobs WHERE id = 7") == [("completed", "success")]
    assert world.stage.rows("SELECT login FROM accounts WHERE id = 2") == [("account-2",)]


def test_what_was_only_reserved_is_given_back_and_its_runner_deregistered(world: World) -> None:
    pod = min(world.stage.pods())
    world.stamp(pod, claim=4711)
    world.runner(pod, online=False)
    world.put_back()
    assert world.acts(world.restore())[pod] is Act.RELEASE
    (claim,) = world.claims()
    assert claim.state == "releasing"
    release.run(claim_id=claim.id)
    assert world.claims() == []
    assert world.github.deleted == [90]
    assert world.stage.pods()[pod].owner is None


def test_an_idle_runner_whose_job_is_not_known_is_a_spare(world: World) -> None:
    pod = min(world.stage.pods())
    world.stamp(pod, claim=4711)
    world.poller_exited(pod)
    world.runner(pod)
    world.put_back()
    world.restore()
    (claim,) = world.claims()
    assert (claim.state, claim.spare_since is not None) == ("delivered", True)


def test_rebuilt_repository_claim_has_its_id_and_ends_when_its_runner_is_gone(world: World) -> None:
    busy, stage = min(world.stage.pods()), world.stage
    stage.rows("UPDATE jobs SET scope = 'repos/acme/shop', repository_id = 5")
    world.stamp(busy, claim=4711)
    world.poller_exited(busy)
    world.runner(busy, busy=True)
    world.put_back()
    world.restore()
    (claim,) = world.claims()
    assert (claim.state, claim.scope, claim.repository_id) == ("executing", "repos/acme/shop", 5)

    world.github.runners.clear()  # its job is over, and its Pod hangs
    stage.rows("UPDATE claims SET changed_at = now() - interval '1 h', delivered_at = now() - interval '1 h'")
    for _ in range(2):
        finished_jobs.run()
        stage.later()

    assert (stage.see(claim.id).end_reason, world.github.deleted) == ("completed", [90])
    assert set(world.github.asked) == {"/repositories/5"}
    assert [(each.pod, each.purpose) for each in world.claims()] == [(busy, "retire")]


def test_a_claim_of_before_is_its_pods_whatever_its_repository_was_called(world: World) -> None:
    """Finished jobs keep the repository name of their time, and the oldest ones have no repository id."""
    pod, stage = min(world.stage.pods()), world.stage
    stage.job(2, state="completed")
    stage.job(7)
    stage.rows("UPDATE jobs SET scope = 'repos/acme/shop', queued_at = now() - interval '1 d' WHERE id <= 2")
    stage.rows("UPDATE jobs SET repository_id = 5 WHERE id IN (2, 7)")
    stage.rows("UPDATE jobs SET scope = 'repos/acme/store' WHERE id = 7")
    claim_id = stage.claim(pod, job_id=7, state="claimed")
    stage.rows("UPDATE claims SET scope = 'repos/acme/shop'")
    world.stamp(pod, claim=claim_id)
    world.poller_exited(pod)
    world.runner(pod, busy=True)
    world.put_back()
    assert world.acts(world.restore())[pod] is Act.EXECUTE
    assert (stage.see(claim_id).state, stage.see(claim_id).job_id) == ("executing", 7)
    assert sorted(world.github.asked) == ["/repos/acme/shop", "/repositories/5"]


@pytest.mark.parametrize("busy", [False, True])
def test_a_persistent_runner_keeps_a_claim_that_looks_undelivered(world: World, *, busy: bool) -> None:
    pod, stage = min(world.stage.pods()), world.stage
    stage.job(7)
    claim_id = stage.claim(pod, job_id=7, state="claimed")
    stage.rows("UPDATE claims SET purpose = 'register', job_id = NULL WHERE id = :id", id=claim_id)
    stage.rows("UPDATE jobs SET state = 'completed', completed_at = now()")
    world.stamp(pod, claim=claim_id)
    world.poller_exited(pod)
    name = world.runner(pod, busy=busy)
    world.put_back()
    assert world.acts(world.restore())[pod] is Act.REGISTER
    claim = stage.see(claim_id)
    assert (claim.state, claim.runner_name) == ("delivered", name)
    attempts = stage.rows("SELECT runner_name, runner_id FROM mint_attempts WHERE claim_id = :id", id=claim_id)
    assert [tuple(row) for row in attempts] == [(name, 90)]


def test_pod_with_an_unknown_state_is_left_alone_and_named(world: World) -> None:
    pod = min(world.stage.pods())
    world.stamp(pod, claim=4711, owner=99)
    world.poller_exited(pod)
    world.put_back()
    report = world.restore()
    assert [judgement.pod.name for judgement in report.undecided] == [pod]
    (claim,) = world.claims()
    assert (claim.state, claim.runner_name, claim.account_id) == ("executing", None, 99)


def test_a_github_that_may_answer_later_lets_nothing_go(world: World) -> None:
    pod = min(world.stage.pods())
    world.stamp(pod, claim=4711)
    world.put_back()
    world.github.broken = True
    with pytest.raises(NotRestored):
        world.restore()
    assert (world.claims(), world.stage.rows("SELECT older_since IS NULL FROM epochs")) == ([], [(False,)])
    world.github.broken = False
    assert world.restore().let_go


def test_jobs_that_were_queued_then_are_asked_for_before_any_is_matched(world: World) -> None:
    for job_id, said in ((7, ("completed", "success")), (8, ("queued", None)), (9, ("in_progress", None))):
        world.stage.job(job_id, state="queued")
        world.github.jobs[job_id] = said
    world.put_back()
    report = world.restore()
    assert report.jobs == {"completed": 1, "queued": 1, "in_progress": 1}
    assert world.stage.rows("SELECT id, state, hold_reason FROM jobs WHERE id > 1 ORDER BY id") == [
        (7, "completed", None),
        (8, "queued", None),
        (9, "running", "ask_github"),
    ]


def test_a_job_that_github_shows_as_queued_in_a_run_that_is_over_is_finished(world: World) -> None:
    world.stage.job(7, state="queued")
    world.github.run = ("completed", "startup_failure")
    world.put_back()
    world.restore()
    assert world.stage.rows("SELECT state, conclusion FROM jobs WHERE id = 7") == [("completed", "startup_failure")]


def test_the_epoch_rises_above_the_clusters_and_the_next_comparison_finds_all_well(world: World) -> None:
    world.put_back()
    world.restore()
    verdict = compare(world.stage.rt)  # type: ignore[arg-type]
    assert verdict is not None
    assert not verdict.older
    (row,) = world.stage.rows("SELECT number, older_since, trusted_until > now() AS trusted FROM epochs")
    assert (row.number, row.older_since, row.trusted) == (4, None, True)


class Killed(BaseException):
    """Simulated end of the process."""


def test_restore_killed_at_any_step_releases_nothing_and_the_next_finishes_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for claim, pod in enumerate(world.stage.pods(), 4711):
        world.stamp(pod, claim=claim)
        world.poller_exited(pod)
        world.runner(pod, busy=True)
    world.stage.job(7, state="queued")
    world.put_back()
    apply = restoring._Restore._apply
    done: list[str] = []

    def apply_one(self: Any, judgement: Any) -> None:
        if done:
            raise Killed
        apply(self, judgement)
        done.append(judgement.pod.name)

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    for place, replaced, claims in (
        (restoring._Restore, ("_apply", apply_one), 1),
        (models_restoring, ("hold_open_jobs", killed), 2),
        (restoring, ("write_epoch", killed), 2),
        (epochs, ("end_freeze", killed), 2),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, *replaced)
            with pytest.raises(Killed):
                world.restore()
        assert len(world.claims()) == claims
        assert world.stage.rows("SELECT 1 FROM epochs WHERE older_since IS NOT NULL")
    before = world.claims()
    assert world.restore().let_go
    assert world.claims() == before
    assert world.stage.rows("SELECT state, hold_reason FROM jobs WHERE id = 7") == [("queued", None)]


@pytest.mark.parametrize("place", ["_pods", "_apply", "_hold_jobs", "_end_freeze", "_ask_for_jobs"])
def test_lost_postgres_is_reported_with_what_to_do_and_the_next_restore_continues(
    world: World, postgres: Postgres, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    for claim, pod in enumerate(world.stage.pods(), 4711):
        world.stamp(pod, claim=claim)
        world.poller_exited(pod)
        world.runner(pod, busy=True)
    world.stage.job(7, state="queued")
    world.put_back()
    name = str(world.stage.rt.engine.url.database)
    server = create_engine(postgres.url("postgres"), isolation_level="AUTOCOMMIT")
    original = getattr(restoring._Restore, place)

    def admits(*, anybody: bool) -> None:
        with server.connect() as db:
            db.execute(text(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS {anybody}'))
            db.execute(
                text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"), {"name": name}
            )

    def cut(self: Any, *given: Any) -> Any:
        admits(anybody=False)
        return original(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(restoring._Restore, place, cut)
        with pytest.raises(StoreUnreachable, match="does not answer any more") as told:
            world.restore()
    admits(anybody=True)
    server.dispose()
    assert "\n" not in str(told.value)
    assert ("unresolved_jobs" if place == "_ask_for_jobs" else "run `ostler restore` again") in str(told.value)
    assert world.frozen() == (place != "_ask_for_jobs")
    assert world.restore().let_go == (place != "_ask_for_jobs")
    assert len(world.claims()) == 2


def test_restore_killed_while_it_checks_jobs_is_confirmed_and_leaves_them_held(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.stage.job(7, state="queued")
    world.put_back()

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    monkeypatch.setattr(restoring._Restore, "_ask", killed)
    with pytest.raises(Killed):
        world.restore()
    assert world.stage.rows("SELECT older_since, hold_reason FROM epochs, jobs WHERE jobs.id = 7") == [
        (None, "ask_github")
    ]


def test_a_job_is_asked_for_once_though_it_is_due_again(world: World) -> None:
    world.stage.rt.settings = changed(world.stage.rt.settings, unresolved_after=0)
    world.stage.job(9, state="queued")
    world.github.jobs[9] = ("in_progress", None)
    world.put_back()
    assert world.restore().jobs == {"in_progress": 1}


@pytest.mark.parametrize("busy", [True, False])
def test_a_claim_that_was_being_released_and_was_delivered_since_executes(world: World, busy: bool) -> None:
    pod = min(world.stage.pods())
    world.stage.job(7)
    claim_id = world.stage.claim(pod, job_id=7, state="claimed")
    world.stage.rows("UPDATE claims SET state = 'releasing', stamp = 'removing'")
    world.stamp(pod, claim=claim_id)
    world.poller_exited(pod)
    world.runner(pod, busy=busy)
    world.put_back()
    world.restore()
    claim = world.stage.see(claim_id)
    assert (claim.state, claim.stamp, claim.delivered_at is not None) == ("executing", "on", True)


def test_a_verdict_that_cannot_be_carried_out_lets_nothing_go(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    pod = min(world.stage.pods())
    world.stamp(pod, claim=4711)
    world.poller_exited(pod)
    world.runner(pod, busy=True)
    world.put_back()
    monkeypatch.setattr(claim_transitions, "move_claim", lambda *_, **__: None)
    with pytest.raises(NotRestored):
        world.restore()
    assert (world.claims(), world.stage.rows("SELECT older_since IS NULL FROM epochs")) == ([], [(False,)])


def test_no_pod_at_all_is_not_believed_while_there_are_live_claims(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.stage.job(7)
    world.stage.claim(min(world.stage.pods()), job_id=7, state="executing")
    world.put_back()
    monkeypatch.setattr(restoring, "list_pods", lambda *_, **__: [])
    with pytest.raises(NotRestored, match="1 live claims"):
        world.restore()
    assert world.frozen()
    assert world.stage.rows("SELECT 1 FROM runner_pods WHERE gone_at IS NOT NULL") == []
    assert world.restore(emptied=True).let_go


def test_a_cluster_without_the_epoch_for_which_the_rows_were_frozen_is_not_believed(world: World) -> None:
    world.put_back()
    path = f"/api/v1/namespaces/{world.stage.namespace}/configmaps/ostler-epoch"
    world.stage.kube.request("DELETE", path)
    with pytest.raises(NotRestored, match="epoch has disappeared"):
        world.restore()
    assert world.frozen()
    assert world.restore(emptied=True).let_go


def test_epochs_that_cannot_be_compared_are_no_proof_that_nothing_is_to_be_restored(world: World) -> None:
    path = f"/api/v1/namespaces/{world.stage.namespace}/configmaps/ostler-epoch"
    data = world.stage.kube.request("GET", path)["data"]
    body = {"data": dict.fromkeys(data, "strange")}
    world.stage.kube.request("PATCH", path, body=body, content_type="application/merge-patch+json")

    with pytest.raises(NotCompared, match="contains no epoch"):
        world.restore()
    assert not world.frozen()


def test_one_account_for_which_github_does_not_answer_keeps_its_pods_and_no_others(world: World) -> None:
    theirs, ours = sorted(world.stage.pods())
    world.stage.rows("INSERT INTO accounts VALUES (2, 'beta', 1, 10, 100000, 100000, '[]', now())")
    world.stage.rows("INSERT INTO installations VALUES (502, 2, now())")
    world.stamp(theirs, claim=4711, owner=2)
    world.stamp(ours, claim=4712)
    world.put_back()
    world.github.down = {502}
    report = world.restore()
    assert report.let_go
    assert world.acts(report) == {theirs: Act.KEEP, ours: Act.RELEASE}


def test_a_pod_whose_claim_cannot_be_written_is_named_and_the_others_get_theirs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = sorted(world.stage.pods())
    for claim, pod in enumerate((bad, good), 4711):
        world.stamp(pod, claim=claim)
        world.poller_exited(pod)
        world.runner(pod, busy=True)
    world.put_back()
    uid, apply = world.stage.pods()[bad].uid, models_restoring.apply

    def fail_for_one(db: Connection, pod: Any, *args: Any, **more: Any) -> bool:
        if pod.uid == uid:
            db.execute(text("SELECT 1 / 0"))
        return apply(db, pod, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(models_restoring, "apply", fail_for_one)
        with pytest.raises(NotRestored, match=bad):
            world.restore()
    assert ([claim.pod for claim in world.claims()], world.frozen()) == ([good], True)
    assert world.restore().let_go


def test_a_busy_pod_of_a_pool_without_a_row_lets_nothing_go(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    pod = min(world.stage.pods())
    world.stamp(pod, claim=4711)
    world.poller_exited(pod)
    world.put_back()
    with monkeypatch.context() as patch:
        patch.setattr(models_restoring, "pods", lambda *_: {})
        with pytest.raises(NotRestored, match=f"{pod}.*pool"):
            world.restore()
    assert world.frozen()
    assert world.restore().let_go


def test_undetected_restore_requests_redelivery_for_full_retention(world: World) -> None:
    lost = "SELECT now() - lost_from > interval '71 h' AS long FROM epochs"
    world.restore(anyway=True)
    assert world.stage.rows(lost) == [(True,)]
    world.stage.rows("UPDATE epochs SET lost_from = now() - interval '71.5 h'")
    world.put_back()
    assert world.stage.rows(lost) == [(True,)]
    world.restore()
    world.stage.rows("UPDATE epochs SET lost_from = now() - interval '100 h'")
    world.put_back()
    assert world.stage.rows(lost) == [(False,)]

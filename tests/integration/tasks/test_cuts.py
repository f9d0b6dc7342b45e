"""A delivered JIT that never arrived: the stamp is removed only if both the Pod and GitHub prove it (law L3)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from models.claims import cuts
from models.claims.cuts import pollers_ended
from models.claims.deliver import Delivery, delivered_before
from models.db.engine import transaction
from ostler.clock import utcnow
from tasks.claims.retire import retire
from tasks.claims.stamp import stamp, unstamp
from tasks.pools.reconcile import reconcile
from tasks.pools.watch_reports import pods_changed, poller_ended
from tasks.sweeps.missing_stamps import missing_stamps
from tasks.sweeps.resume import resume
from tasks.sweeps.unused_runners import unused_runners
from tests.integration.tasks.conftest import RUNNER, Stage, StubGitHub
from tests.integration.tasks.test_may_hold_jit import claims, put_stamp


@pytest.fixture
def cut(stage: Stage, pod: str, github: StubGitHub) -> int:
    """Return a claim that was delivered 20 s ago to a stamped Pod that still polls. Its runner is offline."""
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="delivered", age=20, runner=RUNNER)
    stage.rows("UPDATE claims SET stamp = 'on', jit = 'x' WHERE id = :id", id=claim)
    stage.rows("UPDATE runner_pods SET poller_ended_at = NULL")
    put_stamp(stage, pod)
    stage.poll_on(pod)
    github.runner = "offline"
    return claim


def resume_and_unstamp(stage: Stage) -> None:
    resume.run()
    for message in stage.outbox.take("ostler.unstamp"):
        unstamp.run(**message)


def poll_again(stage: Stage, claim: int, pod: str) -> Delivery | None:
    uid, now = stage.pods()[pod].uid, utcnow()
    return transaction(
        stage.rt.engine, lambda db: delivered_before(db, claim_id=claim, pod_uid=uid, now=now, who="web")
    )


def let_pass(stage: Stage, seconds: float) -> None:
    stage.rows(
        "UPDATE claims SET due_at = due_at - make_interval(secs => :s), "
        "stamp_after = stamp_after - make_interval(secs => :s)",
        s=seconds,
    )


@pytest.mark.parametrize("runner", ["offline", None])
def test_a_pod_that_is_cut_off_loses_its_stamp_and_keeps_its_claim(
    stage: Stage, pod: str, github: StubGitHub, cut: int, runner: str | None
) -> None:
    github.runner = runner
    resume_and_unstamp(stage)
    assert stage.pods()[pod].owner is None
    seen = stage.see(cut)
    assert (seen.state, seen.stamp, seen.job_state) == ("delivered", "off", "claimed")
    assert github.deleted == []


def test_the_stamp_returns_five_seconds_after_the_next_answer(stage: Stage, pod: str, cut: int) -> None:
    resume_and_unstamp(stage)
    let_pass(stage, 60)
    stage.rows("UPDATE claims SET delivered_at = now() - interval '80 s'")
    missing_stamps.run()
    resume.run()
    assert stage.outbox.take("ostler.stamp") == []  # nothing was answered yet

    answered = poll_again(stage, cut, pod)
    assert answered is not None
    assert answered.jit == b"x"
    stamp.run(claim_id=cut)
    assert stage.pods()[pod].owner is None
    let_pass(stage, 7)
    resume.run()
    for message in stage.outbox.take("ostler.stamp"):
        stamp.run(**message)
    assert stage.pods()[pod].owner == 1
    assert stage.see(cut).stamp == "on"


class TestKept:
    def test_pod_whose_poller_ends_between_check_and_unstamp_keeps_its_stamp(
        self, stage: Stage, pod: str, cut: int
    ) -> None:
        seen = transaction(stage.rt.engine, lambda db: cuts.suspect(db, cut))
        assert seen is not None
        transaction(stage.rt.engine, lambda db: pollers_ended(db, [stage.pods()[pod].uid], now=utcnow()))
        begun = transaction(
            stage.rt.engine, lambda db: cuts.begin(db, seen, why="cut", due_after=10, now=utcnow(), who="test")
        )
        assert begun is None
        assert stage.see(cut).stamp == "on"

    @pytest.mark.parametrize("runner", ["idle", "busy"])
    def test_a_pod_whose_runner_is_online_keeps_its_stamp(
        self, stage: Stage, pod: str, github: StubGitHub, cut: int, runner: str
    ) -> None:
        github.runner = runner
        resume_and_unstamp(stage)
        assert (stage.pods()[pod].owner, stage.see(cut).stamp) == (1, "on")

    def test_a_pod_that_executes_keeps_its_stamp(self, stage: Stage, pod: str, cut: int) -> None:
        stage.execute_job(pod)
        resume_and_unstamp(stage)
        assert (stage.pods()[pod].owner, stage.see(cut).stamp) == (1, "on")
        resume.run()
        assert stage.outbox.take("ostler.unstamp") == []

    def test_a_pod_that_was_served_a_moment_ago_keeps_its_stamp(self, stage: Stage, pod: str, cut: int) -> None:
        stage.rows("UPDATE claims SET delivered_at = now() - interval '5 s'")
        resume_and_unstamp(stage)
        unstamp.run(claim_id=cut)
        assert (stage.pods()[pod].owner, stage.see(cut).stamp) == (1, "on")

    def test_a_pod_keeps_its_stamp_while_the_epoch_is_not_confirmed(self, stage: Stage, pod: str, cut: int) -> None:
        stage.rows("UPDATE epochs SET trusted_until = now() - interval '1 s'")
        resume_and_unstamp(stage)
        unstamp.run(claim_id=cut)
        assert (stage.pods()[pod].owner, stage.see(cut).stamp) == (1, "on")

    def test_ordinary_delivery_is_not_checked(self, stage: Stage, pod: str, cut: int) -> None:
        stage.execute_job(pod)
        (row,) = stage.rows("SELECT id FROM pools")
        reconcile.run(pool_id=row.id)
        resume.run()
        assert stage.outbox.take("ostler.unstamp") == []
        assert stage.see(cut).due_at is None


class TestJitThatArrivesAfterTheLook:
    @pytest.fixture
    def arrives(self, stage: Stage, pod: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the JIT arrive between the check of the Pod and the un-stamp."""
        find = StubGitHub.find_runner

        def then(github: StubGitHub, **asked: Any) -> Any:
            found = find(github, **asked)
            stage.execute_job(pod)
            return found

        monkeypatch.setattr(StubGitHub, "find_runner", then)

    @pytest.mark.usefixtures("arrives")
    def test_the_stamp_returns_when_the_watch_sees_the_end_of_the_poller(
        self, stage: Stage, pod: str, cut: int
    ) -> None:
        resume_and_unstamp(stage)
        assert stage.see(cut).stamp == "off"
        pods_changed.run(namespace=stage.namespace, unstamped=[stage.pods()[pod].uid])
        (message,) = stage.outbox.take("ostler.poller_ended")
        poller_ended.run(**message)
        (message,) = stage.outbox.take("ostler.stamp")
        stamp.run(**message)
        assert (stage.pods()[pod].owner, stage.see(cut).stamp) == (1, "on")

    @pytest.mark.usefixtures("arrives")
    def test_the_stamp_returns_when_the_reconciler_sees_the_end_of_the_poller(
        self, stage: Stage, pod: str, cut: int
    ) -> None:
        resume_and_unstamp(stage)
        (row,) = stage.rows("SELECT id FROM pools")
        reconcile.run(pool_id=row.id)
        resume.run()
        for message in stage.outbox.take("ostler.stamp"):
            stamp.run(**message)
        assert (stage.pods()[pod].owner, stage.see(cut).stamp) == (1, "on")

    def test_answer_between_check_and_unstamp_cancels_what_is_not_done_yet(
        self, stage: Stage, pod: str, cut: int
    ) -> None:
        stage.rows("UPDATE claims SET stamp = 'removing'")
        assert poll_again(stage, cut, pod) is not None
        assert stage.see(cut).stamp == "off"
        unstamp.run(claim_id=cut)
        assert stage.pods()[pod].owner == 1


def test_a_killed_unstamp_is_repeated_by_resume(stage: Stage, pod: str, cut: int) -> None:
    stage.rows("UPDATE claims SET stamp = 'removing', due_at = now() - interval '1 s' WHERE id = :id", id=cut)
    resume_and_unstamp(stage)
    assert (stage.pods()[pod].owner, stage.see(cut).stamp) == (None, "off")


def test_a_runner_is_given_time_while_its_poller_runs(stage: Stage, cut: int) -> None:
    stage.rows("UPDATE claims SET delivered_at = now() - interval '205 s' WHERE id = :id", id=cut)
    unused_runners.run()
    assert stage.see(cut).state == "delivered"
    stage.rows("UPDATE claims SET delivered_at = now() - interval '211 s' WHERE id = :id", id=cut)
    unused_runners.run()
    assert stage.see(cut).state == "releasing"


def test_a_runner_is_given_a_minute_from_the_end_of_its_poller(stage: Stage, pod: str, cut: int) -> None:
    uid = stage.pods()[pod].uid
    stage.rows("UPDATE claims SET delivered_at = now() - interval '200 s' WHERE id = :id", id=cut)
    at = utcnow() - timedelta(seconds=50)
    transaction(stage.rt.engine, lambda db: pollers_ended(db, [uid], now=at))
    unused_runners.run()
    assert stage.see(cut).state == "delivered"


def test_the_end_of_a_poller_returns_the_stamp_of_its_own_pod_alone(stage: Stage, pod: str, cut: int) -> None:
    stage.rows("UPDATE claims SET stamp = 'off' WHERE id = :id", id=cut)
    assert transaction(stage.rt.engine, lambda db: pollers_ended(db, ["another"], now=utcnow())) == []
    assert transaction(stage.rt.engine, lambda db: pollers_ended(db, [stage.pods()[pod].uid], now=utcnow())) == [cut]


def test_a_retirement_deregisters_a_runner_that_was_never_delivered(stage: Stage, pod: str, github: StubGitHub) -> None:
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="minted", runner=RUNNER)
    stage.rows("UPDATE claims SET state = 'ended', end_reason = 'released', ended_at = now() WHERE id = :id", id=claim)
    github.runner = "offline"
    retire.run(claim_id=stage.retire_claim(pod))
    assert github.deleted == [77]
    assert pod not in stage.pods()
    assert claims(stage, "retire") == [("ended", "retired")]


@pytest.mark.parametrize(
    ("change", "asked"),
    [
        ("UPDATE claims SET stamp = 'on'", 1),
        ("UPDATE claims SET state = 'executing'", 0),
        ("UPDATE runner_pods SET gone_at = now()", 0),
    ],
    ids=["delivered", "executing", "gone"],
)
def test_only_the_pod_of_a_delivered_claim_that_is_not_gone_is_suspected(
    clusterless: Stage, change: str, asked: int
) -> None:
    clusterless.add_pod("pod-1")
    clusterless.job(7)
    claim = clusterless.claim("pod-1", job_id=7, state="delivered", age=20, runner=RUNNER)
    clusterless.rows("UPDATE claims SET stamp = 'on'")
    clusterless.rows("UPDATE runner_pods SET poller_ended_at = NULL")
    clusterless.rows(change)
    found = transaction(
        clusterless.rt.engine, lambda db: cuts.suspects(db, cut_off_after=15, due_after=10, now=utcnow())
    )
    assert found == [claim] * asked

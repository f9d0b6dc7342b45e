"""The stamp is safety, not a gate (law L10): Pod PATCHes that fail for minutes delay no JIT and no job."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any, NoReturn

import pytest

from models.claims.deliver import Delivery, deliver
from models.db.engine import transaction
from models.state import offers
from models.state.claim_transitions import execute_unidentified
from ostler import clock
from ostler.clock import Clock, utcnow
from ostler.errors import RateLimited, Retryable
from rules.claims.poll_answers import Verdict, answer
from tasks.claims import release as of_release
from tasks.claims import stamp as of_stamp
from tasks.claims.release import release
from tasks.claims.stamp import stamp, unstamp
from tasks.sweeps import resume as of_resume
from tasks.sweeps.resume import resume
from tasks.sweeps.stale_claims import stale_claims
from tests.integration.tasks.conftest import Stage


@pytest.fixture
def removing(clusterless: Stage, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return a minted claim whose stamp is being removed while every PATCH of a Pod fails."""
    stage = clusterless

    def fail(*_: Any, **__: Any) -> NoReturn:
        raise Retryable("the mutating webhook is broken")

    def start(*_: Any, **__: Any) -> None:
        return

    for module in (of_stamp, of_release):
        monkeypatch.setattr(module, "write", fail)
        monkeypatch.setattr(module, "read_pod", fail)
    monkeypatch.setattr(of_resume, "start_chains", start)
    stage.add_pod("pod-1")
    stage.job(1)
    claim = stage.claim("pod-1", job_id=1, state="minted", age=60)
    stage.rows("UPDATE claims SET jit = 'x' WHERE id = :id", id=claim)
    resume.run()
    assert stage.see(claim).stamp == "removing"
    with pytest.raises(Retryable):
        unstamp.run(claim_id=claim)
    return claim


def poll(stage: Stage, claim: int, poll_id: str, *, again: bool = False) -> Delivery | None:
    """Poll as Pod `pod-1`, and return the delivery or None."""
    now = utcnow()
    polling = offers.Polling("pod-1", "none", "pod-1", poll_id, now + timedelta(seconds=60), again=again)
    (seen,) = transaction(stage.rt.engine, lambda db: offers.offer(db, [polling], web_id="w", now=now))
    verdict = answer(seen.facts)
    if verdict.verdict is not Verdict.DELIVER:
        return None
    return transaction(
        stage.rt.engine,
        lambda db: deliver(
            db,
            claim_id=claim,
            pod_uid="pod-1",
            poll_id=poll_id,
            cancels_unstamp=verdict.cancels_unstamp,
            now=utcnow(),
            who="web",
        ),
    )


class TestPoll:
    def test_a_polling_pod_gets_its_jit_when_its_stamp_cannot_be_removed(
        self, clusterless: Stage, removing: int
    ) -> None:
        assert poll(clusterless, removing, "poll-9") is not None
        seen = clusterless.see(removing)
        assert (seen.state, seen.stamp) == ("delivered", "off")
        events = clusterless.rows("SELECT transition FROM claim_events WHERE claim_id = :id ORDER BY id", id=removing)
        assert [event.transition for event in events][-2:] == ["cancel_unstamp", "deliver"]

    def test_a_poll_older_than_the_unstamp_does_not_cancel_it(self, clusterless: Stage, removing: int) -> None:
        assert poll(clusterless, removing, "poll-1", again=True) is None
        assert clusterless.see(removing).stamp == "removing"

    def test_the_stamp_is_refused_directly_behind_the_answer_and_put_on_by_resume_later(
        self, clusterless: Stage, removing: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        poll(clusterless, removing, "poll-9")
        written: list[int] = []

        def note(_rt: Any, work: Any, **_: Any) -> NoReturn:
            written.append(work.claim_id)
            raise Retryable("later")

        monkeypatch.setattr(of_stamp, "write", note)
        stamp.run(claim_id=removing)
        resume.run()
        assert written == []
        assert clusterless.outbox.take("ostler.stamp") == []

        clusterless.rows(
            "UPDATE claims SET due_at = due_at - interval '7 s', stamp_after = stamp_after - interval '7 s'"
        )
        resume.run()
        (message,) = clusterless.outbox.take("ostler.stamp")
        stamp.run(**message)
        assert written == [removing]

    def test_stamp_returns_at_once_when_github_shows_the_job_running(self, clusterless: Stage, removing: int) -> None:
        poll(clusterless, removing, "poll-9")
        transaction(
            clusterless.rt.engine, lambda db: execute_unidentified(db, removing, now=utcnow(), who="test", why="test")
        )
        resume.run()
        assert clusterless.outbox.take("ostler.stamp") == [{"claim_id": removing}]


class TestRequeue:
    def release(self, stage: Stage, claim: int, *, since: str) -> None:
        stage.rows(
            "UPDATE claims SET created_at = now() - interval '10 min', leased_until = NULL WHERE id = :id", id=claim
        )
        stale_claims.run()
        stage.rows(f"UPDATE claims SET changed_at = now() - interval '{since}' WHERE id = :id", id=claim)  # noqa: S608
        release.run(claim_id=claim)

    def retire_claims(self, stage: Stage) -> list[str]:
        return [row.state for row in stage.rows("SELECT state FROM claims WHERE purpose = 'retire'")]

    def test_a_job_is_queued_again_when_the_stamp_of_its_claim_cannot_be_removed(
        self, clusterless: Stage, removing: int
    ) -> None:
        self.release(clusterless, removing, since="21 s")
        seen = clusterless.see(removing)
        assert (seen.state, seen.end_reason, seen.job_state) == ("ended", "released", "queued")
        assert self.retire_claims(clusterless) == ["claimed"]
        assert len(clusterless.outbox.take("ostler.retire")) == 1

    def test_a_release_keeps_trying_before_its_time_is_over(self, clusterless: Stage, removing: int) -> None:
        with pytest.raises(Retryable):
            self.release(clusterless, removing, since="5 s")
        seen = clusterless.see(removing)
        assert (seen.state, seen.job_state) == ("releasing", "claimed")

    @pytest.mark.parametrize(("since", "job_state"), [("21 s", "queued"), ("5 s", "claimed")])
    def test_a_job_is_queued_again_without_a_confirmed_epoch(
        self, clusterless: Stage, removing: int, since: str, job_state: str
    ) -> None:
        clusterless.rows("UPDATE epochs SET trusted_until = now() - interval '1 s'")
        self.release(clusterless, removing, since=since)
        assert clusterless.see(removing).job_state == job_state
        assert self.retire_claims(clusterless) == (["claimed"] if job_state == "queued" else [])

    def test_a_release_of_a_moment_ago_is_not_overdue_after_the_clock_of_postgres_jumped(
        self, clusterless: Stage, removing: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        jumped = Clock()
        jumped.measure(utcnow)
        jumped.measure(lambda: utcnow() + timedelta(seconds=60))
        monkeypatch.setattr(clock, "process", jumped)
        with pytest.raises(Retryable):
            self.release(clusterless, removing, since="5 s")
        assert clusterless.see(removing).state == "releasing"
        assert self.retire_claims(clusterless) == []

    @pytest.mark.parametrize("error", [Retryable("reset"), RateLimited("slow down", after=60.0)])
    def test_a_job_is_queued_again_when_github_fails_the_deregistration(
        self, clusterless: Stage, removing: int, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        def fail(*_: Any, **__: Any) -> NoReturn:
            raise error

        monkeypatch.setattr(of_release, "deregister", fail)
        self.release(clusterless, removing, since="21 s")
        seen = clusterless.see(removing)
        assert (seen.state, seen.end_reason, seen.job_state) == ("ended", "released", "queued")
        # The cluster fails as well here. A Pod that can be un-stamped stays warm: test_failed_steps.py.
        assert self.retire_claims(clusterless) == ["claimed"]

    @pytest.mark.parametrize("error", [Retryable("reset"), RateLimited("slow down", after=60.0)])
    def test_overdue_release_is_retried_when_github_fails_the_deregistration(
        self, clusterless: Stage, removing: int, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        def fail(*_: Any, **__: Any) -> NoReturn:
            raise error

        monkeypatch.setattr(of_release, "deregister", fail)
        with suppress(Retryable):
            self.release(clusterless, removing, since="5 s")
        (row,) = clusterless.rows("SELECT job_id, due_at < now() + interval '16 s' AS soon FROM claims")
        assert (clusterless.see(removing).state, row.soon) == ("releasing", True)

    def test_a_delivered_claim_waits_for_github(
        self, clusterless: Stage, removing: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: Any, **__: Any) -> NoReturn:
            raise RateLimited("slow down", after=60.0)

        monkeypatch.setattr(of_release, "deregister", fail)
        stage = clusterless
        stage.rows("UPDATE claims SET delivered_at = now(), state = 'releasing', release_reason = 'x'")
        stage.rows("UPDATE claims SET changed_at = now() - interval '1 h', leased_until = NULL")
        release.run(claim_id=removing)
        assert stage.see(removing).job_state == "claimed"
        assert self.retire_claims(stage) == []

    def test_no_job_is_queued_again_while_postgres_is_older_than_the_cluster(
        self, clusterless: Stage, removing: int
    ) -> None:
        stage = clusterless
        stage.rows("UPDATE claims SET state = 'releasing', release_reason = 'x', leased_until = NULL")
        stage.rows("UPDATE claims SET changed_at = now() - interval '1 h'")
        stage.rows("UPDATE epochs SET older_since = now(), why = 'test'")
        release.run(claim_id=removing)
        assert stage.see(removing).job_state == "claimed"

    def test_a_delivered_claim_waits_for_a_confirmed_epoch(self, clusterless: Stage, removing: int) -> None:
        stage = clusterless
        stage.rows("UPDATE claims SET delivered_at = now(), state = 'releasing', release_reason = 'x'")
        stage.rows("UPDATE claims SET changed_at = now() - interval '1 h', leased_until = NULL")
        stage.rows("UPDATE epochs SET trusted_until = now() - interval '1 s'")
        release.run(claim_id=removing)
        assert stage.see(removing).job_state == "claimed"

    def test_a_late_delivery_of_the_old_claim_is_refused(self, clusterless: Stage, removing: int) -> None:
        self.release(clusterless, removing, since="21 s")
        now = utcnow()
        handed = transaction(
            clusterless.rt.engine,
            lambda db: deliver(
                db, claim_id=removing, pod_uid="pod-1", poll_id="poll-1", cancels_unstamp=True, now=now, who="web"
            ),
        )
        assert handed is None

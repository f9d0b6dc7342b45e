"""A release or retirement with a failed call: its lease is given back, and `resume` repeats it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection

from k8s_adapters.calls.client import MERGE_PATCH
from k8s_adapters.runners.runners import delete_runner
from k8s_adapters.runners.stamps import STAMP_POLICY, StampOutcome, StampResult
from k8s_adapters.runners.stamps import unstamp as take_off
from models.claims import releases, steps
from models.claims import resume as resume_rows
from models.db.engine import transaction
from models.state import claim_leases, claim_transitions, stalls
from ostler.clock import utcnow
from ostler.errors import Conflict, Forbidden, RateLimited, Retryable, UpstreamError
from ostler.reasons import meaning_of
from rules.claims.stalls import Cause
from tasks.claims import annotation, postpone
from tasks.claims import release as of_release
from tasks.claims import retire as of_retire
from tasks.claims.retire import retire
from tasks.claims.stamp import stamp
from tasks.sweeps.resume import resume
from tests.integration.tasks.conftest import RUNNER, Stage, StubGitHub

FAILURES = [
    (Retryable("503"), 2),
    (Conflict("409"), 2),
    (RateLimited("429", after=7), 7),
    (RateLimited("429", after=600), 60),
    (Forbidden("403"), 20),
]
"""Errors of an upstream, each with the seconds until it is asked again."""


@pytest.fixture(autouse=True)
def _last_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each failure follow the last retry by Celery. `test_celery_retries` tests the retries."""
    monkeypatch.setattr(postpone, "wait_for_retry", lambda _: None)


def failing(error: UpstreamError) -> Callable[..., Any]:
    """Return a call that fails with this error."""

    def fail(*_args: object, **_kwargs: object) -> None:
        raise error

    return fail


def is_left_to_resume(stage: Stage, claim: int, error: UpstreamError, wait: float, *, since: datetime) -> None:
    """Assert that a claim has no lease, stores the error, is not a lost step, and is due `wait` seconds after a run.

    `since` is a time just before that run.
    """
    row = stage.see(claim)
    assert (row.ended_at, row.leased_until, row.last_error) == (None, None, meaning_of(error))
    assert_due(row.due_at, wait, since=since)
    stage.rows("UPDATE claims SET due_at = now() + interval '1 min'")
    resume.run()
    assert stage.outbox.sent == []
    stage.rows("UPDATE claims SET due_at = now() - interval '1 s'")
    assert lost_for(stage) == 0
    resume.run()


def assert_due(due_at: datetime, wait: float, *, since: datetime) -> None:
    """Assert that a claim is due `wait` seconds after a run that began just after `since` and has ended.

    The wait grows with the age of a step, and the age grows at most by the time that has passed.
    """
    passed = (utcnow() - since).total_seconds()
    assert wait <= (due_at - since).total_seconds() <= wait + 2 * passed


def lost_for(stage: Stage) -> float:
    return transaction(stage.rt.engine, lambda db: stalls.oldest(db, now=utcnow()))[Cause.MESSAGE_LOST]


@pytest.mark.parametrize(("error", "wait"), FAILURES[:4])
def test_a_release_whose_un_stamp_fails(
    stage: Stage, pod: str, monkeypatch: pytest.MonkeyPatch, error: UpstreamError, wait: float
) -> None:
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="claimed")
    with monkeypatch.context() as broken:
        broken.setattr(of_release, "write", failing(error))
        began = utcnow()
        with pytest.raises(type(error)):
            stage.release(claim)
    is_left_to_resume(stage, claim, error, wait, since=began)

    stage.released()

    assert (stage.see(claim).end_reason, stage.see(claim).job_state) == ("released", "queued")
    assert pod in stage.pods()


@pytest.mark.parametrize("state", ["minted", "delivered"])
def test_a_release_that_github_fails(stage: Stage, pod: str, github: StubGitHub, state: str) -> None:
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state=state, runner=RUNNER)
    github.broken = True
    began = utcnow()
    with pytest.raises(Retryable):
        stage.release(claim)
    is_left_to_resume(stage, claim, Retryable("down"), 2, since=began)
    github.broken = False

    stage.released()

    assert stage.see(claim).ended_at is not None
    assert stage.see(claim).job_state == "queued"


def test_a_release_that_github_fails_for_long_leaves_its_pod_warm(stage: Stage, pod: str, github: StubGitHub) -> None:
    github.broken = True
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="minted", runner=RUNNER)
    with pytest.raises(Retryable):
        stage.release(claim)
    stage.rows("UPDATE claims SET changed_at = now() - interval '21 s', due_at = now()")
    stage.release(claim)

    assert (stage.see(claim).end_reason, stage.see(claim).job_state) == ("released", "queued")
    assert stage.rows("SELECT 1 FROM claims WHERE purpose = 'retire'") == []
    (attempt,) = stage.rows("SELECT outcome FROM mint_attempts")
    assert attempt.outcome == "minted", "whoever looks for orphaned runners finds it"


@pytest.mark.parametrize("call", ["get_pod", "delete_runner"])
@pytest.mark.parametrize(("error", "wait"), FAILURES)
def test_a_retirement_that_the_cluster_fails(
    stage: Stage, pod: str, monkeypatch: pytest.MonkeyPatch, call: str, error: UpstreamError, wait: float
) -> None:
    claim = stage.retire_claim(pod)
    with monkeypatch.context() as broken:
        broken.setattr(of_retire, call, failing(error))
        began = utcnow()
        with pytest.raises(type(error)):
            retire.run(claim_id=claim)
    is_left_to_resume(stage, claim, error, wait, since=began)

    for message in stage.outbox.take("ostler.retire"):
        retire.run(**message)

    assert stage.see(claim).end_reason == "retired"
    assert pod not in stage.pods()


def test_the_longer_it_was_tried_the_longer_it_waits(stage: Stage, pod: str, github: StubGitHub) -> None:
    github.broken = True
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="delivered", runner=RUNNER)
    for tried_for, wait in ((3, 2), (12, 6), (600, 20)):
        with pytest.raises(Retryable):
            stage.release(claim)
        began = utcnow()
        stage.rows("UPDATE claims SET changed_at = now() - make_interval(secs => :s)", s=tried_for)
        with pytest.raises(Retryable):
            stage.release(claim)
        assert_due(stage.see(claim).due_at, wait, since=began)


def test_a_release_whose_annotation_moves_twice_is_left_to_resume(
    stage: Stage, pod: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="claimed")
    moved = StampResult(outcome=StampOutcome.MOVED_ON, seen="another", owner=None)
    monkeypatch.setattr(of_release, "write", lambda *_, **__: moved)
    stage.release(claim)
    row = stage.see(claim)
    assert (row.state, row.leased_until, row.last_error) == (
        "releasing",
        None,
        "another client changed the annotation of the Pod",
    )
    assert row.due_at <= utcnow()


def test_delivered_claim_is_released_at_once_when_it_loses_its_job_during_the_check(
    stage: Stage, pod: str, github: StubGitHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="delivered", runner=RUNNER)

    def meanwhile(**_: object) -> None:
        stage.rows("UPDATE claims SET job_id = NULL")

    with monkeypatch.context() as asked:
        asked.setattr(StubGitHub, "get_job", lambda _self, **_: meanwhile())
        stage.release(claim)
    row = stage.see(claim)
    assert (row.state, row.leased_until, row.last_error) == (
        "releasing",
        None,
        "the claim lost its job during the release",
    )
    resume.run()
    stage.released()
    assert stage.see(claim).end_reason is not None
    assert github.deleted == [77]


def test_a_runner_that_is_busy_though_its_jit_never_left_us_is_asked_for_again(
    stage: Stage, pod: str, github: StubGitHub
) -> None:
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="minted", runner=RUNNER)
    github.runner = "busy"
    began = utcnow()
    stage.release(claim)
    row = stage.see(claim)
    assert (row.state, row.leased_until) == ("releasing", None)
    assert_due(row.due_at, 20, since=began)
    assert pod in stage.pods()


def test_a_release_that_is_lost_after_one_that_failed_counts_as_lost(
    stage: Stage, pod: str, github: StubGitHub
) -> None:
    github.broken = True
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="minted", runner=RUNNER)
    with pytest.raises(Retryable):
        stage.release(claim)
    stage.rows("UPDATE claims SET due_at = now() - interval '1 s'")
    resume.run()
    stage.outbox.take("ostler.release")
    assert lost_for(stage) == 0
    stage.rows("UPDATE claims SET due_at = now() - interval '1 s', changed_at = now() - interval '11 s'")
    assert lost_for(stage) >= 11


def test_release_requested_while_a_mint_fails_does_not_wait_for_its_retry(stage: Stage, pod: str) -> None:
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="claimed")

    def mint_that_waits(db: Connection) -> None:
        work = steps.begin_mint(db, claim, chain_no=None, suffix="abcdef01", now=utcnow())
        assert work is not None
        assert claim_transitions.request_release(db, claim, reason="cancelled", now=utcnow(), who="test")
        claim_leases.give_back(db, work, due_at=utcnow() + timedelta(minutes=5), error="RateLimited")

    transaction(stage.rt.engine, mint_that_waits)

    row = stage.see(claim)
    assert (row.state, row.leased_until, row.last_error) == ("releasing", None, None)
    assert (row.due_at - utcnow()).total_seconds() <= 10


def test_late_unstamp_changes_nothing_when_the_pod_serves_another_claim(
    stage: Stage, pod: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="claimed")
    late: list[releases.ReleaseWork] = []

    def hang(_rt: object, work: releases.ReleaseWork, **_: object) -> None:
        late.append(work)
        raise Retryable("timed out")

    with monkeypatch.context() as broken:
        broken.setattr(of_release, "write", hang)
        with pytest.raises(Retryable):
            stage.release(claim)
    stage.rows("UPDATE claims SET due_at = now() - interval '1 s'")
    resume.run()
    stage.released()
    stage.job(8)
    other = stage.claim(pod, job_id=8, state="claimed")
    stage.rows("UPDATE claims SET stamp = 'none' WHERE id = :id", id=other)
    stamp.run(claim_id=other)
    stamped = stage.pods()[pod]

    (work,) = late
    result = take_off(
        stage.kube,
        namespace=work.namespace,
        name=work.pod_name,
        uid=work.pod_uid,
        expected=work.expected,
        value=work.value,
        policy=STAMP_POLICY,
    )

    assert result.outcome is StampOutcome.MOVED_ON
    assert stage.pods()[pod] == stamped
    assert stamped.owner == 1


def test_a_release_whose_un_stamp_was_applied_before_it_failed(
    stage: Stage, pod: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="claimed")

    def cut(*args: Any, **kwargs: Any) -> None:
        annotation.write(*args, **kwargs)
        raise Retryable("connection reset")

    with monkeypatch.context() as broken:
        broken.setattr(of_release, "write", cut)
        with pytest.raises(Retryable):
            stage.release(claim)
    stage.rows("UPDATE claims SET due_at = now() - interval '1 s'")
    resume.run()
    stage.released()

    assert stage.see(claim).end_reason == "released"
    assert stage.pods()[pod].owner is None


def test_a_step_that_was_overtaken_gives_no_lease_back_that_is_anothers(
    stage: Stage, pod: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = stage.retire_claim(pod)

    def stop_for_a_while(*_: object, **__: object) -> None:
        stage.rows("UPDATE claims SET leased_until = now() + interval '20 s', due_at = now() + interval '20 s'")
        raise Retryable("timed out")

    with monkeypatch.context() as broken:
        broken.setattr(of_retire, "get_pod", stop_for_a_while)
        with pytest.raises(Retryable):
            retire.run(claim_id=claim)

    row = stage.see(claim)
    assert row.leased_until is not None
    assert row.last_error is None
    assert (row.due_at - utcnow()).total_seconds() > 10


def keep_terminating(stage: Stage, pod: str) -> None:
    """Let a finalizer keep a Pod after its deletion."""
    path = f"/api/v1/namespaces/{stage.namespace}/pods/{pod}"
    body = {"metadata": {"finalizers": ["example.com/wait"]}}
    stage.kube.request("PATCH", path, body=body, content_type=MERGE_PATCH)


def let_go(stage: Stage, pod: str) -> None:
    path = f"/api/v1/namespaces/{stage.namespace}/pods/{pod}"
    stage.kube.request("PATCH", path, body={"metadata": {"finalizers": None}}, content_type=MERGE_PATCH)


def assert_waits(stage: Stage, claim: int, waits: dict[float, float]) -> None:
    """Run a retirement at each of these ages, and assert the wait until it is due again. Both are in seconds."""
    for tried_for, wait in waits.items():
        began = utcnow()
        stage.rows(
            "UPDATE claims SET changed_at = now() - make_interval(secs => :s) WHERE id = :id", s=tried_for, id=claim
        )
        retire.run(claim_id=claim)
        assert_due(stage.see(claim).due_at, wait, since=began)


def test_pod_that_stays_terminating_is_checked_ever_less_often_and_deleted_once(
    stage: Stage, pod: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted: list[str] = []

    def delete(*given: Any, name: str, **named: Any) -> None:
        deleted.append(name)
        delete_runner(*given, name=name, **named)

    monkeypatch.setattr(of_retire, "delete_runner", delete)
    keep_terminating(stage, pod)
    claim = stage.retire_claim(pod)
    assert_waits(stage, claim, {0: 5, 10: 10, 20: 20, 40: 40, 600: 60})
    assert deleted == [pod]

    let_go(stage, pod)
    retire.run(claim_id=claim)
    assert stage.see(claim).end_reason == "retired"


def test_a_retirement_that_github_refuses_is_tried_ever_less_often(stage: Stage, pod: str, github: StubGitHub) -> None:
    stage.job(7, state="running")
    given = stage.claim(pod, job_id=7, state="executing", runner=RUNNER)
    stage.rows("UPDATE claims SET state = 'ended', ended_at = now(), end_reason = 'completed' WHERE id = :id", id=given)
    github.runner = "busy"
    claim = stage.retire_claim(pod)
    assert_waits(stage, claim, {0: 5, 10: 10, 600: 60})
    assert pod in stage.pods()


def test_resume_repeats_no_stamp_whose_lease_runs(clusterless: Stage) -> None:
    stage = clusterless
    stage.add_pod("pod-1")
    stage.job(7)
    claim = stage.claim("pod-1", job_id=7, state="delivered", age=60)
    stage.rows("UPDATE claims SET due_at = now() - interval '5 s', leased_until = now() + interval '20 s'")

    def due() -> list[int]:
        found = transaction(stage.rt.engine, lambda db: resume_rows.claim_due(db, due_after=10, heads={}, now=utcnow()))
        return [each.claim_id for each in found]

    assert due() == []
    stage.rows("UPDATE claims SET leased_until = now() - interval '1 s'")
    assert due() == [claim]

"""Steps that were paused beyond their lease: their late ends change nothing that was done after them (law L6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import Connection

from github_adapters.endpoints.runners import Jit
from k8s_adapters.runners.stamps import StampOutcome, StampResult
from models.claims import releases, steps
from models.claims.releases import Warmth
from models.db.engine import transaction
from models.state import claim_leases, claim_transitions
from models.sweeps.requeues import requeue
from ostler.clock import utcnow
from ostler.encryption import Cipher
from ostler.errors import Forbidden, Invalid, UpstreamError
from ostler.secrets import Secret
from rules.claims.job_outcomes import JobOutcome, NextStep
from rules.claims.machines import allowed
from rules.claims.requeues import Requeue
from tasks.claims import stamp as of_stamp
from tasks.claims.mint import mint
from tasks.claims.stamp import stamp
from tests.integration.tasks.conftest import Stage
from tests.rows import author


class PausingGitHub:
    """A GitHub that creates runners. `meanwhile` is called once, before the first mint is answered."""

    def __init__(self) -> None:
        self.meanwhile: Callable[[], None] | None = None
        self.refuses: Exception | None = None
        self.deleted: list[int] = []
        self._made = 0

    def mint(self, *, name: str, **_rest: Any) -> Jit:
        self._made += 1
        made, refuses = self._made, self.refuses
        if (meanwhile := self.meanwhile) is not None:
            self.meanwhile = None
            meanwhile()
        if refuses is not None:
            raise refuses
        return Jit(runner_id=made, runner_name=name, config=Secret(f"jit {made}"))

    def find_runner(self, **_rest: Any) -> None:
        """Show no runner of this name."""

    def delete_runner(self, *, runner_id: int, **_rest: Any) -> None:
        self.deleted.append(runner_id)


@pytest.fixture
def github(clusterless: Stage) -> PausingGitHub:
    clusterless.rt.github = github = PausingGitHub()
    clusterless.rt.cipher = Cipher([Secret(Fernet.generate_key().decode())])  # type: ignore[attr-defined]
    return github


def claimed(stage: Stage) -> int:
    stage.add_pod("pod-1")
    stage.job(1)
    return stage.claim("pod-1", job_id=1, state="claimed")


def end_lease(stage: Stage) -> None:
    """Let the lease of the running step expire."""
    stage.rows("UPDATE claims SET leased_until = now() - interval '1 s'")


def test_late_release_changes_nothing_when_another_release_has_taken_the_claim(clusterless: Stage) -> None:
    stage = clusterless
    claim_id = claimed(stage)
    now = utcnow()

    def begin() -> releases.ReleaseWork:
        work = transaction(stage.rt.engine, lambda db: releases.begin_release(db, claim_id, now=utcnow()))
        assert work is not None
        return work

    transaction(
        stage.rt.engine, lambda db: claim_transitions.request_release(db, claim_id, reason="test", now=now, who="test")
    )
    paused = begin()
    end_lease(stage)
    current = begin()
    before = stage.see(claim_id)

    ended = transaction(
        stage.rt.engine,
        lambda db: releases.end_never_delivered(
            db, paused, warmth=Warmth.WARM, retire_due=10, now=utcnow(), who="late"
        ),
    )
    transaction(stage.rt.engine, lambda db: claim_leases.give_back(db, paused, due_at=now, error="late", undoes=True))

    assert ended is None
    assert stage.see(claim_id) == before
    ended = transaction(
        stage.rt.engine,
        lambda db: releases.end_never_delivered(
            db, current, warmth=Warmth.WARM, retire_due=10, now=utcnow(), who="test"
        ),
    )
    assert ended is not None
    assert stage.see(claim_id).job_state == "queued"


def test_late_stamp_keeps_the_lease_of_a_mint(clusterless: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message of a paused stamp is repeated. The second stamp is done, and the mint follows in the same chain."""
    stage = clusterless
    claim_id = claimed(stage)
    stage.rows("UPDATE claims SET stamp = 'none'")

    def stamped(*_: Any, **__: Any) -> StampResult:
        return StampResult(outcome=StampOutcome.DONE, seen=None, owner=None)

    def paused(*_: Any, **__: Any) -> StampResult:
        end_lease(stage)
        monkeypatch.setattr(of_stamp, "write", stamped)
        stamp.run(claim_id=claim_id, chain_no=1)
        minting = transaction(
            stage.rt.engine,
            lambda db: steps.begin_mint(db, claim_id, chain_no=1, suffix="0000000a", now=utcnow()),
        )
        assert minting is not None
        return StampResult(outcome=StampOutcome.DONE, seen=None, owner=None)

    monkeypatch.setattr(of_stamp, "write", paused)
    stamp.run(claim_id=claim_id, chain_no=1)

    claim = stage.see(claim_id)
    assert claim.stamp == "on"
    assert claim.leased_until > utcnow() + timedelta(seconds=allowed("lease_stamp").seconds), (
        "the mint still has its lease"
    )


def test_late_jit_is_deregistered_when_a_doubled_mint_opened_another_attempt(
    clusterless: Stage, github: PausingGitHub
) -> None:
    """The message of a paused mint is repeated. The second mint finds no runner of its name, and mints another."""
    stage = clusterless
    claim_id = claimed(stage)
    doubled: list[steps.MintWork] = []

    def begin_again() -> None:
        end_lease(stage)

        def begin(db: Connection) -> steps.MintWork:
            work = steps.begin_mint(db, claim_id, chain_no=1, suffix="0000000b", now=utcnow())
            assert work is not None
            attempt_id = steps.replace_attempt(db, work, runner_name="pod-1-0000000b", now=utcnow())
            assert attempt_id is not None
            return replace(work, attempt_id=attempt_id, runner_name="pod-1-0000000b", previous=None)

        doubled.append(transaction(stage.rt.engine, begin))

    github.meanwhile = begin_again
    mint.run(claim_id=claim_id, chain_no=1)

    claim = stage.see(claim_id)
    assert (claim.state, claim.jit, claim.runner_name) == ("claimed", None, None)
    assert github.deleted == [1]
    minted = transaction(
        stage.rt.engine,
        lambda db: steps.commit_mint(db, doubled[0], runner_id=2, jit=b"jit", due_after=10, now=utcnow(), who="test"),
    )
    assert minted.moved
    assert stage.see(claim_id).runner_name == "pod-1-0000000b"


def ask_requeue(stage: Stage) -> Requeue:
    done = transaction(stage.rt.engine, lambda db: requeue(db, 1, by=author("alice")))
    assert done is not None
    return done.action


def test_jit_of_a_job_that_a_person_queues_again_reaches_no_pod(clusterless: Stage, github: PausingGitHub) -> None:
    stage = clusterless
    claim_id = claimed(stage)
    asked: list[Requeue] = []
    github.meanwhile = lambda: asked.append(ask_requeue(stage))
    mint.run(claim_id=claim_id, chain_no=1)

    assert asked == [Requeue.RELEASE]
    claim = stage.see(claim_id)
    assert (claim.state, claim.jit, claim.ended_at) == ("releasing", None, None)
    stage.rows("UPDATE claims SET stamp = 'none', leased_until = NULL")
    work = transaction(stage.rt.engine, lambda db: releases.begin_release(db, claim_id, now=utcnow()))
    assert work is not None
    found = github.deleted, [each.runner_id for each in work.registrations]
    assert found == ([1], []), "the mint removes the runner that it made, so the release has nothing to remove"
    ended = transaction(
        stage.rt.engine,
        lambda db: releases.end_never_delivered(db, work, warmth=Warmth.WARM, retire_due=10, now=utcnow(), who="test"),
    )
    assert ended is not None
    assert stage.see(claim_id).job_state == "queued"
    assert ask_requeue(stage) is Requeue.FREE


def test_stamp_of_a_job_that_a_person_queues_again_is_followed_by_no_mint(
    clusterless: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = clusterless
    claim_id = claimed(stage)
    stage.rows("UPDATE claims SET stamp = 'none'")

    def written(*_: Any, **__: Any) -> StampResult:
        assert ask_requeue(stage) is Requeue.RELEASE
        return StampResult(outcome=StampOutcome.DONE, seen=None, owner=None)

    monkeypatch.setattr(of_stamp, "write", written)
    stamp.run(claim_id=claim_id, chain_no=1)
    mint.run(claim_id=claim_id, chain_no=1)

    assert stage.see(claim_id).state == "releasing"
    assert stage.rows("SELECT 1 FROM mint_attempts") == []


@pytest.mark.parametrize("answer", [Invalid("422"), Forbidden("403")])
def test_refusal_of_an_overtaken_mint_changes_nothing(
    clusterless: Stage, github: PausingGitHub, answer: UpstreamError
) -> None:
    stage = clusterless
    claim_id = claimed(stage)

    def overtake() -> None:
        stage.rows("UPDATE claims SET chain_no = chain_no + 1, leased_until = NULL WHERE id = :id", id=claim_id)

    github.meanwhile, github.refuses = overtake, answer
    before = stage.see(claim_id)
    mint.run(claim_id=claim_id, chain_no=1)

    claim = stage.see(claim_id)
    assert (claim.state, claim.chain_no) == ("claimed", before.chain_no + 1)
    assert (claim.job_state, claim.hold_reason) == ("claimed", None)
    assert [row.failures for row in stage.rows("SELECT failures FROM jobs")] == [0]
    assert stage.outbox.take("ostler.release") == []
    assert [row.outcome for row in stage.rows("SELECT outcome FROM mint_attempts")] == ["refused"]


@pytest.mark.parametrize("overtaken", [False, True])
def test_step_that_fails_commits_the_release_of_its_claim_unless_overtaken(
    clusterless: Stage, github: PausingGitHub, *, overtaken: bool
) -> None:
    stage = clusterless
    claim_id = claimed(stage)
    chain_no = stage.see(claim_id).chain_no

    def overtake() -> None:
        stage.rows("UPDATE claims SET chain_no = chain_no + :by WHERE id = :id", by=int(overtaken), id=claim_id)

    github.meanwhile, github.refuses = overtake, RuntimeError("a bug")
    with pytest.raises(RuntimeError):
        mint.run(claim_id=claim_id, chain_no=chain_no)

    claim = stage.see(claim_id)
    if overtaken:
        assert (claim.state, claim.release_reason) == ("claimed", None)
    else:
        assert (claim.state, claim.release_reason) == ("releasing", "a step of the claim failed")
        assert (claim.leased_until, claim.due_at <= utcnow()) == (None, True)


def test_late_answer_about_a_running_job_holds_no_job_that_has_ended(clusterless: Stage) -> None:
    stage = clusterless
    stage.job(1, state="completed")
    running = JobOutcome(NextStep.RUNNING, "GitHub says that the job is in_progress")
    transaction(stage.rt.engine, lambda db: releases.apply_job_outcome(db, 1, running, now=utcnow(), who="late"))
    (job,) = stage.rows("SELECT state, hold_reason FROM jobs")
    assert (job.state, job.hold_reason) == ("completed", None)


@pytest.mark.parametrize("job_outcome", [NextStep.REQUEUE, NextStep.FINISH, NextStep.RUNNING])
def test_outcome_of_one_job_leaves_the_executions_of_others(clusterless: Stage, job_outcome: NextStep) -> None:
    stage = clusterless
    for number in (1, 2):
        stage.add_pod(f"pod-{number}")
        stage.job(number, state="running")
        claim = stage.claim(f"pod-{number}", job_id=number, state="executing", runner=f"runner-{number}")
        stage.rows(
            "INSERT INTO executions (job_id, runner_name, claim_id, account_id, vcpu, memory, started_at) "
            "VALUES (:id, :runner, :claim, 1, 2000, 4096, now())",
            id=number,
            runner=f"runner-{number}",
            claim=claim,
        )
    (before,) = stage.rows("SELECT * FROM executions WHERE job_id = 2")
    told = JobOutcome(job_outcome, "GitHub says so", conclusion="success" if job_outcome is NextStep.FINISH else None)
    transaction(stage.rt.engine, lambda db: releases.apply_job_outcome(db, 1, told, now=utcnow(), who="test"))
    assert stage.rows("SELECT * FROM executions WHERE job_id = 2") == [before]
    own = stage.rows("SELECT claim_id, ended_at FROM executions WHERE job_id = 1")
    assert [(row.claim_id is None, row.ended_at is None) for row in own] == {
        NextStep.REQUEUE: [],
        NextStep.FINISH: [(False, False)],
        NextStep.RUNNING: [(True, True)],
    }[job_outcome]


def test_late_step_gives_no_lease_back_when_its_step_was_sent_again(clusterless: Stage) -> None:
    """`resume` raises the chain number of a claim whose lease expired, and does not change the time of the lease."""
    stage = clusterless
    claim_id = claimed(stage)
    now = utcnow()
    transaction(
        stage.rt.engine, lambda db: claim_transitions.request_release(db, claim_id, reason="test", now=now, who="test")
    )
    paused = transaction(stage.rt.engine, lambda db: releases.begin_release(db, claim_id, now=utcnow()))
    assert paused is not None
    stage.rows("UPDATE claims SET chain_no = chain_no + 1")
    before = stage.see(claim_id)
    transaction(stage.rt.engine, lambda db: claim_leases.give_back(db, paused, due_at=now, error="late", undoes=True))
    assert stage.see(claim_id) == before


def test_outcome_of_a_finished_job_keeps_the_recorded_end_of_its_execution(clusterless: Stage) -> None:
    stage = clusterless
    stage.job(1, state="running")
    stage.rows(
        "INSERT INTO executions (job_id, runner_name, account_id, vcpu, memory, started_at, ended_at) "
        "VALUES (1, 'runner', 1, 2000, 4096, now() - interval '2 min', now() - interval '1 min')"
    )
    before = stage.rows("SELECT * FROM executions")
    told = JobOutcome(NextStep.FINISH, "GitHub says so", conclusion="success")
    transaction(stage.rt.engine, lambda db: releases.apply_job_outcome(db, 1, told, now=utcnow(), who="test"))
    assert [row.state for row in stage.rows("SELECT state FROM jobs")] == ["completed"]
    assert stage.rows("SELECT * FROM executions") == before

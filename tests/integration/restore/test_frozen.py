"""While Postgres is or might be an earlier state, it cannot harm a Pod with work that it does not know."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection

from k8s_adapters.runners.stamps import StampOutcome
from k8s_adapters.runners.stamps import stamp as put_on
from models.claims import deliver, matching, releases, steps
from models.claims import resume as due
from models.db.engine import transaction
from models.state import claim_transitions
from models.state.offers import Polling, beat, offer
from ostler.clock import utcnow
from tasks.claims.retire import retire
from tasks.claims.stamp import stamp
from tasks.pools.reconcile import reconcile
from tasks.sweeps.frame.obstacles import earlier_state
from tasks.sweeps.resume import resume
from tasks.sweeps.unused_runners import unused_runners
from tests.integration.restore.conftest import Stage, StubGitHub
from tests.integration.tasks.conftest import RUNNER

EARLIER = "UPDATE epochs SET older_since = now(), why = 'a test', trusted_until = NULL"
UNCONFIRMED = "UPDATE epochs SET trusted_until = now() - interval '1 s'"
ANOTHER_SERVER = "UPDATE epochs SET trusted_server = pg_postmaster_start_time() - interval '1 s'"
TRUST = "UPDATE epochs SET older_since = NULL, trusted_until = 'infinity', trusted_server = pg_postmaster_start_time()"
DOUBTS = pytest.mark.parametrize(
    "doubt", [EARLIER, UNCONFIRMED, ANOTHER_SERVER], ids=["earlier", "unconfirmed", "another server"]
)


def pool_id(stage: Stage) -> int:
    return int(stage.rows("SELECT id FROM pools")[0].id)


def begin(stage: Stage, claim_id: int, step: str) -> bool:
    """Return whether a step of a claim can begin."""

    def body(db: Connection) -> object:
        now = utcnow()
        match step:
            case "stamp":
                return steps.begin_stamp(db, claim_id, chain_no=None, now=now)
            case "unstamp":
                return steps.begin_unstamp(db, claim_id, now=now)
            case "mint":
                return steps.begin_mint(db, claim_id, chain_no=None, suffix="abcdef01", now=now)
            case "release":
                return releases.begin_release(db, claim_id, now=now)
            case _:
                return releases.begin_retire(db, claim_id, now=now)

    return transaction(stage.rt.engine, body) is not None


@pytest.mark.parametrize(
    ("step", "set_up", "unconfirmed"),
    [
        ("stamp", "state = 'claimed', stamp = 'none'", True),
        ("mint", "state = 'claimed'", True),
        ("unstamp", "state = 'minted', stamp = 'removing'", False),
        ("release", "state = 'releasing'", False),
        ("retire", "state = 'claimed', purpose = 'retire', job_id = NULL, account_id = NULL", False),
    ],
)
def test_no_step_of_a_claim_is_taken(stage: Stage, pod: str, step: str, set_up: str, unconfirmed: bool) -> None:
    stage.job(7)
    claim_id = stage.claim(pod, job_id=7, state="claimed")
    stage.rows(f"UPDATE claims SET {set_up}")  # noqa: S608
    stage.rows(EARLIER)
    assert not begin(stage, claim_id, step)
    stage.rows("UPDATE epochs SET older_since = NULL")
    stage.rows(UNCONFIRMED)
    assert begin(stage, claim_id, step) is unconfirmed
    stage.rows("UPDATE claims SET leased_until = NULL")
    stage.rows(TRUST)
    assert begin(stage, claim_id, step)


@DOUBTS
def test_the_reconciler_retires_no_pod_that_is_too_many(stage: Stage, pod: str, doubt: str) -> None:
    """In an earlier state, a busy Pod looks warm, so a scale-down would retire it."""
    assert pod
    stage.rows("UPDATE pools SET replicas = 0")
    stage.rows(doubt)
    reconcile.run(pool_id=pool_id(stage))
    assert stage.outbox.take("ostler.retire") == []
    assert stage.rows("SELECT 1 FROM claims") == []
    stage.rows(TRUST)
    reconcile.run(pool_id=pool_id(stage))
    assert len(stage.outbox.take("ostler.retire")) == 2


@DOUBTS
def test_a_message_of_before_retires_and_releases_nothing(
    stage: Stage, pod: str, github: StubGitHub, doubt: str
) -> None:
    stage.job(7)
    claim_id = stage.claim(pod, job_id=7, state="minted", runner=RUNNER)
    (other,) = [name for name in stage.pods() if name != pod]
    row_id = stage.rows("SELECT id FROM runner_pods WHERE name = :name", name=other)[0].id
    retire_id = transaction(
        stage.rt.engine,
        lambda db: releases.insert_retire(db, row_id, now=utcnow(), who="test", why="test", due_after=10),
    )
    stage.rows(doubt)
    stage.release(claim_id)
    retire.run(claim_id=retire_id)
    assert github.deleted == []
    assert len(stage.pods()) == 2
    assert stage.see(claim_id).ended_at is None


@DOUBTS
def test_no_minted_claim_is_marked_for_its_unstamp(stage: Stage, pod: str, doubt: str) -> None:
    """The Pod does not poll because its JIT was delivered, which these rows do not contain."""
    stage.job(7)
    claim_id = stage.claim(pod, job_id=7, state="minted")
    stage.rows("UPDATE claims SET stamp = 'on', minted_at = now() - interval '1 h'")
    stage.rows(doubt)

    def begun() -> list[int]:
        return transaction(
            stage.rt.engine, lambda db: due.begin_unstamps(db, unstamp_after=15, now=utcnow(), who="test")
        )

    assert begun() == []
    stage.rows(TRUST)
    assert begun() == [claim_id]


def test_a_stamp_never_replaces_that_of_a_later_claim(stage: Stage, pod: str) -> None:
    """No comparison has run yet, and the Pod works for a claim that these rows do not contain."""
    stage.job(7)
    claim_id = stage.claim(pod, job_id=7, state="claimed")
    uid = stage.pods()[pod].uid
    later = f"{claim_id + 4}.1"
    assert (
        put_on(
            stage.kube,
            namespace=stage.namespace,
            name=pod,
            uid=uid,
            expected=stage.pods()[pod].stamp or "",
            value=later,
            owner=99,
        ).outcome
        is StampOutcome.DONE
    )
    stamp.run(claim_id=claim_id)
    assert (stage.pods()[pod].stamp, stage.pods()[pod].owner) == (later, 99)
    assert stage.see(claim_id).stamp == "gave_up"
    stage.rows("UPDATE claims SET stamp = 'none', leased_until = NULL")
    stamp.run(claim_id=claim_id)  # now that the rows know what stands there
    assert (stage.pods()[pod].stamp, stage.pods()[pod].owner) == (later, 99)


@DOUBTS
def test_a_sweep_that_kills_says_why_it_does_not(stage: Stage, pod: str, github: StubGitHub, doubt: str) -> None:
    stage.job(7)
    claim_id = stage.claim(pod, job_id=7, state="delivered", age=90, runner=RUNNER)
    stage.rows("UPDATE claims SET runner_name = :runner", runner=RUNNER)
    github.runner = "offline"
    stage.rows(doubt)
    unused_runners.run()
    assert stage.see(claim_id).state == "delivered"
    (run,) = stage.rows("SELECT * FROM sweep_runs WHERE sweep = 'unused_runners'")
    assert (run.found, run.overflow) == (1, 1)
    assert run.why == earlier_state(stage.rt)  # type: ignore[arg-type]


def test_older_postgres_stops_matching_mints_and_delivery_and_unconfirmed_does_not(stage: Stage, pod: str) -> None:
    stage.job(7)
    claim_id = stage.claim(pod, job_id=7, state="minted")
    stage.rows("UPDATE claims SET jit = 'x', due_at = now() - interval '1 h'")
    uid = stage.pods()[pod].uid
    now = utcnow()
    poll = Polling(
        pod_uid=uid,
        namespace=stage.namespace,
        pod_name=pod,
        poll_id="p",
        until=now.replace(year=now.year + 1),
        again=False,
    )

    def prepare(db: Connection) -> None:
        beat(db, web_id="w", now=now)
        offer(db, [poll], web_id="w", now=now)

    transaction(stage.rt.engine, prepare)

    def delivered() -> object:
        return transaction(
            stage.rt.engine,
            lambda db: deliver.deliver(db, claim_id=claim_id, pod_uid=uid, poll_id="p", now=utcnow(), who="test"),
        )

    pool = pool_id(stage)

    def matched() -> object:
        return transaction(stage.rt.engine, lambda db: matching.lock_pool(db, pool))

    stage.rows(EARLIER)
    resume.run()
    assert (delivered(), matched()) == (None, None)
    assert stage.see(claim_id).chain_no == 1
    stage.rows("UPDATE epochs SET older_since = NULL")
    stage.rows(UNCONFIRMED)
    resume.run()
    assert stage.see(claim_id).chain_no == 2
    assert matched() is not None
    assert delivered() is not None


def test_claim_that_seems_undelivered_is_not_released_when_postgres_is_older(stage: Stage, pod: str) -> None:
    stage.job(7)
    claim_id = stage.claim(pod, job_id=7, state="minted", age=3600)

    def requested() -> bool:
        return transaction(
            stage.rt.engine,
            lambda db: claim_transitions.request_release(
                db, claim_id, reason="never delivered", undelivered=True, now=utcnow(), who="test"
            ),
        )

    stage.rows(EARLIER)
    assert not requested()
    stage.rows(TRUST)
    assert requested()

"""One locked row does not delay the other rows of its page (law L14): the lanes of sweeps, reconciler and watch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError

from models.claims import resume as due
from models.db import client_waits
from models.db.engine import is_locked, make_engine, transaction
from models.intake import repositories
from models.pools import pod_rows
from models.sweeps import catch_up, prune, redelivery
from models.upstream import gates as gate_rows
from ostler.clock import utcnow
from ostler.upstreams import Upstream
from tasks.pools.watch_reports import pods_changed
from tasks.sweeps import resume as of_resume
from tasks.sweeps.gates import gates
from tasks.sweeps.orphaned_runners import orphaned_runners
from tasks.sweeps.resume import resume
from tasks.sweeps.stale_claims import stale_claims
from tests.database import Database
from tests.integration.tasks.conftest import RUNNER, Stage, StubGitHub
from tests.rows import pod_view


@pytest.fixture
def stage(clusterless: Stage, database: Database) -> Stage:
    """A stage whose sessions wait for locks as in production."""
    clusterless.rt.engine = make_engine(database.url, pool_size=10, application="as in production")
    return clusterless


@contextmanager
def locked(stage: Stage, query: str, **values: Any) -> Iterator[None]:
    """Let a frozen session hold the locks of a query's rows."""
    with stage.rt.engine.connect() as holder:
        assert holder.execute(text(f"{query} FOR UPDATE"), values).all()
        yield


def claims(stage: Stage, count: int, **what: Any) -> list[int]:
    """Insert `count` claims, each with a new Pod and a new job."""
    made = []
    for number in range(1, count + 1):
        stage.add_pod(f"pod-{number}")
        stage.job(number)
        made.append(stage.claim(f"pod-{number}", job_id=number, **what))
    return made


def test_page_waits_briefly_for_its_first_locked_row_and_hardly_for_further_ones(stage: Stage) -> None:
    first, second = claims(stage, 2, state="claimed")

    def limit() -> str:
        return transaction(stage.rt.engine, lambda db: str(db.execute(text("SHOW lock_timeout")).scalar_one()))

    def touch(claim_id: int) -> None:
        transaction(
            stage.rt.engine,
            lambda db: db.execute(text("UPDATE claims SET last_error = 'x' WHERE id = :id"), {"id": claim_id}),
        )

    assert limit() == "5s"
    with locked(stage, "SELECT 1 FROM claims WHERE id = :id", id=first), client_waits.brief_waits():
        assert limit() == "300ms"
        with pytest.raises(OperationalError) as failed:
            touch(first)
        assert is_locked(failed.value)
        assert limit() == "20ms"
        touch(second)
        client_waits.renew()
        assert limit() == "300ms"
    assert limit() == "5s"


def test_sweep_releases_the_other_claims_when_one_is_locked(stage: Stage) -> None:
    first, second = claims(stage, 2, state="claimed", age=600)
    with locked(stage, "SELECT 1 FROM claims WHERE id = :id", id=first):
        stale_claims.run()
        assert [message["claim_id"] for message in stage.outbox.take("ostler.release")] == [second]
    stale_claims.run()
    assert [message["claim_id"] for message in stage.outbox.take("ostler.release")] == [first]


def test_resume_begins_every_un_stamp_in_pages(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due, "UNSTAMPS", 2)
    waiting = claims(stage, 5, state="minted", age=60)
    resume.run()
    assert [message["claim_id"] for message in stage.outbox.take("ostler.unstamp")] == waiting


def test_claims_that_were_delivered_take_no_place_in_a_page_of_un_stamps(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due, "UNSTAMPS", 1)
    older, waiting = claims(stage, 2, state="minted", age=60)
    stage.rows("UPDATE claims SET state = 'delivered', delivered_at = now() WHERE id = :id", id=older)
    begun = transaction(stage.rt.engine, lambda db: due.begin_unstamps(db, unstamp_after=15, now=utcnow(), who="test"))
    assert begun == [waiting]


@pytest.mark.parametrize("broken", ["begin_unstamps", "pools_with_work", "claim_due"])
def test_parts_of_resume_fail_apart_from_each_other(stage: Stage, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    silent, late = claims(stage, 2, state="minted", age=60)
    stage.rows("UPDATE claims SET state = 'claimed', due_at = now() - interval '30 s' WHERE id = :id", id=late)
    sent: list[int] = []
    monkeypatch.setattr(of_resume, "start_chains", lambda ids, **_: sent.extend(ids))
    monkeypatch.setattr(due, "pools_with_work", lambda *_, **__: [7])

    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError(broken)

    monkeypatch.setattr(due, broken, fail)
    with pytest.raises(ZeroDivisionError):
        resume.run()

    done = {
        "begin_unstamps": stage.outbox.take("ostler.unstamp") == [{"claim_id": silent}],
        "pools_with_work": stage.outbox.take("wake") == [{"pool_id": 7}],
        "claim_due": sent == [late],
    }
    assert done == {part: part != broken for part in done}
    assert [row.outcome for row in stage.rows("SELECT outcome FROM sweeps WHERE name = 'resume'")] == ["failed"]


def test_frozen_repair_of_resume_stops_no_later_tick(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    (late,) = claims(stage, 1, state="claimed")
    stage.rows("UPDATE claims SET due_at = now() - interval '30 s'")
    sent: list[int] = []
    monkeypatch.setattr(of_resume, "start_chains", lambda ids, **_: sent.extend(ids))
    claim_due = due.claim_due
    frozen: list[Connection] = []

    def freeze(db: Connection, **arguments: Any) -> list[due.Due]:
        if not frozen:
            frozen.append(db)
            stage.rows("UPDATE sweeps SET leased_until = now() - interval '1 s'")
            resume.run()
        return claim_due(db, **arguments)

    monkeypatch.setattr(due, "claim_due", freeze)
    resume.run()
    assert sent == [late]


def test_watch_has_each_claim_marked_by_a_task_of_its_own_when_one_is_locked(stage: Stage) -> None:
    first, second = claims(stage, 2, state="delivered")
    with locked(stage, "SELECT 1 FROM claims WHERE id = :id", id=first):
        pods_changed.run(namespace="none", executing=["pod-1", "pod-2"])
    assert stage.outbox.take("ostler.pod_executes") == [{"claim_id": first}, {"claim_id": second}]


def test_reconciler_records_the_other_pods_when_the_row_of_one_is_locked(stage: Stage) -> None:
    for number in (1, 2):
        stage.add_pod(f"pod-{number}")
    (pool,) = stage.rows("SELECT id FROM pools")
    over = [
        pod_view(name, phase="Succeeded", poller_exit_code=0, runner_exit_code=0)
        for name in ("pod-1", "pod-2", "pod-3")
    ]

    def record(db: Connection) -> None:
        pod_rows.record_pods(db, pool_id=pool.id, pods=over, now=utcnow())

    def recorded() -> list[str]:
        return [
            row.name for row in stage.rows("SELECT name FROM runner_pods WHERE terminal_at IS NOT NULL ORDER BY id")
        ]

    with locked(stage, "SELECT 1 FROM runner_pods WHERE name = 'pod-1'"):
        transaction(stage.rt.engine, record)
        assert recorded() == ["pod-2", "pod-3"]
    transaction(stage.rt.engine, record)
    assert recorded() == ["pod-1", "pod-2", "pod-3"]


def test_prune_keeps_only_what_is_locked(stage: Stage) -> None:
    first, second = claims(stage, 2, state="minted", age=600)
    stage.rows(
        "INSERT INTO mint_attempts (claim_id, runner_name, outcome, created_at)"
        " SELECT id, 'runner-' || id, 'minted', now() FROM claims"
    )
    stage.rows("UPDATE claims SET state = 'ended', end_reason = 'released', jit = NULL, ended_at = now()")
    stage.rows("UPDATE runner_pods SET gone_at = now()")
    stage.rows("UPDATE jobs SET state = 'completed', completed_at = now()")
    before = utcnow() + timedelta(seconds=60)

    def forget(db: Connection) -> int:
        return prune.prune_page(db, prune.Kind.CLAIMS, before=before)

    with locked(stage, "SELECT 1 FROM mint_attempts WHERE claim_id = :id", id=first):
        assert transaction(stage.rt.engine, forget) == 1
        assert transaction(stage.rt.engine, forget) == 0
        assert [row.id for row in stage.rows("SELECT id FROM claims")] == [first]
    assert transaction(stage.rt.engine, forget) == 1
    assert second != first


def test_gates_evaluate_the_other_upstream_when_the_row_of_one_is_locked(stage: Stage) -> None:
    stage.rt.github = StubGitHub()
    for upstream in Upstream:
        stage.rows("INSERT INTO gates (upstream) VALUES (:upstream)", upstream=upstream)
    with locked(stage, "SELECT 1 FROM gates WHERE upstream = :upstream", upstream=next(iter(Upstream))):
        with pytest.raises(OperationalError):
            gates.run()
        looked = [row.upstream for row in stage.rows("SELECT upstream FROM gates WHERE checked_at IS NOT NULL")]
        assert looked == list(Upstream)[1:]
        assert [row.outcome for row in stage.rows("SELECT outcome FROM sweeps")] == ["failed"]


def test_old_counts_of_gates_are_deleted_when_one_is_locked(stage: Stage) -> None:
    old = utcnow() - 2 * gate_rows.KEPT
    for upstream in Upstream:
        stage.rows("INSERT INTO upstream_calls VALUES (:upstream, :at, 1, 0)", upstream=upstream, at=old)
    with locked(stage, "SELECT 1 FROM upstream_calls WHERE upstream = :upstream", upstream=next(iter(Upstream))):
        transaction(stage.rt.engine, lambda db: gate_rows.delete_old(db, now=utcnow()))
        assert len(stage.rows("SELECT FROM upstream_calls")) == len(Upstream) - 1


def test_failed_deliveries_are_written_down_when_one_of_them_is_locked(stage: Stage) -> None:
    now = utcnow()

    def remember(*guids: str) -> None:
        failed = [redelivery.Failed(guid, number, now) for number, guid in enumerate(guids, 1)]
        transaction(stage.rt.engine, lambda db: redelivery.record_failed(db, failed, now=now))

    remember("a")
    with locked(stage, "SELECT 1 FROM redeliveries WHERE guid = 'a'"):
        remember("a", "b")
        assert len(stage.rows("SELECT FROM redeliveries")) == 2


def test_accepted_and_lost_deliveries_are_forgotten_when_one_of_them_is_locked(stage: Stage) -> None:
    now = utcnow()
    failed = [redelivery.Failed(guid, number, now) for number, guid in enumerate("abcd", 1)]
    transaction(stage.rt.engine, lambda db: redelivery.record_failed(db, failed, now=now))
    for guid in "ab":
        stage.rows("INSERT INTO deliveries VALUES (:guid, 'workflow_job', 'queued', 7, 'accepted', now())", guid=guid)
    with locked(stage, "SELECT 1 FROM redeliveries WHERE guid IN ('a', 'c')"):
        kept = timedelta(seconds=-60)
        accepted, lost = transaction(stage.rt.engine, lambda db: redelivery.close_settled(db, kept=kept, now=now))
    assert (accepted, lost) == (1, ["d"])


def test_repositories_are_due_when_the_row_of_one_is_locked(stage: Stage) -> None:
    stage.job(1)
    stage.job(2)
    stage.rows("UPDATE jobs SET repository = 'acme/other' WHERE id = 2")

    def check() -> list[str]:
        found = transaction(
            stage.rt.engine,
            lambda db: catch_up.places(db, seen_within=timedelta(days=1), note=True, now=utcnow()),
        )
        return sorted(place.repository for place in found)

    assert check() == ["acme/other", "acme/shop"]
    with locked(stage, "SELECT 1 FROM catch_up_repositories WHERE repository = 'acme/shop'"):
        assert check() == ["acme/other", "acme/shop"]


def test_repository_is_renamed_when_one_of_its_claims_is_locked(stage: Stage) -> None:
    first, second = claims(stage, 2, state="claimed")
    stage.rows("UPDATE claims SET scope = 'repos/acme/shop', repository_id = 11")
    renaming = repositories.Renaming(11, 1, "acme/shop", "acme/store", utcnow())
    with locked(stage, "SELECT 1 FROM claims WHERE id = :id", id=first):
        transaction(stage.rt.engine, lambda db: repositories.rename(db, renaming, now=utcnow()))
    assert [stage.see(claim).scope for claim in (first, second)] == ["repos/acme/shop", "repos/acme/store"]


@pytest.mark.parametrize(("minutes", "found"), [(30, True), (2 * 24 * 60, False)])
def test_registration_that_github_applied_after_its_lookup_is_deregistered(
    stage: Stage, minutes: int, found: bool
) -> None:
    """Its attempt is closed as removed, without the id of its runner. Nothing else was registered in this scope."""
    stage.rt.github = github = StubGitHub(runner="offline")
    (claim,) = claims(stage, 1, state="claimed")
    stage.rows(
        """
        INSERT INTO mint_attempts (claim_id, runner_name, outcome, created_at, closed_at)
        SELECT :claim, :runner, 'removed', t.at, t.at FROM (SELECT now() - make_interval(mins => :ago) AS at) t
        """,
        claim=claim,
        runner=RUNNER,
        ago=minutes,
    )
    stage.rows(
        """
        UPDATE claims SET state = 'ended', end_reason = 'released', ended_at = now() - make_interval(mins => :ago)
        """,
        ago=minutes,
    )
    orphaned_runners.run()
    assert github.deleted == ([77] if found else [])

"""Age of stalled work, now and at its repair: in rows, and in the metric."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from lab.chaos.stalls import read_stalls
from models.claims.releases import refuse_release
from models.claims.steps import begin_mint, commit_mint
from models.db.engine import transaction
from models.state import stalls
from models.sweeps import redelivery
from ostler import telemetry
from ostler.clock import utcnow
from rules.claims.stalls import PATHS, Cause, FoundBy
from tasks.pools.reconcile import reconcile
from tasks.pools.watch_reports import pod_gone
from tasks.sweeps import resume as of_resume
from tasks.sweeps.missing_pods import missing_pods
from tasks.sweeps.resume import resume
from tasks.sweeps.unused_runners import unused_runners
from tests.integration.tasks.conftest import RUNNER, Stage, StubGitHub


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_resume, "start_chains", lambda *_, **__: None)


def oldest(stage: Stage, cause: Cause) -> float:
    return transaction(stage.rt.engine, lambda db: stalls.oldest(db, now=utcnow()))[cause]


def served(stage: Stage) -> list[tuple[str, str, float]]:
    rows = stage.rows("SELECT cause, found_by, extract(epoch FROM served_at - since)::float AS s FROM stalls")
    return [(row.cause, row.found_by, row.s) for row in rows]


def counted(cause: Cause, found_by: FoundBy) -> tuple[float, float]:
    """Return the number of these stalls in this process' metric, and their seconds."""
    child = telemetry.STALL_SECONDS.labels(cause, found_by)
    samples = {sample.name: sample.value for sample in child._child_samples()}
    return samples["_count"], samples["_sum"]


def delete(stage: Stage, pod: str) -> None:
    stage.kube.request("DELETE", f"/api/v1/namespaces/{stage.namespace}/pods/{pod}")


def test_without_anything_stalled_every_cause_is_a_zero(stage: Stage) -> None:
    ages = transaction(stage.rt.engine, lambda db: stalls.oldest(db, now=utcnow()))
    assert ages == dict.fromkeys(Cause, 0.0)
    found = transaction(stage.rt.engine, lambda db: stalls.summary(db, since=utcnow() - timedelta(hours=1)))
    assert [(each.cause, each.found_by, each.many) for each in found] == [(*path, 0) for path in PATHS]
    text = telemetry.exposition().decode()
    for cause, found_by in PATHS:
        assert f'ostler_stall_seconds_count{{cause="{cause}",found_by="{found_by}"}}' in text


def test_a_claim_whose_message_was_lost_is_stalled_until_its_step_is_done(stage: Stage, pod: str) -> None:
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="claimed", age=14)
    stage.rows("UPDATE claims SET due_at = now() - interval '4 s'")
    assert 14 <= oldest(stage, Cause.MESSAGE_LOST) < 60
    before = counted(Cause.MESSAGE_LOST, FoundBy.RESUME)
    resume.run()
    assert 14 <= oldest(stage, Cause.MESSAGE_LOST) < 60  # noticed, not served
    assert served(stage) == []
    mint(stage, claim)
    ((cause, found_by, seconds),) = served(stage)
    assert (cause, found_by) == ("message_lost", "resume")
    assert 14 <= seconds < 60
    assert oldest(stage, Cause.MESSAGE_LOST) == 0
    after = counted(Cause.MESSAGE_LOST, FoundBy.RESUME)
    assert (after[0] - before[0], round(after[1] - before[1], 3)) == (1, round(seconds, 3))


def mint(stage: Stage, claim: int) -> None:
    """Run the lost step."""

    def body(db: Any) -> None:
        work = begin_mint(db, claim, chain_no=None, suffix="abcdef01", now=utcnow())
        assert work is not None
        commit_mint(db, work, runner_id=77, jit=b"x", due_after=10, now=utcnow(), who="test")

    transaction(stage.rt.engine, body)


def test_a_claim_that_was_given_back_to_wait_is_not_stalled(stage: Stage, pod: str) -> None:
    stage.job(7)
    stage.claim(pod, job_id=7, state="claimed", age=4000)
    stage.rows("UPDATE claims SET due_at = now() - interval '4 s', last_error = 'GitHub asked to wait'")
    assert oldest(stage, Cause.MESSAGE_LOST) == 0
    resume.run()
    (row,) = stage.rows("SELECT chain_no, stalled_at FROM claims")
    assert (row.chain_no, row.stalled_at) == (2, None)


def test_claim_of_a_killed_process_is_stalled_since_its_last_started_step(stage: Stage, pod: str) -> None:
    stage.job(7)
    stage.claim(pod, job_id=7, state="claimed", age=4000)
    stage.rows("""
        UPDATE claims SET due_at = now() - interval '1 s', leased_until = now() - interval '1 s',
                          last_error = 'of an earlier try'
    """)
    assert 11 <= oldest(stage, Cause.MESSAGE_LOST) < 60


@pytest.mark.parametrize("state", ["executing", "minted"])
@pytest.mark.parametrize("found_by", [FoundBy.WATCH, FoundBy.LISTS])
def test_a_claim_whose_pod_is_gone_is_stalled_until_it_has_ended(
    stage: Stage, pod: str, github: StubGitHub, found_by: FoundBy, state: str
) -> None:
    stage.job(7, state="running" if state == "executing" else "claimed")
    claim = stage.claim(pod, job_id=7, state=state, age=4000, runner=RUNNER)
    stage.rows("UPDATE pools SET listed_at = now() - interval '33 s'")
    delete(stage, pod)
    assert oldest(stage, Cause.POD_GONE) == 0  # nobody knows
    github.broken = True
    find(claim, found_by)
    age = oldest(stage, Cause.POD_GONE)
    assert age >= 33 if found_by is FoundBy.LISTS else age > 0
    assert served(stage) == []
    github.broken = False
    find(claim, found_by)
    stage.released()
    assert stage.see(claim).ended_at is not None
    ((cause, by, seconds),) = served(stage)
    assert (cause, by) == ("pod_gone", found_by)
    assert seconds >= age
    assert oldest(stage, Cause.POD_GONE) == 0


def find(claim: int, found_by: FoundBy) -> None:
    if found_by is FoundBy.WATCH:
        pod_gone.run(claim_id=claim)
    else:
        missing_pods.run()


def test_the_reconciler_notes_down_a_list_that_left_nothing_over_and_no_other(
    stage: Stage, pod: str, github: StubGitHub
) -> None:
    (row,) = stage.rows("SELECT id, listed_at FROM pools")
    assert row.listed_at is not None
    stage.job(7, state="running")
    claim = stage.claim(pod, job_id=7, state="executing", age=50, runner=RUNNER)
    delete(stage, pod)
    began = utcnow()
    reconcile.run(pool_id=row.id)
    seen = stage.see(claim)
    assert (seen.end_reason, seen.stalled_at) == ("pod_gone", None)
    ((cause, by, seconds),) = served(stage)
    assert (cause, by) == ("pod_gone", "lists")
    assert seconds >= (began - row.listed_at).total_seconds()
    del github


def test_a_claim_whose_pod_has_ended_is_stalled_since_then(stage: Stage, pod: str, github: StubGitHub) -> None:
    stage.job(7, state="running")
    claim = stage.claim(pod, job_id=7, state="executing", age=4000, runner=RUNNER)
    stage.finish(pod)
    (pool,) = stage.rows("SELECT id FROM pools")
    reconcile.run(pool_id=pool.id)
    assert oldest(stage, Cause.POD_SPENT) > 0
    assert stage.see(claim).ended_at is None
    stage.rows("UPDATE runner_pods SET terminal_at = now() - interval '45 s' WHERE terminal_at IS NOT NULL")
    github.job = ("completed", "success", RUNNER)
    reconcile.run(pool_id=pool.id)
    assert stage.see(claim).end_reason == "pod_spent"
    ((cause, by, seconds),) = served(stage)
    assert (cause, by) == ("pod_spent", "lists")
    assert 45 <= seconds < 120
    assert oldest(stage, Cause.POD_SPENT) == 0


def test_a_runner_that_nobody_uses_is_stalled_since_its_delivery(stage: Stage, pod: str, github: StubGitHub) -> None:
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="delivered", age=95, runner=RUNNER)
    github.runner = "offline"
    assert 95 <= oldest(stage, Cause.RUNNER_UNUSED) < 200
    unused_runners.run()
    assert 95 <= oldest(stage, Cause.RUNNER_UNUSED) < 200
    assert served(stage) == []
    stage.released()
    assert stage.see(claim).end_reason == "never_started"
    ((cause, by, seconds),) = served(stage)
    assert (cause, by) == ("runner_unused", "unused_runners")
    assert 95 <= seconds < 200


def test_a_runner_that_executes_after_all_was_not_stalled(stage: Stage, pod: str, github: StubGitHub) -> None:
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="delivered", age=95, runner=RUNNER)
    github.runner = "offline"
    unused_runners.run()
    assert transaction(stage.rt.engine, lambda db: refuse_release(db, claim, now=utcnow(), who="test"))
    assert served(stage) == []
    assert stage.see(claim).stalled_at is None
    assert oldest(stage, Cause.RUNNER_UNUSED) == 0


def test_a_webhook_that_came_late_had_been_stalled_from_its_failure_on(stage: Stage) -> None:
    stage.rows("""
        INSERT INTO redeliveries (guid, delivery_id, first_failed_at, due_at) VALUES
            ('job', 1, now() - interval '100 s', now()), ('ping', 2, now() - interval '100 s', now()),
            ('lost', 3, now() - interval '70 s', now())
    """)
    stage.rows("""
        INSERT INTO redeliveries (guid, delivery_id, first_failed_at, due_at, malformed)
        VALUES ('malformed', 4, now() - interval '900 s', now(), true)
    """)
    assert 100 <= oldest(stage, Cause.WEBHOOK_LOST) < 200
    stage.rows("""
        INSERT INTO deliveries (guid, event, action, job_id, outcome, received_at) VALUES
            ('job', 'workflow_job', 'queued', 7, 'accepted', now() - interval '20 s'),
            ('ping', 'ping', '', NULL, 'ignored', now())
    """)
    found = transaction(stage.rt.engine, lambda db: redelivery.close_settled(db, kept=timedelta(days=3), now=utcnow()))
    assert found == (2, [])
    ((cause, by, seconds),) = served(stage)
    assert (cause, by, round(seconds)) == ("webhook_lost", "redelivery", 80)
    assert 70 <= oldest(stage, Cause.WEBHOOK_LOST) < 170


def test_a_report_over_the_rows_has_every_path(stage: Stage) -> None:
    stage.rows("""
        INSERT INTO stalls (cause, found_by, since, served_at)
        SELECT 'pod_gone', 'watch', now() - make_interval(secs => n), now() FROM generate_series(1, 100) n
    """)
    found = transaction(stage.rt.engine, lambda db: stalls.summary(db, since=utcnow() - timedelta(hours=1)))
    (watch,) = [each for each in found if each.many]
    assert (watch.cause, watch.found_by, watch.many, watch.most) == (Cause.POD_GONE, FoundBy.WATCH, 100, 100)
    assert (watch.p50, watch.p99) == (50.5, 99)


def test_claim_that_has_ended_is_not_marked_as_stalled(clusterless: Stage) -> None:
    stage = clusterless
    claim = lost(stage)
    stage.rows("UPDATE claims SET state = 'ended', ended_at = now(), end_reason = 'pod_gone'")
    mark(stage, claim, FoundBy.LISTS)
    assert stage.see(claim).stalled_cause is None


def test_first_finder_of_a_stalled_claim_stays(clusterless: Stage) -> None:
    stage = clusterless
    claim = lost(stage)
    mark(stage, claim, FoundBy.WATCH)
    before = stage.see(claim)
    mark(stage, claim, FoundBy.LISTS)
    assert stage.see(claim) == before
    assert before.stalled_found_by == FoundBy.WATCH


def lost(stage: Stage) -> int:
    """Return a claim whose Pod is gone."""
    stage.add_pod("pod-1")
    stage.job(7)
    return stage.claim("pod-1", job_id=7, state="claimed", age=30)


def mark(stage: Stage, claim: int, found_by: FoundBy) -> None:
    transaction(stage.rt.engine, lambda db: stalls.mark(db, claim, Cause.POD_GONE, found_by, now=utcnow()))


@pytest.mark.parametrize(
    ("purpose", "ended", "busy"), [("register", 10, True), ("register", 90, False), ("job", 10, False)]
)
def test_chaos_knows_that_a_persistent_runner_was_busy_when_its_pod_vanished(
    stage: Stage, pod: str, purpose: str, ended: int, busy: bool
) -> None:
    stage.job(7, state="completed")
    claim = stage.claim(pod, job_id=None, state="delivered", runner=RUNNER)
    stage.rows("UPDATE claims SET purpose = :purpose WHERE id = :id", purpose=purpose, id=claim)
    stage.rows(
        """
        INSERT INTO executions (job_id, runner_name, claim_id, account_id, vcpu, memory, started_at, ended_at)
        VALUES (7, :runner, :claim, 1, 1000, 1, now() - interval '200 s', now() - make_interval(secs => :ended))
        """,
        runner=RUNNER,
        claim=claim,
        ended=ended,
    )
    stage.rows(
        """
        INSERT INTO stalls (cause, found_by, claim_id, since, served_at)
        VALUES ('pod_gone', 'watch', :claim, now() - interval '70 s', now())
        """,
        claim=claim,
    )
    with stage.rt.engine.connect() as db:
        (found,) = read_stalls(db, since=utcnow().timestamp() - 600)
    assert found.said_busy is busy

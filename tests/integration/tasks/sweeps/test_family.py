"""Every sweep that finds something in rows, in the cluster or at GitHub, through the same bad days.

A sweep joins by a line in `FAMILY`: how something is stranded for it, and how one sees that it was repaired.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from celery import Task
from sqlalchemy import Row

from k8s_adapters import pods as pods_module
from models import sweep_runs
from models.engine import transaction
from ostler.clock import utcnow
from ostler.errors import Retryable
from tasks.pools import keep, pools
from tasks.sweeps.adrift_jobs import adrift_jobs
from tasks.sweeps.frame import LEASE
from tasks.sweeps.missing_pods import missing_pods
from tasks.sweeps.missing_stamps import missing_stamps
from tasks.sweeps.rematch import rematch
from tasks.sweeps.resume import resume
from tasks.sweeps.stale_claims import stale_claims
from tasks.sweeps.tick import Tick
from tasks.sweeps.unused_runners import unused_runners
from tests.integration.tasks.conftest import RUNNER, Stage, StubGitHub


@dataclass(frozen=True)
class Kin:
    """One sweep; `strand` makes something for it to repair, `repaired` counts what was.

    `moves` is what happens to the row between verdict and action; None where both are one statement.
    """

    task: Task
    strand: Callable[[Stage, StubGitHub], None]
    repaired: Callable[[Stage], int]
    lists: str | None = None
    kills: bool = False
    moves: str | None = None

    @property
    def name(self) -> str:
        return str(self.task.name).removeprefix("ostler.")


ENDED = "UPDATE claims SET state = 'ended', ended_at = now(), end_reason = 'completed', due_at = NULL"


def pod_of(stage: Stage) -> str:
    return min(stage.pods())


def never_delivered(stage: Stage, _github: StubGitHub) -> None:
    stage.job(7)
    stage.claim(pod_of(stage), job_id=7, state="minted", age=400)


def offline_runner(stage: Stage, github: StubGitHub) -> None:
    stage.job(7)
    stage.claim(pod_of(stage), job_id=7, state="delivered", age=90, runner=RUNNER)
    stage.rows("UPDATE claims SET runner_name = :runner", runner=RUNNER)
    github.runner = "offline"


def vanished_pod(stage: Stage, _github: StubGitHub) -> None:
    stage.job(7, state="running")
    pod = pod_of(stage)
    stage.claim(pod, job_id=7, state="executing", runner=RUNNER)
    stage.kube.request("DELETE", f"/api/v1/namespaces/{stage.namespace}/pods/{pod}")


def unstamped_pod(stage: Stage, _github: StubGitHub) -> None:
    stage.job(7)
    stage.claim(pod_of(stage), job_id=7, state="delivered", age=60)


def unasked_job(stage: Stage, _github: StubGitHub) -> None:
    stage.job(7, state="running")
    stage.rows("UPDATE jobs SET hold_reason = 'ask_github', changed_at = now() - interval '1 h'")


def overdue_claim(stage: Stage, _github: StubGitHub) -> None:
    stage.job(7)
    stage.claim(pod_of(stage), job_id=7, state="releasing")
    stage.rows("UPDATE claims SET due_at = now() - interval '1 s'")


def held_job(stage: Stage, _github: StubGitHub) -> None:
    stage.job(7, state="queued")
    stage.rows("UPDATE jobs SET hold_reason = 'no_pool', pool_id = NULL, labels = '{self-hosted,small}'")


def releasing(stage: Stage) -> int:
    return len(stage.rows("SELECT 1 FROM claims WHERE state = 'releasing'"))


def pod_gone(stage: Stage) -> int:
    return len(stage.rows("SELECT 1 FROM claims WHERE end_reason = 'pod_gone'"))


def requeued(stage: Stage) -> int:
    return len(stage.rows("SELECT 1 FROM jobs WHERE state = 'queued' AND hold_reason IS NULL"))


FAMILY = (
    Kin(stale_claims, never_delivered, releasing, moves=ENDED),
    Kin(unused_runners, offline_runner, releasing, lists="runners", kills=True, moves=ENDED),
    Kin(missing_pods, vanished_pod, pod_gone, lists="Pods", moves=ENDED),
    Kin(missing_stamps, unstamped_pod, lambda stage: len(stage.outbox.take("ostler.stamp")), lists="Pods",
        moves=ENDED),
    Kin(adrift_jobs, unasked_job, requeued, moves="UPDATE jobs SET state = 'completed', hold_reason = NULL"),
    Kin(resume, overdue_claim, lambda stage: len(stage.outbox.take("ostler.release"))),
    Kin(rematch, held_job, requeued),
)  # fmt: skip

every = pytest.mark.parametrize("kin", FAMILY, ids=lambda kin: kin.name)
listing = pytest.mark.parametrize("kin", [kin for kin in FAMILY if kin.lists], ids=lambda kin: kin.name)
moving = pytest.mark.parametrize("kin", [kin for kin in FAMILY if kin.moves], ids=lambda kin: kin.name)


@pytest.fixture
def github(stage: Stage) -> StubGitHub:
    stub = StubGitHub()
    stage.rt.github = stub
    return stub


@pytest.fixture(autouse=True)
def _pods(stage: Stage, github: StubGitHub) -> None:
    """Three Pods of a pool, so that a list has a second page also when one of them has gone."""
    del github
    stage.pool(replicas=3)
    pools.run()
    for message in stage.outbox.take("ostler.keep"):
        keep.run(**message)
    stage.outbox.sent.clear()


def ledger(stage: Stage, sweep: str) -> list[Row[Any]]:
    return stage.rows("SELECT * FROM repairs WHERE sweep = :sweep ORDER BY id", sweep=sweep)


def state(stage: Stage) -> list[Any]:
    """Return all that a sweep may change, but for its own rows."""
    claims = stage.rows("SELECT id, state, end_reason, job_id, chain_no, due_at, runner_absent_at FROM claims")
    jobs = stage.rows("SELECT id, state, hold_reason, pool_id, ask_after FROM jobs")
    return [*claims, *jobs, *stage.outbox.sent, *sorted(stage.pods())]


@every
def test_what_is_stranded_is_repaired_once_and_written_down_with_its_grounds(
    stage: Stage, github: StubGitHub, kin: Kin
) -> None:
    kin.strand(stage, github)
    kin.task.run()
    assert kin.repaired(stage) == 1
    (row,) = ledger(stage, kin.name)
    assert row.outcome in {"done", "verified"}
    assert row.what
    assert row.why
    assert (row.claim_id, row.job_id) != (None, None)
    (run,) = stage.rows("SELECT * FROM sweep_runs")
    assert (run.outcome, run.found, run.repaired, row.run_id) == ("done", 1, 1, run.id)


@every
def test_a_paused_sweep_changes_nothing(stage: Stage, github: StubGitHub, kin: Kin) -> None:
    kin.strand(stage, github)
    before = state(stage)
    transaction(stage.rt.engine, lambda db: sweep_runs.pause(db, kin.name, who="bo", why="", now=utcnow()))
    kin.task.run()
    assert state(stage) == before
    transaction(stage.rt.engine, lambda db: sweep_runs.resume(db, kin.name))
    kin.task.run()
    assert kin.repaired(stage) == 1


@every
def test_a_dry_run_changes_nothing_and_names_what_it_would_repair(stage: Stage, github: StubGitHub, kin: Kin) -> None:
    kin.strand(stage, github)
    before = state(stage)
    kin.task.run(dry=True)
    assert (state(stage), github.deleted) == (before, [])
    assert [(row.outcome, row.dry) for row in ledger(stage, kin.name)] == [("dry", True)]
    kin.task.run()
    assert kin.repaired(stage) == 1


@every
def test_beside_a_tick_that_runs_a_second_one_does_nothing(stage: Stage, github: StubGitHub, kin: Kin) -> None:
    kin.strand(stage, github)
    before = state(stage)
    taken = transaction(stage.rt.engine, lambda db: sweep_runs.take(
        db, kin.name, holder="another", lease=LEASE, dry=False, again=False, now=utcnow()))  # fmt: skip
    assert isinstance(taken, sweep_runs.Taken)
    kin.task.run()
    assert state(stage) == before


@listing
@pytest.mark.parametrize("how", ["fails", "empty", "partial"])
def test_a_list_that_cannot_be_trusted_changes_nothing(
    stage: Stage, github: StubGitHub, monkeypatch: pytest.MonkeyPatch, kin: Kin, how: str
) -> None:
    kin.strand(stage, github)
    before = state(stage)
    spoil(stage, github, monkeypatch, kin, how)
    kin.task.run()
    monkeypatch.undo()
    github.broken = False
    after = state(stage)
    if (kin.lists, how) == ("runners", "empty"):  # the first of two looks, a minute apart
        stage.rows("UPDATE claims SET runner_absent_at = NULL")
        after = state(stage)
    assert after == before
    assert ledger(stage, kin.name) == []
    kin.task.run()
    assert kin.repaired(stage) == (0 if github.runner is None and kin.lists == "runners" else 1)


def spoil(stage: Stage, github: StubGitHub, monkeypatch: pytest.MonkeyPatch, kin: Kin, how: str) -> None:
    """Break the list that a sweep reads: no answer, nothing in it, or no answer for its second page."""
    if kin.lists == "runners":
        if how == "empty":
            monkeypatch.setattr(github, "runner", None)
        else:  # the adapter gives a whole list or none
            github.broken = True
        return
    original = stage.kube.request

    def request(method: str, path: str, **given: Any) -> Any:
        if method != "GET" or not path.endswith("/pods"):
            return original(method, path, **given)
        if how == "fails" or (how == "partial" and "continue" in given["query"]):
            raise Retryable("no answer")
        answer = original(method, path, **given)
        return {**answer, "items": []} if how == "empty" else answer

    if how == "partial":
        monkeypatch.setattr(pods_module, "_PAGE", 1)
    monkeypatch.setattr(stage.kube, "request", request)


@moving
def test_a_row_that_moved_between_verdict_and_action_is_left(
    stage: Stage, github: StubGitHub, monkeypatch: pytest.MonkeyPatch, kin: Kin
) -> None:
    kin.strand(stage, github)
    for name in ("repair", "repair_by"):
        original = getattr(Tick, name)

        def meanwhile(tick: Tick, *given: Any, original: Any = original, **named: Any) -> Any:
            stage.rows(str(kin.moves))
            return original(tick, *given, **named)

        monkeypatch.setattr(Tick, name, meanwhile)
    kin.task.run()
    monkeypatch.undo()
    assert kin.repaired(stage) == 0
    assert [row for row in ledger(stage, kin.name) if row.outcome != "moved_on"] == []
    assert stage.outbox.sent == []
    (run,) = stage.rows("SELECT * FROM sweep_runs")
    assert (run.found, run.repaired, run.moved_on) == (1, 0, 1)


def test_a_sweep_that_kills_stops_at_its_budget_and_goes_on_in_the_next_tick(stage: Stage, github: StubGitHub) -> None:
    offline_runner(stage, github)
    more = """
        WITH pods AS (
            INSERT INTO runner_pods (pool_id, namespace, name, uid, attempt_id, template_hash, created_at)
            SELECT pool_id, namespace, 'more-' || n, 'more-' || n, 'a', 'h', now()
            FROM runner_pods, generate_series(1, 7) n WHERE name = :pod RETURNING id, uid, pool_id)
        INSERT INTO claims (purpose, runner_pod_id, pod_uid, pool_id, account_id, installation_id, scope, vcpu, memory,
                            state, created_at, changed_at, minted_at, delivered_at, spare_since, runner_name)
        SELECT 'job', id, uid, pool_id, 1, 501, 'orgs/acme', 1, 1, 'delivered', t.at, t.at, t.at, t.at, t.at, 'r' || id
        FROM pods, (SELECT now() - interval '90 s' AS at) t
    """
    stage.rows(more, pod=pod_of(stage))
    stage.rows("UPDATE claims SET runner_absent_at = now() - interval '61 s'")
    unused_runners.run()
    assert releasing(stage) == 5
    (run,) = stage.rows("SELECT * FROM sweep_runs")
    assert (run.listed, run.found, run.repaired, run.overflow, run.outcome) == (1, 8, 5, 3, "unfinished")
    unused_runners.run()
    assert releasing(stage) == 8

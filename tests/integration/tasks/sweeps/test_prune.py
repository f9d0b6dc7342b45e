"""Pruning: old finished rows are deleted, one page per transaction. Live rows are never deleted, however old."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from models.db.engine import transaction
from models.sweeps import prune as of_pages
from models.sweeps.prune import Kind
from ostler.clock import utcnow
from tasks.sweeps.prune import prune, retentions
from tests.integration.tasks.conftest import RUNNER, Stage, StubGitHub
from tests.rows import insert_pool

DAY = 86400.0


def count(stage: Stage, table: str) -> int:
    return int(stage.rows(f"SELECT count(*) AS many FROM {table}")[0].many)  # noqa: S608  a name of this file


def old(days: float) -> dict[str, Any]:
    return {"at": utcnow() - timedelta(days=days)}


def story(stage: Stage, pod: str, *, days: float) -> int:
    """Insert a job that ended `days` days ago, with all rows that belong to it."""
    stage.job(7, state="running")
    claim = stage.claim(pod, job_id=7, state="executing", runner=RUNNER)
    at = old(days)
    stage.rows(
        """
        INSERT INTO executions (job_id, runner_name, claim_id, account_id, vcpu, memory, started_at, ended_at)
        VALUES (7, :runner, :claim, 1, 1, 1, :at, :at)
        """,
        runner=RUNNER,
        claim=claim,
        **at,
    )
    stage.rows("UPDATE claims SET state = 'ended', end_reason = 'completed', ended_at = :at", **at)
    stage.rows("UPDATE jobs SET state = 'completed', conclusion = 'success', completed_at = :at", **at)
    stage.rows("UPDATE runner_pods SET gone_at = :at WHERE name = :pod", pod=pod, **at)
    for kind in ("job", "claim"):
        stage.rows(
            f"""
            INSERT INTO {kind}_events ({kind}_id, at, transition, to_state, who, why)
            VALUES (:id, :at, 'x', 'x', 'x', 'x')
            """,  # noqa: S608  one of two literals
            id=7 if kind == "job" else claim,
            **at,
        )
    return claim


TABLES = ("jobs", "claims", "executions", "mint_attempts", "job_events", "claim_events")


def left(stage: Stage) -> set[str]:
    return {table for table in TABLES if count(stage, table)}


@pytest.mark.parametrize(
    ("days", "stays"),
    [
        (29, set(TABLES)),
        (31, {"jobs", "claims", "executions", "mint_attempts"}),
        (89, {"jobs", "claims", "executions", "mint_attempts"}),
        (91, set()),
    ],
)
def test_a_job_goes_with_all_that_hangs_on_it_and_its_events_before(
    stage: Stage, pod: str, days: float, stays: set[str]
) -> None:
    story(stage, pod, days=days)
    pods = count(stage, "runner_pods")
    prune.run()
    assert left(stage) == stays
    assert count(stage, "runner_pods") == (pods if stays else pods - 1)
    (run,) = stage.rows("SELECT * FROM sweep_runs")
    assert run.outcome == "done"


ALIVE = {
    "its job is not over": "UPDATE jobs SET state = 'queued', completed_at = NULL, conclusion = NULL",
    "its claim is live": "UPDATE claims SET state = 'executing', end_reason = NULL, ended_at = NULL",
    "its Pod lives": "UPDATE runner_pods SET gone_at = NULL",
    "its execution goes on": "UPDATE executions SET ended_at = NULL",
}


@pytest.mark.parametrize("how", ALIVE)
def test_what_lives_keeps_all_that_it_needs_however_old(stage: Stage, pod: str, how: str) -> None:
    story(stage, pod, days=400)
    stage.rows(ALIVE[how])
    prune.run()
    assert {"jobs", "claims", "executions", "mint_attempts"} <= left(stage)
    assert stage.rows("SELECT 1 FROM executions WHERE claim_id IS NOT NULL")
    if how == "its job is not over":
        assert "job_events" in left(stage)
    if how == "its claim is live":
        assert "claim_events" in left(stage)


OPEN = "UPDATE jobs SET state = 'queued', completed_at = NULL, conclusion = NULL"
GUARDED = {
    "the claim of a job that is queued again": ("DELETE FROM executions", OPEN, {"claims", "mint_attempts", "jobs"}),
    "the claim that executed a job which is open": (
        "UPDATE claims SET job_id = NULL",
        OPEN,
        {"claims", "mint_attempts", "executions", "jobs"},
    ),
    "a job that is executed by what is not ours": (
        "DELETE FROM mint_attempts",
        "UPDATE executions SET claim_id = NULL, ended_at = NULL",
        {"executions", "jobs"},
    ),
}
"""Rows that a single guard keeps: the change of the story, and the tables that still have a row of it."""


@pytest.mark.parametrize("what", GUARDED)
def test_each_guard_keeps_what_no_other_one_does(stage: Stage, pod: str, what: str) -> None:
    story(stage, pod, days=400)
    *changes, stays = GUARDED[what]
    for change in changes:
        stage.rows(change)
    prune.run()
    assert left(stage) - {"job_events", "claim_events"} == stays


@pytest.mark.usefixtures("pod")
def test_an_open_job_without_a_claim_is_kept_whatever_time_it_bears(stage: Stage) -> None:
    stage.job(7, state="queued")
    stage.rows("UPDATE jobs SET completed_at = now() - interval '400 days'")
    prune.run()
    assert left(stage) == {"jobs"}


def test_a_job_that_another_claim_executed_keeps_its_execution_without_that_claim(stage: Stage, pod: str) -> None:
    story(stage, pod, days=100)
    stage.rows("UPDATE claims SET job_id = NULL")
    stage.rows("UPDATE jobs SET completed_at = now() - interval '10 days'")
    prune.run()
    assert left(stage) == {"jobs", "executions"}
    assert [row.claim_id for row in stage.rows("SELECT claim_id FROM executions")] == [None]


def test_deliveries_runs_and_finished_repairs_are_pruned_by_their_own_times(stage: Stage) -> None:
    for days in (6, 8):
        stage.rows(
            "INSERT INTO deliveries VALUES (:guid, 'workflow_job', 'queued', 7, 'accepted', :at)",
            guid=str(days),
            **old(days),
        )
    for days in (29, 31):
        stage.rows(
            """
            INSERT INTO stalls (cause, found_by, since, served_at) VALUES ('pod_gone', 'watch', :at, :at)
            """,
            **old(days),
        )
        stage.rows(
            """
            INSERT INTO sweep_runs (sweep, lease_no, who, dry, began_at, ended_at, outcome)
            VALUES ('resume', 1, 'x', false, :at, :at, 'done')
            """,
            **old(days),
        )
    for days, outcome in ((89, "verified"), (91, "verified"), (91, "done")):
        stage.rows(
            """
            INSERT INTO repairs (sweep, run_id, at, what, why, witnesses, kills, dry, expects, outcome, verify_by)
            VALUES ('resume', 1, :at, 'x', 'x', '{}', false, false, 'own', :outcome, now() + interval '1 day')
            """,
            outcome=outcome,
            **old(days),
        )
    prune.run()
    assert [row.guid for row in stage.rows("SELECT guid FROM deliveries")] == ["6"]
    assert count(stage, "stalls") == 1
    assert len(stage.rows("SELECT 1 FROM sweep_runs WHERE sweep = 'resume'")) == 1
    kept = stage.rows("SELECT outcome FROM repairs WHERE sweep = 'resume' ORDER BY outcome")
    assert [row.outcome for row in kept] == ["done", "verified"]


def test_prune_deletes_old_failures_of_runners_that_brake_no_pool(stage: Stage) -> None:
    pool_id = insert_pool(stage.rt.engine, "braked")
    before = utcnow() - timedelta(days=30)
    failures = {
        "young": (1, pool_id, 29, True),
        "cleared": (2, pool_id, 31, True),
        "in force": (3, pool_id, 31, False),
        "of a pool that is gone": (4, 999_999, 31, False),
    }
    for claim, of_pool, days, cleared in failures.values():
        stage.rows(
            """
            INSERT INTO runner_failures (claim_id, pool_id, template_hash, account_id, job_id, pod_uid, claimed_at,
                                         at, why, cleared_at)
            VALUES (:claim, :pool, 'x', 1, 7, 'uid', :at, :at, 'x',
                    CASE WHEN :cleared THEN CAST(:at AS timestamptz) END)
            """,
            claim=claim,
            pool=of_pool,
            cleared=cleared,
            **old(days),
        )
    gone = transaction(stage.rt.engine, lambda db: of_pages.prune_page(db, Kind.RUNNER_FAILURES, before=before))
    assert gone == 2
    assert [row.claim_id for row in stage.rows("SELECT claim_id FROM runner_failures ORDER BY claim_id")] == [1, 3]


def many_deliveries(stage: Stage, many: int) -> None:
    stage.rows(
        """
        INSERT INTO deliveries SELECT n::text, 'workflow_job', 'queued', n, 'accepted', :at - n * interval '1 s'
        FROM generate_series(1, :many) n
        """,
        many=many,
        **old(8),
    )


def test_a_page_is_a_transaction_and_the_oldest_go_first(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_pages, "PAGE", 10)
    many_deliveries(stage, 25)
    before = utcnow() - timedelta(days=7)
    gone = transaction(stage.rt.engine, lambda db: of_pages.prune_page(db, Kind.DELIVERIES, before=before))
    assert gone == 10
    assert max(int(row.guid) for row in stage.rows("SELECT guid FROM deliveries")) == 15
    prune.run()
    assert count(stage, "deliveries") == 0
    rows = stage.rows("SELECT what, subject, outcome FROM repairs")
    assert [tuple(row) for row in rows] == [("forget", "deliveries", "verified")] * 2


def test_a_dry_run_counts_and_forgets_nothing(stage: Stage) -> None:
    many_deliveries(stage, 25)
    prune.run(dry=True)
    assert count(stage, "deliveries") == 25
    (row,) = stage.rows("SELECT what, after, outcome FROM repairs")
    assert tuple(row) == ("forget", "25 rows", "dry")


def test_a_paused_sweep_forgets_nothing(stage: Stage) -> None:
    many_deliveries(stage, 3)
    stage.with_settings(sweeps_paused=("prune",))
    prune.run()
    assert count(stage, "deliveries") == 3


def test_what_time_did_not_suffice_for_is_gone_on_with_soon(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    many_deliveries(stage, 3)
    monkeypatch.setattr("tasks.sweeps.frame.pace.stopping", lambda: True)
    prune.run()
    assert count(stage, "deliveries") == 3
    assert [message["after"] for message in stage.outbox.take("ostler.prune")] == [60]


def test_rows_that_others_hold_are_left_to_the_next_tick(stage: Stage) -> None:
    many_deliveries(stage, 3)
    with stage.rt.engine.begin() as other:
        other.exec_driver_sql("SELECT 1 FROM deliveries WHERE guid = '2' FOR UPDATE")
        prune.run()
        assert [row.guid for row in stage.rows("SELECT guid FROM deliveries")] == ["2"]
    prune.run()
    assert count(stage, "deliveries") == 0


def test_every_kind_has_a_time_and_what_points_at_others_goes_first(stage: Stage, github: StubGitHub) -> None:
    del github
    assert list(retentions(stage.rt.settings)) == list(Kind)  # type: ignore[arg-type]

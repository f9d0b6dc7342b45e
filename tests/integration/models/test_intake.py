"""Effects of webhooks on the rows of jobs, even if they arrive late, twice or out of order."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, text
from sqlalchemy import event as database_events
from sqlalchemy.exc import DBAPIError

from github_adapters.webhooks import parse_workflow_job
from models.browse.jobs import job_story
from models.browse.pods import pod_story
from models.db.engine import transaction
from models.intake import intake
from models.intake.binding_locks import Contended
from models.intake.intake import Outcome
from ostler.timings import Timings
from rules.intake.events import WorkflowJobEvent
from tests.database import Database
from tests.integration.models.webhook_rows import (
    ACME,
    BUDGET,
    NOW,
    QUEUED,
    add_claim,
    add_pool,
    claim_row,
    completed,
    count,
    deliver,
    execution_row,
    in_progress,
    job_row,
    queued,
)


def _set(engine: Engine, statement: str, **values: Any) -> None:
    with engine.begin() as db:
        db.execute(text(statement), values)


def _events(engine: Engine, job_id: int) -> list[tuple[str, str | None, str]]:
    with engine.connect() as db:
        rows = db.execute(
            text("SELECT transition, from_state, to_state FROM job_events WHERE job_id = :id ORDER BY id"),
            {"id": job_id},
        )
        return [(row.transition, row.from_state, row.to_state) for row in rows]


def test_a_job_goes_from_queued_to_completed(database: Database) -> None:
    engine = database.engine
    pool = add_pool(engine, "linux")
    assert deliver(engine, queued(1)).wakes == {pool}
    claim = add_claim(engine, pool, 1, runner="r-1")
    deliver(engine, in_progress(1, "r-1"))
    assert job_row(engine, 1).state == "running"
    assert claim_row(engine, claim).state == "executing"
    assert claim_row(engine, claim).jit is None
    done = deliver(engine, completed(1, "r-1"))
    assert done.reconcile == {pool}
    assert job_row(engine, 1).conclusion == "success"
    assert claim_row(engine, claim).end_reason == "completed"
    assert _events(engine, 1) == [
        ("job_seen", None, "queued"),
        ("job_run", "claimed", "running"),
        ("job_finish", "running", "completed"),
    ]


def test_a_queued_job_is_kept_as_github_described_it(database: Database) -> None:
    pool = add_pool(database.engine, "Linux", "x64")
    deliver(database.engine, queued(1, labels=("linux",)))
    job = job_row(database.engine, 1)
    assert (job.state, job.pool_id, job.hold_reason) == ("queued", pool, None)
    assert job.queued_at == NOW - timedelta(seconds=30)
    assert (job.scope, job.repository, job.installation_id, job.head_branch) == ("orgs/acme", "acme/app", 3, "main")


def test_the_runners_of_a_users_jobs_are_registered_in_the_repository(database: Database) -> None:
    deliver(database.engine, queued(1, owner_type="User"))
    assert job_row(database.engine, 1).scope == "repos/acme/app"


def test_an_account_seen_first_gets_the_default_budget(database: Database) -> None:
    deliver(database.engine, queued(1), queued(2, owner_id=78, owner_login="umbra", installation_id=None))
    with database.engine.connect() as db:
        accounts = db.execute(text("SELECT id, login, budget_count, budget_vcpu FROM accounts ORDER BY id")).all()
    assert [tuple(row) for row in accounts] == [
        (ACME, "acme", BUDGET.count, BUDGET.vcpu_millicores),
        (78, "umbra", BUDGET.count, BUDGET.vcpu_millicores),
    ]
    assert count(database.engine, "installations") == 1


def test_a_doubled_guid_counts_once(database: Database) -> None:
    pool = add_pool(database.engine, "linux")
    first = deliver(database.engine, queued(1), guids=("same",))
    again = deliver(database.engine, queued(1), guids=("same",))
    assert first.outcomes == (Outcome.ACCEPTED,)
    assert first.wakes == {pool}
    assert again.outcomes == (Outcome.DUPLICATE,)
    assert again.wakes == frozenset()
    assert _events(database.engine, 1) == [("job_seen", None, "queued")]


def test_a_guid_doubled_within_a_batch_counts_once(database: Database) -> None:
    applied = deliver(database.engine, queued(1), queued(2), queued(1), guids=("a", "b", "a"))
    assert applied.outcomes == (Outcome.ACCEPTED, Outcome.ACCEPTED, Outcome.DUPLICATE)
    assert count(database.engine, "deliveries") == 2


def test_a_doubled_guid_of_a_completed_job_cannot_bring_it_back(database: Database) -> None:
    deliver(database.engine, queued(1), guids=("q",))
    deliver(database.engine, completed(1, None), guids=("c",))
    deliver(database.engine, queued(1), guids=("q",))
    deliver(database.engine, queued(1), guids=("another",))
    assert job_row(database.engine, 1).state == "completed"


def test_completed_before_queued_leaves_a_terminal_job(database: Database) -> None:
    pool = add_pool(database.engine, "linux")
    assert deliver(database.engine, completed(1, None, "cancelled")).wakes == frozenset()
    late = deliver(database.engine, queued(1))
    job = job_row(database.engine, 1)
    assert (job.state, job.conclusion, job.pool_id) == ("completed", "cancelled", pool)
    assert late.wakes == frozenset()


def test_in_progress_for_a_job_and_a_runner_we_never_heard_of_is_recorded(database: Database) -> None:
    add_pool(database.engine, "linux", vcpu=4000, memory=8192)
    applied = deliver(database.engine, in_progress(1, "somebody-elses"))
    execution = execution_row(database.engine, 1)
    assert execution is not None
    assert (execution.claim_id, execution.vcpu, execution.memory) == (None, 4000, 8192)
    assert job_row(database.engine, 1).state == "running"
    assert applied.wakes == frozenset()


def test_a_foreign_execution_of_a_job_without_a_pool_has_no_size(database: Database) -> None:
    deliver(database.engine, in_progress(1, "somebody-elses"))
    execution = execution_row(database.engine, 1)
    assert execution is not None
    assert (execution.vcpu, execution.memory) == (0, 0)
    deliver(database.engine, completed(1, "somebody-elses"))
    execution = execution_row(database.engine, 1)
    assert execution is not None
    assert execution.ended_at is not None
    assert job_row(database.engine, 1).hold_reason is None


@pytest.mark.parametrize("action", ["waiting", "queued"])
def test_a_job_behind_an_environment_waits_and_then_queues(database: Database, action: str) -> None:
    pool = add_pool(database.engine, "linux")
    assert deliver(database.engine, queued(1, action=action, status="waiting")).wakes == frozenset()
    assert (job_row(database.engine, 1).state, job_row(database.engine, 1).queued_at) == ("waiting", QUEUED.created_at)
    assert deliver(database.engine, queued(1)).wakes == {pool}
    assert (job_row(database.engine, 1).state, job_row(database.engine, 1).queued_at) == ("queued", NOW)
    assert deliver(database.engine, queued(1, action=action, status="waiting")).wakes == frozenset()
    assert job_row(database.engine, 1).state == "queued"


def test_waiting_and_queued_in_one_batch_make_a_queued_job(database: Database) -> None:
    pool = add_pool(database.engine, "linux")
    applied = deliver(database.engine, queued(1), queued(1, action="waiting", status="waiting"))
    assert job_row(database.engine, 1).state == "queued"
    assert applied.wakes == {pool}


def test_a_pool_that_came_while_the_job_waited_gets_it(database: Database) -> None:
    deliver(database.engine, queued(1, action="waiting", status="waiting"))
    assert job_row(database.engine, 1).hold_reason == "no_pool"
    pool = add_pool(database.engine, "linux")
    assert deliver(database.engine, queued(1)).wakes == {pool}
    assert job_row(database.engine, 1).hold_reason is None


@pytest.mark.parametrize("oddity", [{}, {"status": "queued"}])
@pytest.mark.parametrize("runner", [0, "", None])
def test_runner_fields_may_be_0_empty_or_null(database: Database, runner: object, oddity: dict[str, str]) -> None:
    body = {
        "action": "completed",
        "workflow_job": {
            "id": 1,
            "run_id": 2,
            "name": "build",
            "status": "completed",
            "conclusion": "cancelled",
            "labels": ["linux"],
            "created_at": "2026-11-20T11:59:30Z",
            "started_at": "2026-11-20T11:59:30Z",
            "completed_at": "2026-11-20T12:00:00Z",
            "runner_id": runner if runner != "" else 0,
            "runner_name": runner,
        }
        | oddity,
        "repository": {
            "id": 5,
            "full_name": "acme/app",
            "private": True,
            "owner": {"id": ACME, "login": "acme", "type": "User"},
        },
    }
    deliver(database.engine, parse_workflow_job(json.dumps(body).encode()))
    assert job_row(database.engine, 1).conclusion == "cancelled"
    assert execution_row(database.engine, 1) is None


def test_a_runner_in_a_queued_event_means_nothing(database: Database) -> None:
    pool = add_pool(database.engine, "linux")
    deliver(database.engine, queued(2))
    claim = add_claim(database.engine, pool, 2, runner="r-2")
    deliver(database.engine, queued(1, runner_name="r-2", runner_id=9))
    assert job_row(database.engine, 1).state == "queued"
    assert claim_row(database.engine, claim).state == "delivered"


def test_in_progress_without_a_runner_name_still_says_that_the_job_runs(database: Database) -> None:
    deliver(database.engine, in_progress(1, None))
    assert job_row(database.engine, 1).state == "running"
    assert execution_row(database.engine, 1) is None


def test_a_conclusion_that_nobody_knows_is_kept(database: Database) -> None:
    deliver(database.engine, completed(1, None, "abducted"))
    assert job_row(database.engine, 1).conclusion == "abducted"


def test_a_job_that_no_pool_serves_is_held(database: Database) -> None:
    add_pool(database.engine, "windows")
    assert deliver(database.engine, queued(1)).wakes == frozenset()
    job = job_row(database.engine, 1)
    assert (job.state, job.hold_reason, job.pool_id) == ("queued", "no_pool", None)
    assert "linux" in job.hold_detail


def test_a_job_that_two_pools_serve_equally_well_is_held(database: Database) -> None:
    first, second = add_pool(database.engine, "linux"), add_pool(database.engine, "linux")
    deliver(database.engine, queued(1))
    job = job_row(database.engine, 1)
    assert (job.hold_reason, job.hold_detail) == ("two_pools", f"pools with the ids {first}, {second}")


def test_an_account_with_budget_0_has_its_jobs_held(database: Database) -> None:
    pool = add_pool(database.engine, "linux")
    deliver(database.engine, queued(1))
    _set(database.engine, "UPDATE accounts SET budget_count = 0")
    assert deliver(database.engine, queued(2)).wakes == frozenset()
    job = job_row(database.engine, 2)
    assert (job.hold_reason, job.pool_id) == ("budget_zero", pool)


@pytest.mark.parametrize(
    ("kind", "key"),
    [("installation", "3"), ("account", str(ACME)), ("repository", "acme/app"), ("runner_group", "3/1")],
)
def test_a_backoff_holds_a_new_job_until_it_ends(database: Database, kind: str, key: str) -> None:
    add_pool(database.engine, "linux")
    until = NOW + timedelta(minutes=3)
    _set(
        database.engine,
        "INSERT INTO backoffs (kind, key, not_before, failures, reason, changed_at)"
        " VALUES (:kind, :key, :until, 1, 'GitHub said no', :now), ('account', '99', :until, 1, 'other', :now),"
        " ('runner_group', '3/2', :until, 1, 'another group', :now)",
        kind=kind,
        key=key,
        until=until,
        now=NOW,
    )
    deliver(database.engine, queued(1), now=NOW)
    deliver(database.engine, queued(2), now=until)
    job = job_row(database.engine, 1)
    assert (job.hold_reason, job.not_before) == ("backoff", until)
    assert job_row(database.engine, 2).hold_reason is None


def test_a_held_job_that_runs_elsewhere_loses_its_hold(database: Database) -> None:
    deliver(database.engine, queued(1))
    deliver(database.engine, in_progress(1, "hosted"))
    job = job_row(database.engine, 1)
    assert (job.state, job.hold_reason, job.hold_detail) == ("running", None, None)


def test_a_login_that_changed_is_the_same_account(database: Database) -> None:
    deliver(database.engine, queued(1))
    deliver(database.engine, queued(2, owner_login="acme-new", repository="acme-new/app"))
    with database.engine.connect() as db:
        assert db.execute(text("SELECT login FROM accounts")).scalar_one() == "acme-new"


def test_jobs_of_hosted_runners_cost_one_insert_for_a_batch(database: Database) -> None:
    add_pool(database.engine, "linux")
    deliver(database.engine, queued(1))
    written: list[str] = []

    def note(_db: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if any(word in statement for word in ("INSERT", "UPDATE", "DELETE")):
            written.append(statement)

    database_events.listen(database.engine, "before_cursor_execute", note)
    try:
        applied = deliver(database.engine, *(queued(number, labels=("ubuntu-latest",)) for number in range(2, 52)))
    finally:
        database_events.remove(database.engine, "before_cursor_execute", note)
    assert [statement.count("INSERT INTO jobs ") for statement in written if "INTO jobs " in statement] == [1]
    assert len(written) <= 2  # the other statement belongs to the account
    assert (applied.wakes, applied.asks, applied.reconcile, applied.strangers) == (
        frozenset(),
        frozenset(),
        frozenset(),
        False,
    )
    assert job_row(database.engine, 51).hold_reason == "no_pool"


def test_a_full_batch_is_applied_at_once(database: Database) -> None:
    pool = add_pool(database.engine, "linux")
    applied = deliver(database.engine, *(queued(job_id) for job_id in range(200, 0, -1)))
    assert applied.wakes == {pool}
    assert count(database.engine, "jobs") == 200
    assert count(database.engine, "job_events") == 200


# Order and doubling

_STORY = ("waiting", "queued", "in_progress", "completed")
_job_ids = itertools.count(1000)


def _story(job_id: int, *, runner: str) -> dict[str, WorkflowJobEvent]:
    return {
        "waiting": queued(job_id, action="waiting", status="waiting"),
        "queued": queued(job_id),
        "in_progress": in_progress(job_id, runner),
        "completed": completed(job_id, runner),
    }


def _outcome(engine: Engine, job_id: int) -> tuple[dict[str, Any], dict[str, Any]]:
    job = dict(job_row(engine, job_id)._mapping)
    execution = execution_row(engine, job_id)
    assert execution is not None
    found = dict(execution._mapping)
    for column in ("id", "changed_at", "queued_at"):  # an approval that arrives first is not known to be one
        del job[column]
    for column in ("id", "job_id", "runner_name", "claim_id"):
        del found[column]
    return job, found


@st.composite
def _arrivals(draw: st.DrawFn) -> list[list[tuple[str, int]]]:
    """Draw batches of (action, copy): every action at least once, in any order. A copy can be a delivery of its own."""
    copies = st.tuples(st.sampled_from(_STORY), st.integers(0, 1))
    arrivals = draw(st.permutations([(action, 0) for action in _STORY] + draw(st.lists(copies, max_size=4))))
    batches: list[list[tuple[str, int]]] = [[]]
    for arrival in arrivals:
        if draw(st.booleans()):
            batches.append([])
        batches[-1].append(arrival)
    return [batch for batch in batches if batch]


@given(arrivals=_arrivals())
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_order_and_doubling_of_a_jobs_events_ends_in_the_same_rows(
    database: Database, arrivals: list[list[tuple[str, int]]]
) -> None:
    engine = database.engine
    if count(engine, "pools") == 0:
        add_pool(engine, "linux")
    straight, mixed = next(_job_ids), next(_job_ids)
    for event in _story(straight, runner=f"foreign-{straight}").values():
        deliver(engine, event)
    story = _story(mixed, runner=f"foreign-{mixed}")
    for batch in arrivals:
        deliver(
            engine,
            *(story[action] for action, _ in batch),
            guids=tuple(f"{mixed}-{action}-{copy}" for action, copy in batch),
        )
    assert _outcome(engine, mixed) == _outcome(engine, straight)


@given(arrivals=_arrivals())
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_order_ends_the_claim_of_the_runner_that_ran_the_job(
    database: Database, arrivals: list[list[tuple[str, int]]]
) -> None:
    engine = database.engine
    if count(engine, "pools") == 0:
        add_pool(engine, "linux")
    with engine.connect() as db:
        pool: int = db.execute(text("SELECT id FROM pools")).scalar_one()
    job_id = next(_job_ids)
    story = _story(job_id, runner=f"r-{job_id}")
    deliver(engine, story["queued"])
    claim = add_claim(engine, pool, job_id, runner=f"r-{job_id}")
    for batch in arrivals:
        deliver(
            engine,
            *(story[action] for action, _ in batch),
            guids=tuple(f"{job_id}-{action}-{copy}" for action, copy in batch),
        )
    assert (claim_row(engine, claim).state, claim_row(engine, claim).end_reason) == ("ended", "completed")
    execution = execution_row(engine, job_id)
    assert execution is not None
    assert execution.claim_id == claim
    assert job_row(engine, job_id).state == "completed"


def test_a_row_that_postgres_refuses_leaves_nothing_of_its_batch(database: Database) -> None:
    with pytest.raises(DBAPIError):
        deliver(database.engine, queued(1), replace(queued(2), name="\ud800"))
    assert count(database.engine, "jobs") == 0
    assert count(database.engine, "deliveries") == 0


@pytest.mark.parametrize(
    "held",
    [
        "SELECT 1 FROM jobs WHERE id = 1 FOR UPDATE",
        "SELECT 1 FROM claims WHERE job_id = 1 FOR UPDATE",
    ],
    ids=["job", "claim"],
)
def test_batch_names_the_jobs_that_need_a_locked_row_without_a_wait(database: Database, held: str) -> None:
    engine = database.engine
    pool = add_pool(engine, "linux")
    deliver(engine, queued(1), queued(2))
    add_claim(engine, pool, 1, runner="r-1")
    batch = [intake.Received("first", in_progress(1, "r-1")), intake.Received("second", in_progress(2, "elsewhere"))]
    with engine.connect() as other, other.begin():
        other.execute(text(held))
        with pytest.raises(Contended) as contended:  # a row that is waited for ends in a time-out of the lock instead
            transaction(engine, lambda db: intake.apply(db, batch, budget=BUDGET, now=NOW, lock_ms=200))
    assert contended.value.jobs == {1}


def test_timeline_names_the_delivery_of_each_webhook(database: Database) -> None:
    engine = database.engine
    pool = add_pool(engine, "linux")
    deliver(engine, queued(1), queued(2), now=NOW)
    claim = add_claim(engine, pool, 1, runner="r-1")
    deliver(engine, in_progress(1, "r-1"), now=NOW + timedelta(seconds=1))
    with engine.connect() as db:
        story = job_story(db, 1, timings=Timings(), now=NOW)
        rows = db.execute(text("SELECT guid, job_id, action FROM deliveries")).all()
        pod = db.execute(text("SELECT name FROM runner_pods")).scalar_one()
        of_pod = pod_story(db, pod)
    assert story is not None
    assert of_pod is not None
    guids = {row.action: row.guid for row in rows if row.job_id == 1}
    named = {(each.what, each.transition): each.delivery for each in story.timeline if each.who == "webhook"}
    assert named[("job", "job_seen")] == guids["queued"]
    assert named[(f"claim {claim}", "execute")] == guids["in_progress"]
    assert [each.delivery for each in of_pod.timeline if each.transition == "execute"] == [guids["in_progress"]]

"""Jobs that GitHub gave to another runner than the minted one, cancelled jobs, and webhooks that cross."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, Row, text

from models.db.engine import transaction
from models.intake import bindings
from models.state import claim_jobs
from models.state.transitions import move_claim
from ostler import telemetry
from tests.database import Database
from tests.integration.models.webhook_rows import (
    NOW,
    add_claim,
    add_pool,
    claim_row,
    completed,
    deliver,
    execution_row,
    in_progress,
    job_row,
    queued,
)

UNDELIVERED = ("claimed", "minted")


@pytest.fixture
def pool(database: Database) -> int:
    return add_pool(database.engine, "linux")


def _claimed_job(engine: Engine, job_id: int) -> int | None:
    claim: int | None
    with engine.connect() as db:
        claim = db.execute(
            text("SELECT id FROM claims WHERE job_id = :id AND ended_at IS NULL"), {"id": job_id}
        ).scalar_one_or_none()
    return claim


def _execution_claim(engine: Engine, job_id: int) -> int | None:
    execution = execution_row(engine, job_id)
    assert execution is not None
    claim: int | None = execution.claim_id
    return claim


def _make_releasing(engine: Engine, claim: int) -> None:
    transaction(engine, lambda db: move_claim(db, "begin_release", claim, now=NOW, who="test", why="unused"))


# Within a pool


@pytest.mark.parametrize("state", ["claimed", "minted", "delivered"])
def test_two_claims_of_a_pool_swap_their_jobs(database: Database, pool: int, state: str) -> None:
    engine = database.engine
    deliver(engine, queued(1), queued(2))
    winner = add_claim(engine, pool, 1, runner="r-1")
    loser = add_claim(engine, pool, 2, runner="r-2", state=state)
    applied = deliver(engine, in_progress(2, "r-1"))
    with engine.connect() as db:
        row = db.execute(text("SELECT namespace, name FROM pools WHERE id = :id"), {"id": pool}).one()
    assert applied.remaps == ((row.namespace, row.name),)
    assert (claim_row(engine, winner).state, claim_row(engine, winner).job_id) == ("executing", 2)
    assert (claim_row(engine, loser).state, claim_row(engine, loser).job_id) == (state, 1)
    assert claim_row(engine, loser).spare_since is None
    assert (job_row(engine, 1).state, job_row(engine, 2).state) == ("claimed", "running")
    assert _execution_claim(engine, 2) == winner
    assert applied.releases == ()


def test_swapped_jobs_end_on_the_runners_that_ran_them(database: Database, pool: int) -> None:
    engine = database.engine
    deliver(engine, queued(1), queued(2))
    first = add_claim(engine, pool, 1, runner="r-1")
    second = add_claim(engine, pool, 2, runner="r-2")
    swap = deliver(engine, in_progress(2, "r-1"), in_progress(1, "r-2"))
    assert len(swap.remaps) == 1
    assert (_execution_claim(engine, 1), _execution_claim(engine, 2)) == (second, first)
    deliver(engine, completed(2, "r-1"))
    assert claim_row(engine, first).end_reason == "completed"
    assert claim_row(engine, second).state == "executing"


def test_a_free_job_on_a_claimed_runner_sends_the_claimed_job_back_at_its_old_age(
    database: Database, pool: int
) -> None:
    engine = database.engine
    old = NOW - timedelta(hours=1)
    deliver(engine, queued(1, created_at=old), queued(2))
    claim = add_claim(engine, pool, 1, runner="r-1")
    applied = deliver(engine, in_progress(2, "r-1"))
    assert applied.wakes == {pool}
    assert (job_row(engine, 1).state, job_row(engine, 1).queued_at) == ("queued", old)
    assert claim_row(engine, claim).job_id == 2
    assert _claimed_job(engine, 1) is None


def test_a_spare_takes_the_job_that_github_gave_it(database: Database, pool: int) -> None:
    engine = database.engine
    deliver(engine, queued(1))
    spare = add_claim(engine, pool, None, runner="r-1")
    deliver(engine, in_progress(1, "r-1"))
    claim = claim_row(engine, spare)
    assert (claim.state, claim.job_id, claim.spare_since) == ("executing", 1, None)


def test_a_job_taken_by_a_spare_makes_its_delivered_claim_the_spare(database: Database, pool: int) -> None:
    engine = database.engine
    deliver(engine, queued(1))
    spare = add_claim(engine, pool, None, runner="r-1")
    loser = add_claim(engine, pool, 1, runner="r-2")
    applied = deliver(engine, in_progress(1, "r-1"))
    assert claim_row(engine, spare).job_id == 1
    lost = claim_row(engine, loser)
    assert (lost.state, lost.job_id, lost.spare_since) == ("delivered", None, NOW)
    assert applied.wakes == {pool}


@pytest.mark.parametrize("state", UNDELIVERED)
def test_a_job_taken_by_a_spare_releases_its_undelivered_claim(database: Database, pool: int, state: str) -> None:
    engine = database.engine
    deliver(engine, queued(1))
    add_claim(engine, pool, None, runner="r-1")
    loser = add_claim(engine, pool, 1, runner="r-2", state=state)
    lease = NOW + timedelta(seconds=4)
    with engine.begin() as db:
        db.execute(text("UPDATE claims SET leased_until = :lease WHERE id = :id"), {"lease": lease, "id": loser})
    applied = deliver(engine, in_progress(1, "r-1"))
    assert applied.releases == (loser,)
    lost = claim_row(engine, loser)
    assert (lost.state, lost.job_id, lost.release_reason, lost.leased_until) == ("releasing", None, "remapped", lease)


def test_a_claim_under_release_that_proves_busy_executes(database: Database, pool: int) -> None:
    engine = database.engine
    deliver(engine, queued(1))
    claim = add_claim(engine, pool, 1, runner="r-1")
    _make_releasing(engine, claim)
    deliver(engine, in_progress(1, "r-1"))
    row = claim_row(engine, claim)
    assert (row.state, row.leased_until, row.due_at) == ("executing", None, None)


def test_a_claim_under_release_gets_no_other_job(database: Database, pool: int) -> None:
    engine = database.engine
    deliver(engine, queued(1), queued(2))
    add_claim(engine, pool, 1, runner="r-1")
    loser = add_claim(engine, pool, 2, runner="r-2")
    _make_releasing(engine, loser)
    deliver(engine, in_progress(2, "r-1"))
    assert job_row(engine, 1).state == "queued"
    assert (claim_row(engine, loser).state, claim_row(engine, loser).job_id) == ("releasing", None)


def test_a_claim_that_github_said_is_busy_learns_its_job(database: Database, pool: int) -> None:
    engine = database.engine
    deliver(engine, queued(1), queued(2))
    claim = add_claim(engine, pool, 1, runner="r-1", state="executing")
    deliver(engine, in_progress(2, "r-1"))
    assert (claim_row(engine, claim).state, claim_row(engine, claim).job_id) == ("executing", 2)
    assert job_row(engine, 1).state == "queued"


# Across pools, scopes and accounts


def test_a_remap_across_pools_requeues_and_leaves_a_spare(database: Database, pool: int) -> None:
    engine = database.engine
    other = add_pool(engine, "linux", "gpu")
    deliver(engine, queued(1, labels=("gpu",)), queued(2))
    winner = add_claim(engine, other, 1, runner="r-1")
    loser = add_claim(engine, pool, 2, runner="r-2")
    applied = deliver(engine, in_progress(2, "r-1"))
    assert job_row(engine, 1).state == "queued"
    assert (claim_row(engine, loser).job_id, claim_row(engine, loser).spare_since) == (None, NOW)
    assert claim_row(engine, winner).job_id == 2
    assert applied.wakes == {other, pool}


def test_a_remap_across_scopes_requeues(database: Database, pool: int) -> None:
    engine = database.engine
    deliver(engine, queued(1), queued(2))
    add_claim(engine, pool, 1, runner="r-1")
    loser = add_claim(engine, pool, 2, runner="r-2", scope="orgs/acme-before", state="minted")
    applied = deliver(engine, in_progress(2, "r-1"))
    assert job_row(engine, 1).state == "queued"
    assert applied.releases == (loser,)


def test_a_remap_across_accounts_requeues_and_charges_the_jobs_own(database: Database, pool: int) -> None:
    engine = database.engine
    deliver(engine, queued(1), queued(2, owner_id=78, owner_login="umbra"))
    add_claim(engine, pool, 1, runner="r-1")
    loser = add_claim(engine, pool, 2, runner="r-2", account_id=78)
    deliver(engine, in_progress(2, "r-1"))
    assert job_row(engine, 1).state == "queued"
    assert claim_row(engine, loser).job_id is None
    execution = execution_row(engine, 2)
    assert execution is not None
    assert execution.account_id == 78


# Runners that are not ours, or cannot be


@pytest.mark.parametrize("state", UNDELIVERED)
def test_a_runner_whose_jit_never_left_us_is_treated_as_foreign(database: Database, pool: int, state: str) -> None:
    engine = database.engine
    deliver(engine, queued(1))
    claim = add_claim(engine, pool, 1, runner="r-1", state=state)
    applied = deliver(engine, in_progress(1, "r-1"))
    assert _execution_claim(engine, 1) is None
    assert job_row(engine, 1).state == "running"
    assert (claim_row(engine, claim).state, applied.releases) == ("releasing", (claim,))


def test_a_job_that_runs_on_a_foreign_runner_leaves_its_claim_a_spare(database: Database, pool: int) -> None:
    engine = database.engine
    deliver(engine, queued(1))
    claim = add_claim(engine, pool, 1, runner="r-1")
    deliver(engine, in_progress(1, "hosted"))
    assert (claim_row(engine, claim).job_id, claim_row(engine, claim).spare_since) == (None, NOW)
    assert _execution_claim(engine, 1) is None


def test_a_runner_whose_claim_has_ended_leaves_an_execution_without_a_claim(database: Database, pool: int) -> None:
    engine = database.engine
    deliver(engine, queued(1), queued(2))
    claim = add_claim(engine, pool, 1, runner="r-1")
    deliver(engine, completed(1, "r-1"))
    deliver(engine, in_progress(2, "r-1"))
    assert _execution_claim(engine, 2) is None
    assert claim_row(engine, claim).job_id == 1


def test_a_busy_single_use_runner_is_not_given_a_second_job(database: Database, pool: int) -> None:
    engine = database.engine
    deliver(engine, queued(1), queued(2))
    claim = add_claim(engine, pool, 1, runner="r-1")
    deliver(engine, in_progress(1, "r-1"))
    deliver(engine, in_progress(2, "r-1"))
    deliver(engine, completed(2, "r-1"))
    assert (claim_row(engine, claim).state, claim_row(engine, claim).job_id) == ("executing", 1)
    assert job_row(engine, 2).state == "completed"


def test_a_second_runner_for_a_running_job_changes_nothing(database: Database, pool: int) -> None:
    engine = database.engine
    deliver(engine, queued(1), queued(2))
    first = add_claim(engine, pool, 1, runner="r-1")
    second = add_claim(engine, pool, 2, runner="r-2")
    deliver(engine, in_progress(1, "r-1"))
    deliver(engine, in_progress(1, "r-2"))
    assert _execution_claim(engine, 1) == first
    assert (claim_row(engine, second).state, claim_row(engine, second).job_id) == ("delivered", 2)


def test_a_late_in_progress_of_a_completed_job_changes_nothing(database: Database, pool: int) -> None:
    engine = database.engine
    deliver(engine, queued(1), queued(2))
    other = add_claim(engine, pool, 2, runner="r-2")
    deliver(engine, completed(1, None, "cancelled"))
    deliver(engine, in_progress(1, "r-2"))
    assert execution_row(engine, 1) is None
    assert (claim_row(engine, other).state, claim_row(engine, other).job_id) == ("delivered", 2)


# Completed


def test_completed_ends_the_claim_and_wakes_every_pool_where_its_account_waits(database: Database, pool: int) -> None:
    engine = database.engine
    other, empty = add_pool(engine, "arm"), add_pool(engine, "windows")
    deliver(engine, queued(1), queued(2, labels=("arm",)), queued(3, labels=("none",)))
    add_claim(engine, pool, 1, runner="r-1")
    deliver(engine, in_progress(1, "r-1"))
    applied = deliver(engine, completed(1, "r-1"))
    assert applied.wakes == {other}
    assert empty not in applied.wakes
    assert applied.reconcile == {pool}


def test_the_end_of_a_foreign_execution_wakes_too(database: Database, pool: int) -> None:
    deliver(database.engine, queued(1), queued(2), in_progress(1, "hosted"))
    assert deliver(database.engine, completed(1, "hosted")).wakes == {pool}


def test_completed_on_a_runner_that_held_another_job_gives_that_back_first(database: Database, pool: int) -> None:
    engine = database.engine
    deliver(engine, queued(1), queued(2))
    claim = add_claim(engine, pool, 1, runner="r-1")
    applied = deliver(engine, completed(2, "r-1"))
    assert len(applied.remaps) == 1
    assert (job_row(engine, 1).state, job_row(engine, 2).state) == ("queued", "completed")
    assert (claim_row(engine, claim).end_reason, claim_row(engine, claim).job_id) == ("completed", 2)
    assert _execution_claim(engine, 2) == claim
    assert applied.wakes == {pool}


@pytest.mark.parametrize(("state", "then"), [("claimed", "queued"), ("running", "running")])
def test_a_claim_that_ends_with_another_job_queues_it_only_if_it_is_claimed(
    database: Database, pool: int, state: str, then: str
) -> None:
    engine = database.engine
    deliver(engine, queued(1), queued(2))
    claim = add_claim(engine, pool, 1, runner="r-1")
    deliver(engine, in_progress(1, "r-1"))
    with engine.begin() as db:  # no webhook leads to these rows
        db.execute(text("UPDATE jobs SET state = :state WHERE id = 2"), {"state": state})
        db.execute(text("UPDATE claims SET job_id = 2 WHERE id = :id"), {"id": claim})
    deliver(engine, completed(1, "r-1"))
    assert claim_row(engine, claim).end_reason == "completed"
    assert job_row(engine, 2).state == then


def test_completed_on_another_claims_runner_swaps_before_it_ends(database: Database, pool: int) -> None:
    engine = database.engine
    deliver(engine, queued(1), queued(2))
    winner = add_claim(engine, pool, 1, runner="r-1")
    loser = add_claim(engine, pool, 2, runner="r-2")
    deliver(engine, completed(2, "r-1"))
    assert claim_row(engine, winner).end_reason == "completed"
    assert (claim_row(engine, loser).state, claim_row(engine, loser).job_id) == ("delivered", 1)


def test_completed_of_a_job_that_a_sweep_had_finished_still_ends_its_runners_claim(
    database: Database, pool: int
) -> None:
    engine = database.engine
    deliver(engine, queued(1))
    claim = add_claim(engine, pool, 1, runner="r-1")
    with engine.begin() as db:
        db.execute(text("UPDATE jobs SET state = 'completed', conclusion = 'success' WHERE id = 1"))
    deliver(engine, completed(1, "r-1"))
    assert claim_row(engine, claim).end_reason == "completed"


@pytest.mark.parametrize("state", UNDELIVERED)
def test_a_cancelled_job_releases_its_undelivered_claim(database: Database, pool: int, state: str) -> None:
    engine = database.engine
    deliver(engine, queued(1))
    claim = add_claim(engine, pool, 1, runner="r-1", state=state)
    applied = deliver(engine, completed(1, None, "cancelled"))
    assert applied.releases == (claim,)
    assert (claim_row(engine, claim).state, claim_row(engine, claim).release_reason) == ("releasing", "cancelled")
    assert job_row(engine, 1).conclusion == "cancelled"
    assert applied.reconcile == frozenset()
    assert applied.remaps == ()


def test_a_cancelled_job_makes_its_delivered_claim_a_spare(database: Database, pool: int) -> None:
    engine = database.engine
    deliver(engine, queued(1), queued(2))
    claim = add_claim(engine, pool, 1, runner="r-1")
    applied = deliver(engine, completed(1, None, "cancelled"))
    row = claim_row(engine, claim)
    assert (row.state, row.job_id, row.spare_since) == ("delivered", None, NOW)
    assert applied.wakes == {pool}
    assert applied.releases == ()


def test_claim_that_cannot_become_a_spare_wakes_no_matcher_and_is_logged(
    database: Database, pool: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver(database.engine, queued(1))
    claim = add_claim(database.engine, pool, 1, runner="r-1")
    missed: list[dict[str, Any]] = []
    monkeypatch.setattr(claim_jobs, "make_spare", lambda *_, **__: False)
    monkeypatch.setattr(bindings.log, "warning", lambda event, **values: missed.append({"event": event, **values}))
    applied = deliver(database.engine, completed(1, None, "cancelled"))
    assert applied.wakes == frozenset()
    assert missed == [{"event": "claim.is_no_spare", "claim": claim, "reason": "cancelled"}]


@pytest.mark.parametrize(
    ("state", "job", "made"), [("delivered", None, True), ("minted", None, False), ("delivered", 1, False)]
)
def test_only_a_delivered_claim_without_a_job_becomes_a_spare(
    database: Database, pool: int, state: str, job: int | None, *, made: bool
) -> None:
    deliver(database.engine, queued(1))
    claim = add_claim(database.engine, pool, job, runner="r-1", state=state)
    assert transaction(database.engine, lambda db: claim_jobs.make_spare(db, claim, now=NOW)) is made
    assert (claim_row(database.engine, claim).spare_since is not None) is made


def test_a_cancelled_job_leaves_a_claim_alone_that_executes_something(database: Database, pool: int) -> None:
    engine = database.engine
    deliver(engine, queued(1))
    claim = add_claim(engine, pool, 1, runner="r-1", state="executing")
    deliver(engine, completed(1, None, "cancelled"))
    assert (claim_row(engine, claim).state, claim_row(engine, claim).job_id) == ("executing", 1)


def test_a_running_job_that_is_cancelled_ends_its_claim_though_no_runner_is_named(
    database: Database, pool: int
) -> None:
    engine = database.engine
    deliver(engine, queued(1))
    claim = add_claim(engine, pool, 1, runner="r-1")
    deliver(engine, in_progress(1, "r-1"))
    deliver(engine, completed(1, None, "cancelled"))
    assert claim_row(engine, claim).end_reason == "completed"


# Whatever comes

_STATES = ("unclaimed", "claimed", "minted", "delivered", "executing", "releasing")
_numbers = itertools.count(10_000, 10)


Story = list[list[tuple[bool, int, int]]]
"""Batches of tuples: completed or in_progress, number of the job, number of the runner (-1: none)."""


def _set_the_stage(engine: Engine, jobs: list[tuple[str, bool]], spares: int) -> tuple[int, list[int]]:
    base = next(_numbers)
    pools = [add_pool(engine, f"small-{base}"), add_pool(engine, f"large-{base}")]
    labels = [(f"small-{base}",), (f"large-{base}",)]
    deliver(engine, *(queued(base + i, labels=labels[large]) for i, (_, large) in enumerate(jobs)))
    for i, (state, large) in enumerate(jobs):
        if state == "unclaimed":
            continue
        begun = "delivered" if state == "releasing" else state
        claim = add_claim(engine, pools[large], base + i, runner=f"r-{base + i}", state=begun)
        if state == "releasing":
            _make_releasing(engine, claim)
    for i in range(spares):
        add_claim(engine, pools[0], None, runner=f"r-{base + 5 + i}")
    return base, pools


def _tell(engine: Engine, base: int, jobs: int, story: Story) -> set[int]:
    releases: set[int] = set()
    for batch in story:
        events = [
            (completed if is_completed else in_progress)(
                base + job % jobs, None if runner < 0 else f"r-{base + runner}"
            )
            for is_completed, job, runner in batch
        ]
        applied = deliver(engine, *events)
        assert releases.isdisjoint(applied.releases)
        releases.update(applied.releases)
    return releases


def _assert_jobs_and_claims_agree(jobs: Sequence[Row[Any]], claims: Sequence[Row[Any]], releases: set[int]) -> None:
    live = [claim for claim in claims if claim.ended_at is None]
    claimed = {claim.job_id for claim in live}
    for job in jobs:
        assert job.state != "claimed" or job.id in claimed
        assert job.state != "queued" or job.id not in claimed
    for claim in live:
        if claim.state == "delivered":
            assert (claim.job_id is None) == (claim.spare_since is not None)
        if claim.release_reason in {"remapped", "cancelled"}:
            assert claim.id in releases


def _assert_executions_agree(
    jobs: Sequence[Row[Any]], claims: Sequence[Row[Any]], executions: Sequence[Row[Any]]
) -> None:
    states = {job.id: job.state for job in jobs}
    by_id = {claim.id: claim for claim in claims}
    for execution in executions:
        assert (execution.ended_at is None) == (states[execution.job_id] != "completed")
        if execution.claim_id is not None:
            claim = by_id[execution.claim_id]
            assert (claim.job_id, claim.runner_name) == (execution.job_id, execution.runner_name)
            assert claim.state == ("executing" if execution.ended_at is None else "ended")


@given(
    jobs=st.lists(st.tuples(st.sampled_from(_STATES), st.booleans()), min_size=1, max_size=5),
    spares=st.integers(0, 2),
    story=st.lists(
        st.lists(st.tuples(st.booleans(), st.integers(0, 4), st.integers(-1, 7)), min_size=1, max_size=4), max_size=5
    ),
)
@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_story_leaves_a_job_or_a_claim_that_nobody_owns(
    database: Database, jobs: list[tuple[str, bool]], spares: int, story: Story
) -> None:
    base, pools = _set_the_stage(database.engine, jobs, spares)
    releases = _tell(database.engine, base, len(jobs), story)
    own = {"low": base, "high": base + 9}
    with database.engine.connect() as db:
        after = db.execute(text("SELECT * FROM jobs WHERE id BETWEEN :low AND :high"), own).all()
        claims = db.execute(text("SELECT * FROM claims WHERE pool_id = ANY(:pools)"), {"pools": pools}).all()
        executions = db.execute(text("SELECT * FROM executions WHERE job_id BETWEEN :low AND :high"), own).all()
    _assert_jobs_and_claims_agree(after, claims, releases)
    _assert_executions_agree(after, claims, executions)


# At the same time


def test_crossing_remaps_from_two_processes_both_succeed(database: Database, pool: int) -> None:
    engine = database.engine
    with ThreadPoolExecutor(2) as threads:
        for low in range(1, 41, 2):
            high = low + 1
            deliver(engine, queued(low), queued(high))
            first = add_claim(engine, pool, low, runner=f"r-{low}")
            second = add_claim(engine, pool, high, runner=f"r-{high}")
            start = threading.Barrier(2)

            def send(job_id: int, runner: str, start: threading.Barrier = start) -> None:
                start.wait()
                deliver(engine, in_progress(job_id, runner))

            crossing = [threads.submit(send, low, f"r-{high}"), threads.submit(send, high, f"r-{low}")]
            for future in crossing:
                future.result()
            assert (_execution_claim(engine, low), _execution_claim(engine, high)) == (second, first)
            assert (claim_row(engine, first).job_id, claim_row(engine, second).job_id) == (high, low)


def test_a_ring_of_remaps_in_opposite_batches_does_not_deadlock(database: Database, pool: int) -> None:
    engine = database.engine
    jobs = range(1, 31)
    deliver(engine, *(queued(job_id) for job_id in jobs))
    for job_id in jobs:
        add_claim(engine, pool, job_id, runner=f"r-{job_id}")
    events = [in_progress(job_id, f"r-{job_id % 30 + 1}") for job_id in jobs]
    with ThreadPoolExecutor(3) as threads:
        batches = [events[0::3], events[1::3][::-1], events[2::3]]
        for future in [threads.submit(deliver, engine, *batch) for batch in batches]:
            future.result()
    for job_id in jobs:
        claim = _execution_claim(engine, job_id)
        assert claim is not None
        assert claim_row(engine, claim).runner_name == f"r-{job_id % 30 + 1}"
        assert claim_row(engine, claim).job_id == job_id


def test_a_job_claimed_while_its_cancellation_locks_is_released_too(database: Database, pool: int) -> None:
    engine = database.engine
    deliver(engine, queued(1))
    spare = add_claim(engine, pool, None, runner="r-1")
    with ThreadPoolExecutor(1) as threads, engine.connect() as matcher:
        with matcher.begin():
            matcher.execute(text("SELECT 1 FROM jobs WHERE id = 1 FOR NO KEY UPDATE"))
            matcher.execute(text("UPDATE claims SET job_id = 1, spare_since = NULL WHERE id = :id"), {"id": spare})
            matcher.execute(text("UPDATE jobs SET state = 'claimed' WHERE id = 1"))
            cancelling = threads.submit(deliver, engine, completed(1, None, "cancelled"))
            _wait_for_a_blocked_backend(engine)
        cancelling.result()
    assert (claim_row(engine, spare).job_id, claim_row(engine, spare).spare_since) == (None, NOW)
    assert job_row(engine, 1).state == "completed"


def _wait_for_a_blocked_backend(engine: Engine) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        with engine.connect() as db:
            blocked = db.execute(
                text("""
                    SELECT count(*) FROM pg_stat_activity
                    WHERE datname = current_database() AND wait_event_type = 'Lock'
                """)
            ).scalar_one()
        if blocked:
            return
    raise AssertionError("nothing was blocked")


# Waits of jobs


def _waits() -> list[float]:
    """Return the number of waits in the metric, and their sum in seconds."""
    samples = [each for metric in telemetry.JOB_WAIT_SECONDS.collect() for each in metric.samples]
    return [
        sum(each.value for each in samples if each.name == f"ostler_job_wait_seconds_{part}")
        for part in ("count", "sum")
    ]


@pytest.mark.parametrize("event", [in_progress, completed])
def test_job_of_a_persistent_runner_has_its_wait_measured_once(database: Database, pool: int, event: Any) -> None:
    deliver(database.engine, queued(1))
    claim = add_claim(database.engine, pool, None, runner="p", state="delivered")
    with database.engine.begin() as db:
        db.execute(text("UPDATE claims SET purpose = 'register', spare_since = NULL WHERE id = :id"), {"id": claim})
    before = _waits()
    deliver(database.engine, event(1, "p", started_at=NOW + timedelta(seconds=12)))
    deliver(database.engine, completed(1, "p", started_at=NOW + timedelta(seconds=12)))
    assert [now - then for now, then in zip(_waits(), before, strict=True)] == [1, 42]


def test_job_of_another_runner_or_of_a_jit_counts_no_wait_at_its_start(database: Database, pool: int) -> None:
    deliver(database.engine, queued(1), queued(2))
    add_claim(database.engine, pool, 1, runner="r")
    before = _waits()
    deliver(database.engine, in_progress(1, "r"), in_progress(2, "hosted"))
    assert _waits() == before

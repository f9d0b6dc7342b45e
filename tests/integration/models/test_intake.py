"""What webhooks do to the rows of jobs, however they come."""

from __future__ import annotations

from tests.database import Database
from tests.integration.models.webhook_rows import (
    add_claim, add_pool, claim_row, completed, count, deliver, execution_row, in_progress, job_row, queued,
)


def test_a_job_goes_from_queued_to_completed(database: Database) -> None:
    engine = database.engine
    pool = add_pool(engine, "linux")
    assert deliver(engine, queued(1)).wakes == {pool}
    claim = add_claim(engine, pool, 1, runner="r-1")
    deliver(engine, in_progress(1, "r-1"))
    assert job_row(engine, 1).state == "running"
    assert claim_row(engine, claim).state == "executing"
    assert execution_row(engine, 1).claim_id == claim
    done = deliver(engine, completed(1, "r-1"))
    assert done.keeper == {pool}
    assert job_row(engine, 1).conclusion == "success"
    assert claim_row(engine, claim).end_reason == "completed"
    assert count(engine, "deliveries") == 3

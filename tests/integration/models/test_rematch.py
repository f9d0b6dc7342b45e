"""Held jobs of many accounts are matched again."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from models.db.engine import transaction
from models.intake import intake
from models.pools.unrouting import Unrouting, end_unrouting
from models.sweeps.rematch import (
    Rematched,
    accounts_to_rematch,
    rematch_page,
    rematch_run,
)
from rules.routing.access import Access
from rules.routing.holds import HoldReason
from tests.database import Database
from tests.integration.models.webhook_rows import BUDGET, NOW, add_pool, job_row, queued

TENANT, HONEST = 77, 78
MANY = 50


def came(database: Database, job_ids: range, *, owner: int, label: str, access: Access = Access.ALLOWED) -> None:
    events = [
        intake.Received(f"guid-{job_id}", queued(job_id, owner_id=owner, owner_login=f"org-{owner}", labels=(label,)))
        for job_id in job_ids
    ]
    transaction(database.engine, lambda db: intake.apply(db, events, budget=BUDGET, access=access, now=NOW))


def rematch(database: Database, *, limit: int) -> Rematched:
    return transaction(database.engine, lambda db: rematch_page(db, accounts_to_rematch(db), limit=limit, now=NOW))


@pytest.fixture
def _held(database: Database) -> None:
    """Jobs of an account that no pool will ever serve, and after them one that a new pool serves."""
    came(database, range(1, MANY + 1), owner=TENANT, label="trick")
    came(database, range(1000, 1001), owner=HONEST, label="new")
    add_pool(database.engine, "new")


@pytest.mark.usefixtures("_held")
def test_first_page_has_jobs_of_every_account(database: Database) -> None:
    page = rematch(database, limit=10)
    assert [each.job_id for each in page.lifted] == [1000]
    assert page.places == {TENANT: 5}


@pytest.mark.usefixtures("_held")
def test_pages_end_when_every_held_job_was_seen(database: Database) -> None:
    places, pages = transaction(database.engine, accounts_to_rematch), 0
    while places:
        found = transaction(
            database.engine,
            lambda db, places=places: rematch_page(db, places, limit=10, now=NOW),  # type: ignore[misc]
        )
        places, pages = dict(found.places), pages + 1
    assert pages <= 1 + MANY // 10 + 1
    assert job_row(database.engine, 1).hold_reason == HoldReason.NO_POOL
    assert job_row(database.engine, 1000).hold_reason is None


def test_job_of_a_held_account_is_held_although_more_jobs_than_a_page_stay_held(database: Database) -> None:
    pool = add_pool(database.engine, "new")
    came(database, range(1, MANY + 1), owner=TENANT, label="new", access=Access.HELD)
    came(database, range(1000, 1001), owner=TENANT, label="new", access=Access.HELD)
    with database.engine.begin() as db:
        db.execute(text("UPDATE jobs SET hold_reason = NULL, pool_id = :pool WHERE id = 1000"), {"pool": pool})
    rematch(database, limit=10)
    assert job_row(database.engine, 1000).hold_reason == HoldReason.UNKNOWN_ACCOUNT
    assert job_row(database.engine, 1).hold_reason == HoldReason.UNKNOWN_ACCOUNT


@pytest.mark.usefixtures("_held")
def test_job_that_stays_held_is_not_locked(database: Database) -> None:
    with database.engine.connect() as sweeping, database.engine.connect() as other:
        rematch_page(sweeping, accounts_to_rematch(sweeping), limit=1000, now=NOW)
        free = other.execute(text("SELECT id FROM jobs ORDER BY id FOR NO KEY UPDATE SKIP LOCKED")).scalars().all()
    assert free == list(range(1, MANY + 1))


def test_answer_about_a_run_lifts_no_job_that_waits_for_something_else(database: Database) -> None:
    add_pool(database.engine, "linux")
    came(database, range(1, 2), owner=HONEST, label="linux")
    with database.engine.begin() as db:
        db.execute(text("UPDATE jobs SET hold_reason = 'ask_github', pool_id = NULL"))
    found = transaction(database.engine, lambda db: rematch_run(db, job_row(database.engine, 1).run_id, now=NOW))
    assert (list(found.lifted), job_row(database.engine, 1).hold_reason) == ([], HoldReason.ASK_GITHUB)


def test_jobs_stay_unmatched_when_more_of_them_were_left_meanwhile(database: Database) -> None:
    pool_id = add_pool(database.engine, "linux")
    with database.engine.begin() as db:
        db.execute(text("UPDATE pools SET rerouting_jobs = '{1,2}'"))

    def end(*known: int) -> bool:
        todo = Unrouting(None, known)
        return transaction(database.engine, lambda db: end_unrouting(db, pool_id, todo, left=()))

    assert not end(1)
    with database.engine.begin() as db:
        assert db.execute(text("SELECT rerouting_jobs FROM pools")).scalar_one() == [1, 2]
    assert end(1, 2)

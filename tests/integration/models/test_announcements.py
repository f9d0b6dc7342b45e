"""New names and new installations: told once, twice, late, or of somebody else."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from github_adapters.webhooks import InstallationEvent, OwnerRenamed, RepositoryRenamed
from models.engine import transaction
from models.intake import Outcome
from tests.database import Database
from tests.integration.models.webhook_rows import ACME, BUDGET, NOW, add_claim, add_pool, deliver, in_progress, queued
from web import announcements

OWNER = OwnerRenamed(action="renamed", owner_id=ACME, former="acme", login="apex")
REPOSITORY = RepositoryRenamed(
    action="renamed", owner_id=ACME, former="acme/app", full_name="acme/tool", at=NOW + timedelta(seconds=1)
)
INSTALLED = InstallationEvent(action="created", installation_id=4, owner_id=ACME, owner_login="acme")


def tell(database: Database, announced: announcements.Announcement, *, guid: str) -> tuple[Outcome, bool]:
    return transaction(
        database.engine,
        lambda db: announcements.apply(db, announced, guid=guid, event="any", budget=BUDGET, now=NOW),
    )


def rows(database: Database, statement: str) -> list[tuple[Any, ...]]:
    with database.engine.begin() as db:
        result = db.execute(text(statement))
        return [tuple(row) for row in result] if result.returns_rows else []


def jobs(database: Database) -> dict[int, tuple[str, str]]:
    return {row[0]: (row[1], row[2]) for row in rows(database, "SELECT id, repository, scope FROM jobs")}


def test_a_new_login_is_written_wherever_the_former_one_stands(database: Database) -> None:
    pool = add_pool(database.engine, "linux")
    deliver(database.engine, queued(1), queued(2, owner_id=78, owner_login="umbra", repository="umbra/app"))
    deliver(database.engine, queued(3, owner_type="User", repository="acme/home"))
    add_claim(database.engine, pool, 1)
    rows(database, "INSERT INTO backoffs VALUES ('repository', 'acme/app', now() + interval '1 h', 1, '404', now())")

    assert tell(database, OWNER, guid="a") == (Outcome.ACCEPTED, True)

    assert jobs(database) == {
        1: ("apex/app", "orgs/apex"),
        2: ("umbra/app", "orgs/umbra"),
        3: ("apex/home", "repos/apex/home"),
    }
    assert rows(database, "SELECT scope FROM claims") == [("orgs/apex",)]
    assert rows(database, "SELECT login FROM accounts ORDER BY id") == [("apex",), ("umbra",)]
    assert rows(database, "SELECT key FROM backoffs") == []


def test_a_new_login_that_is_told_twice_or_late_changes_nothing(database: Database) -> None:
    add_pool(database.engine, "linux")
    deliver(database.engine, queued(1))
    tell(database, OWNER, guid="a")
    tell(database, replace(OWNER, former="apex", login="zenith"), guid="b")

    assert tell(database, OWNER, guid="a") == (Outcome.DUPLICATE, False)
    assert tell(database, OWNER, guid="the same, by another event") == (Outcome.ACCEPTED, False)
    assert tell(database, replace(OWNER, owner_id=999), guid="a stranger") == (Outcome.ACCEPTED, False)

    assert jobs(database) == {1: ("zenith/app", "orgs/zenith")}


def test_a_new_name_of_a_repository_moves_its_jobs_and_their_claims(database: Database) -> None:
    pool = add_pool(database.engine, "linux")
    user: dict[str, Any] = {"owner_id": 78, "owner_login": "ada", "owner_type": "User"}
    deliver(database.engine, queued(1), queued(2, repository="acme/other"), queued(4, repository="ada/app", **user))
    add_claim(database.engine, pool, 4, account_id=78, scope="repos/ada/app")
    rows(database, "INSERT INTO backoffs VALUES ('repository', 'ada/app', now() + interval '1 h', 1, '404', now())")

    assert tell(database, REPOSITORY, guid="a") == (Outcome.ACCEPTED, True)
    theirs = replace(REPOSITORY, owner_id=78, former="ada/app", full_name="ada/tool")
    assert tell(database, theirs, guid="b") == (Outcome.ACCEPTED, True)

    assert jobs(database) == {
        1: ("acme/tool", "orgs/acme"),
        2: ("acme/other", "orgs/acme"),
        4: ("ada/tool", "repos/ada/tool"),
    }
    assert rows(database, "SELECT scope FROM claims") == [("repos/ada/tool",)]
    assert rows(database, "SELECT key FROM backoffs") == []


@pytest.mark.parametrize(
    ("age", "owner", "moved"), [(30, ACME, True), (-60, ACME, False), (30, 78, False)],
    ids=["queued before", "queued afterwards", "of another owner"],
)  # fmt: skip
def test_a_job_that_was_queued_under_the_former_name_afterwards_is_another_repositorys(
    database: Database, age: float, owner: int, *, moved: bool
) -> None:
    add_pool(database.engine, "linux")
    deliver(database.engine, queued(1, created_at=NOW - timedelta(seconds=age), owner_id=owner))

    tell(database, REPOSITORY, guid="late")

    assert jobs(database)[1][0] == ("acme/tool" if moved else "acme/app")


def test_a_job_that_is_over_keeps_the_name_it_ran_under(database: Database) -> None:
    add_pool(database.engine, "linux")
    deliver(database.engine, queued(1), in_progress(1, "elsewhere"))
    rows(database, "UPDATE jobs SET state = 'completed'")

    assert tell(database, REPOSITORY, guid="a") == (Outcome.ACCEPTED, False)
    tell(database, OWNER, guid="b")

    assert jobs(database) == {1: ("acme/app", "orgs/acme")}


def test_an_older_installation_that_is_told_late_takes_nothing_back(database: Database) -> None:
    add_pool(database.engine, "linux")
    deliver(database.engine, queued(1))
    assert rows(database, "SELECT installation_id FROM jobs") == [(3,)]

    assert tell(database, INSTALLED, guid="new") == (Outcome.ACCEPTED, True)
    tell(database, replace(INSTALLED, installation_id=3), guid="late")
    tell(database, replace(INSTALLED, installation_id=3, action="unsuspend"), guid="late too")

    assert rows(database, "SELECT installation_id FROM jobs") == [(4,)]

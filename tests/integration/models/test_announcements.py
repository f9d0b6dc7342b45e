"""Webhooks about new names and new installations, also repeated, late, or about another owner."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from models.db.engine import transaction
from models.intake import repositories
from models.intake.intake import Outcome
from rules.intake.events import InstallationEvent, OwnerRenamed, RepositoryRenamed
from tests.database import Database
from tests.integration.models.webhook_rows import ACME, BUDGET, NOW, add_claim, add_pool, deliver, in_progress, queued
from tests.rows import run_sql
from web.intake import announcements

OWNER = OwnerRenamed(action="renamed", owner_id=ACME, former="acme", login="apex")
REPOSITORY = RepositoryRenamed(
    action="renamed",
    owner_id=ACME,
    repository_id=5,
    former="acme/app",
    full_name="acme/tool",
    at=NOW + timedelta(seconds=1),
)
INSTALLED = InstallationEvent(action="created", installation_id=4, owner_id=ACME, owner_login="acme")


def tell(database: Database, announced: announcements.Announcement, *, guid: str) -> tuple[Outcome, bool]:
    return transaction(
        database.engine,
        lambda db: announcements.apply(db, announced, guid=guid, event="any", budget=BUDGET, now=NOW),
    )


def rows(database: Database, statement: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in run_sql(database.engine, statement)]


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
    ("age", "owner", "repository", "moved"),
    [
        (30, ACME, 5, True),
        (-60, ACME, 5, True),
        (30, ACME, 9, False),
        (30, ACME, None, True),
        (-60, ACME, None, False),
        (30, 78, 5, False),
    ],
    ids=[
        "its own",
        "its own, told late",
        "of another that has the name now",
        "of an unknown one, queued before",
        "of an unknown one, queued afterwards",
        "of another owner",
    ],
)
def test_job_under_a_former_name_is_matched_to_its_repository_by_id_else_by_time(
    database: Database, age: float, owner: int, repository: int | None, *, moved: bool
) -> None:
    add_pool(database.engine, "linux")
    deliver(
        database.engine,
        queued(1, created_at=NOW - timedelta(seconds=age), owner_id=owner, repository_id=repository or 5),
    )
    if repository is None:
        rows(database, "UPDATE jobs SET repository_id = NULL")

    tell(database, REPOSITORY, guid="late")

    assert jobs(database)[1][0] == ("acme/tool" if moved else "acme/app")


@pytest.mark.parametrize("left", ["registered", "removed"])
def test_a_claim_that_has_ended_follows_its_repository_while_its_runner_may_be_there(
    database: Database, left: str
) -> None:
    pool = add_pool(database.engine, "linux")
    deliver(database.engine, queued(4, repository="ada/app", owner_id=78, owner_login="ada", owner_type="User"))
    add_claim(database.engine, pool, 4, runner="r", account_id=78, scope="repos/ada/app")
    rows(database, "UPDATE claims SET state = 'ended', ended_at = now(), end_reason = 'released', jit = NULL")
    if left == "removed":
        rows(database, "UPDATE mint_attempts SET outcome = 'removed'")
        rows(database, "UPDATE runner_pods SET gone_at = now()")

    tell(database, replace(REPOSITORY, owner_id=78, former="ada/app", full_name="ada/tool"), guid="b")

    assert rows(database, "SELECT scope FROM claims") == [
        ("repos/ada/tool" if left == "registered" else "repos/ada/app",)
    ]


def test_a_new_name_that_nobody_told_is_learnt_from_the_newest_job_of_the_repository(database: Database) -> None:
    add_pool(database.engine, "linux")
    ada: dict[str, Any] = {"owner_id": 78, "owner_login": "ada", "owner_type": "User"}
    deliver(database.engine, queued(1, repository="ada/app", created_at=NOW - timedelta(hours=1), **ada))
    deliver(database.engine, queued(2, repository="ada/app", repository_id=9, **ada))  # it has that name now
    deliver(database.engine, queued(3, repository="ada/tool", **ada))

    (found,) = transaction(database.engine, lambda db: repositories.torn(db, now=NOW))
    assert transaction(database.engine, lambda db: repositories.rename(db, found, now=NOW))

    assert jobs(database) == {
        1: ("ada/tool", "repos/ada/tool"),
        2: ("ada/app", "repos/ada/app"),
        3: ("ada/tool", "repos/ada/tool"),
    }
    assert transaction(database.engine, lambda db: repositories.torn(db, now=NOW)) == []


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


def test_a_job_that_somebody_holds_locked_is_not_waited_for(database: Database) -> None:
    deliver(database.engine, queued(1), queued(2))
    rows(database, "UPDATE jobs SET hold_reason = 'backoff', not_before = 'infinity'")
    with database.engine.begin() as other:
        other.execute(text("SELECT 1 FROM jobs WHERE id = 1 FOR NO KEY UPDATE"))
        tell(database, OWNER, guid="a")
    assert rows(database, "SELECT id FROM jobs WHERE not_before = 'infinity'") == [(1,)]


@pytest.mark.parametrize("locked", ["SELECT 1 FROM jobs FOR NO KEY UPDATE", "SELECT 1 FROM claims FOR NO KEY UPDATE"])
def test_one_that_has_to_wait_for_long_fails_whole_and_is_taken_when_it_comes_again(
    database: Database, locked: str
) -> None:
    pool = add_pool(database.engine, "linux")
    deliver(database.engine, queued(1))
    add_claim(database.engine, pool, 1)
    with database.engine.begin() as other:
        other.execute(text(locked))
        with pytest.raises(OperationalError, match="lock timeout"):
            tell(database, INSTALLED, guid="a")
    assert rows(database, "SELECT 1 FROM deliveries WHERE guid = 'a'") == []
    assert tell(database, INSTALLED, guid="a") == (Outcome.ACCEPTED, True)
    assert rows(database, "SELECT j.installation_id, c.installation_id FROM jobs j, claims c") == [(4, 4)]

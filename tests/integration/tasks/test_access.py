"""Unknown accounts: their jobs are held until an operator allows the account, or GitHub says that it owns the App."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import Row, text

from github_adapters.endpoints.app import AppSeen
from models.db.engine import transaction
from models.intake import intake
from models.restore.restoring import hold_open_jobs
from models.routing.accounts import record_owner, set_access, unasked_accounts
from models.sweeps.unresolved import UnresolvedJob, apply_verdict
from ostler.clock import utcnow
from ostler.errors import Retryable
from rules.claims.job_outcomes import JobOutcome, NextStep
from rules.routing.access import Access
from rules.sweeps.unresolved import Move, Unresolved, UnresolvedVerdict
from tasks.intake.owner import ask_owner
from tasks.sweeps.rematch import rematch
from tests.integration.models.webhook_rows import BUDGET, queued
from tests.integration.tasks.conftest import Stage
from tests.messages import execute
from tests.rows import author

STRANGER, OWNER = 666000, 77


@dataclass
class AppOnly:
    """A GitHub that names the owner of the App, or does not answer. `asked` counts the requests."""

    owner_id: int | None = OWNER
    broken: bool = False
    asked: list[float] = field(default_factory=list)

    def get_app(self, *, deadline_seconds: float) -> AppSeen:
        """Return the App."""
        self.asked.append(deadline_seconds)
        if self.broken:
            raise Retryable("down")
        return AppSeen(
            name="ostler",
            slug="ostler",
            organization=True,
            permissions={},
            events=(),
            owner_id=self.owner_id,
            owner="acme",
        )


@pytest.fixture
def github(clusterless: Stage) -> AppOnly:
    stub = AppOnly()
    clusterless.rt.github = stub
    return stub


def came(stage: Stage, job_id: int, *, owner: int = STRANGER, **changes: Any) -> intake.Applied:
    """Deliver the webhook of a job whose account is not allowed."""
    event = queued(
        job_id,
        owner_id=owner,
        owner_login=f"org-{owner}",
        labels=("self-hosted",),
        created_at=utcnow(),
        repository=f"org-{owner}/app",
        **changes,
    )
    received = intake.Received(f"guid-{job_id}", event)
    return transaction(
        stage.rt.engine,
        lambda db: intake.apply(db, [received], budget=BUDGET, access=Access.HELD, now=utcnow()),
    )


def job(stage: Stage, job_id: int = 1) -> Row[Any]:
    (row,) = stage.rows("SELECT * FROM jobs WHERE id = :id", id=job_id)
    return row


def test_a_strangers_job_is_held_and_its_account_has_no_access(clusterless: Stage) -> None:
    applied = came(clusterless, 1)

    assert (job(clusterless).state, job(clusterless).hold_reason) == ("queued", "unknown_account")
    assert (applied.strangers, applied.wakes) == (True, frozenset())
    (account,) = clusterless.rows("SELECT access FROM accounts WHERE id = :id", id=STRANGER)
    assert account.access == "held"


def test_a_strangers_job_stays_held_when_a_restore_asked_github_about_it(clusterless: Stage) -> None:
    clusterless.rt.github = AppOnly()
    came(clusterless, 1)
    with clusterless.rt.engine.begin() as db:
        db.execute(text("UPDATE pools SET routed_at = now() - interval '1 h'"))
        db.execute(text("UPDATE epochs SET older_since = now() + interval '1 s'"))
        assert hold_open_jobs(db, limit=10) == 1
        db.execute(text("UPDATE epochs SET older_since = NULL"))
    found = UnresolvedVerdict(Move.LIFT, JobOutcome(NextStep.REQUEUE, "GitHub says that the job is queued"))
    held = job(clusterless)
    with clusterless.rt.engine.begin() as db:
        unresolved = UnresolvedJob(
            id=held.id,
            kind=Unresolved.UNKNOWN,
            state=held.state,
            installation_id=held.installation_id,
            repository=held.repository,
            pool_id=held.pool_id,
            changed_at=held.changed_at,
            ready_at=held.queued_at,
            runner_name=None,
        )
        assert apply_verdict(db, unresolved, found, now=utcnow(), who="test")

    rematch.run()
    assert job(clusterless).hold_reason == "unknown_account"
    assert clusterless.outbox.take("wake") == []


def test_no_run_of_a_stranger_is_asked_about(clusterless: Stage) -> None:
    assert came(clusterless, 1, public=True).asks == frozenset()


@pytest.mark.usefixtures("github")
def test_rematch_leaves_a_strangers_job_and_lifts_it_when_the_account_is_allowed(clusterless: Stage) -> None:
    came(clusterless, 1)
    rematch.run()
    assert job(clusterless).hold_reason == "unknown_account"
    assert clusterless.outbox.take("wake") == []

    with clusterless.rt.engine.begin() as db:
        assert set_access(db, STRANGER, Access.ALLOWED, by=author())
    rematch.run()

    assert job(clusterless).hold_reason is None
    assert clusterless.outbox.take("wake") == [{"pool_id": job(clusterless).pool_id}]


@pytest.mark.usefixtures("github")
def test_account_that_an_operator_holds_while_github_is_asked_stays_held(clusterless: Stage) -> None:
    came(clusterless, 1, owner=OWNER)
    with clusterless.rt.engine.begin() as db:
        asked = unasked_accounts(db, limit=10)
    with clusterless.rt.engine.begin() as db:
        assert set_access(db, OWNER, Access.HELD, by=author())
    with clusterless.rt.engine.begin() as db:
        assert not record_owner(db, asked, owner_id=OWNER, now=utcnow())
    assert asked == [OWNER]
    (account,) = clusterless.rows("SELECT access FROM accounts WHERE id = :id", id=OWNER)
    assert account.access == "held"


@pytest.mark.usefixtures("github")
def test_the_owner_of_the_app_is_let_in_without_an_operator(clusterless: Stage) -> None:
    came(clusterless, 1, owner=OWNER)
    came(clusterless, 2)

    ask_owner.run()
    assert clusterless.outbox.take("ostler.rematch")
    rematch.run()

    assert job(clusterless, 1).hold_reason is None
    assert job(clusterless, 2).hold_reason == "unknown_account"


def test_github_is_asked_once_about_a_stranger(clusterless: Stage, github: AppOnly) -> None:
    came(clusterless, 1)
    rematch.run()
    assert clusterless.outbox.take("ostler.ask_owner")  # the message of its webhook may have been lost
    ask_owner.run()
    ask_owner.run()
    assert len(github.asked) == 1

    assert not came(clusterless, 2).strangers
    rematch.run()
    assert clusterless.outbox.take("ostler.ask_owner") == []


@pytest.mark.parametrize("answer", ["none", "down"])
def test_a_github_that_does_not_say_whose_the_app_is_changes_nothing(
    clusterless: Stage, github: AppOnly, answer: str
) -> None:
    came(clusterless, 1, owner=OWNER)
    github.owner_id, github.broken = None, answer == "down"
    assert (execute(ask_owner) is not None) == github.broken
    assert clusterless.rows("SELECT 1 FROM accounts WHERE access = 'held' AND access_asked_at IS NULL")

    github.owner_id, github.broken = OWNER, False
    ask_owner.run()
    assert clusterless.rows("SELECT 1 FROM accounts WHERE access = 'allowed' AND id = :id", id=OWNER)


def test_a_locked_account_is_asked_about_again(clusterless: Stage, github: AppOnly) -> None:
    came(clusterless, 1)
    with clusterless.rt.engine.begin() as holder:
        holder.execute(text("SELECT FROM accounts WHERE id = :id FOR NO KEY UPDATE"), {"id": STRANGER})
        ask_owner.run()
    ask_owner.run()
    assert len(github.asked) == 2


def test_jobs_of_an_account_that_a_person_holds_are_held_and_return_to_the_queue(
    clusterless: Stage, github: AppOnly
) -> None:
    came(clusterless, 1, owner=OWNER)
    ask_owner.run()
    rematch.run()
    assert job(clusterless).hold_reason is None
    with clusterless.rt.engine.begin() as db:
        assert set_access(db, OWNER, Access.HELD, by=author("alice"))
    # GitHub says that the account owns the App, but a person has held it.
    asked = len(github.asked)
    came(clusterless, 2, owner=OWNER)
    ask_owner.run()
    clusterless.outbox.take("wake")
    rematch.run()
    assert len(github.asked) == asked
    assert [job(clusterless, each).hold_reason for each in (1, 2)] == ["unknown_account"] * 2
    assert clusterless.outbox.take("wake") == []
    with clusterless.rt.engine.begin() as db:
        assert set_access(db, OWNER, Access.ALLOWED, by=author())
    rematch.run()
    assert [job(clusterless, each).hold_reason for each in (1, 2)] == [None, None]

"""An installation that GitHub does not know is marked and skipped. The newest one is found by event, not by id."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from celery.exceptions import Retry
from cryptography.fernet import Fernet
from sqlalchemy import Connection, text

from github_adapters.endpoints.runners import Jit
from models.claims.names import INSTALLATION_NOW
from models.db.engine import transaction
from models.restore import restoring
from models.routing import installations
from models.sweeps import catch_up
from models.sweeps.orphans import scopes_of_runners
from models.upstream import backoffs
from ostler.clock import utcnow
from ostler.encryption import Cipher
from ostler.errors import NotInstalled, Suspended
from ostler.secrets import Secret
from rules.claims.fairness import Budget
from tasks.claims import mint as minting
from tasks.claims.mint import mint
from tasks.worker.limits import make_left
from tests.integration.tasks.conftest import Stage

FORGED = 2**31
BUDGET = Budget(count=1, vcpu_millicores=1000, memory_mib=1024)


class GitHubWithout:
    """A GitHub that knows all installations except some."""

    def __init__(self, *gone: int) -> None:
        self.gone = set(gone)
        self.asked: list[int] = []

    def mint(self, *, installation_id: int, name: str, **_rest: Any) -> Jit:
        self.asked.append(installation_id)
        if installation_id in self.gone:
            raise NotInstalled("the App is no longer installed for this account or repository")
        return Jit(runner_id=7, runner_name=name, config=Secret("jit"))


@pytest.fixture
def stage(clusterless: Stage) -> Stage:
    """A claim of installation 501. Its account also has an installation with a larger id that GitHub never created."""
    clusterless.rt.cipher = Cipher([Secret(Fernet.generate_key().decode())])  # type: ignore[attr-defined]
    clusterless.add_pod("pod")
    clusterless.job(1)
    for known in (501, FORGED):
        clusterless.rows(
            "INSERT INTO installations (id, account_id, created_at) VALUES (:id, 1, now() - interval '1 day')", id=known
        )
    return clusterless


def now_is(stage: Stage) -> int:
    """Return the installation of the calls to GitHub about a claim."""
    with stage.rt.engine.connect() as db:
        found: int = db.execute(text(f"SELECT {INSTALLATION_NOW} FROM claims c")).scalar_one()  # noqa: S608
    return found


def left(stage: Stage) -> list[int]:
    return [row.id for row in stage.rows("SELECT id FROM installations WHERE left_at IS NOT NULL ORDER BY id")]


def told(stage: Stage, installation: int, *, at: datetime | None) -> None:
    """Apply the event that an installation works again."""
    transaction(
        stage.rt.engine,
        lambda db: installations.come_back(
            db, installation_id=installation, account_id=1, login="acme", budget=BUDGET, at=at, now=utcnow()
        ),
    )


def test_unknown_installation_is_skipped_by_sweeps_once_it_is_marked(stage: Stage) -> None:
    stage.claim("pod", job_id=1, state="claimed")
    assert now_is(stage) == FORGED

    make_left(stage.rt.engine)(FORGED)

    assert left(stage) == [FORGED]
    assert now_is(stage) == 501


def test_installation_from_an_event_is_newer_than_one_that_only_jobs_named(stage: Stage) -> None:
    stage.claim("pod", job_id=1, state="claimed")
    stage.rows("UPDATE installations SET event_at = now() WHERE id = 501")

    assert now_is(stage) == 501


def test_last_event_decides_which_installation_is_the_newest(stage: Stage) -> None:
    stage.claim("pod", job_id=1, state="claimed")
    began = utcnow() - timedelta(hours=1)
    told(stage, 900, at=began)
    told(stage, 501, at=began + timedelta(minutes=1))  # back to the former App

    assert now_is(stage) == 501
    told(stage, 900, at=began)  # the first event again, late

    assert now_is(stage) == 501
    assert [row.installation_id for row in stage.rows("SELECT installation_id FROM jobs")] == [501]


def test_late_event_of_an_older_installation_changes_nothing_when_jobs_name_a_newer(stage: Stage) -> None:
    stage.claim("pod", job_id=1, state="claimed")

    told(stage, 501, at=utcnow() - timedelta(days=2))

    assert now_is(stage) == FORGED


def test_event_from_the_future_does_not_stay_the_newest(stage: Stage) -> None:
    stage.claim("pod", job_id=1, state="claimed")
    told(stage, 900, at=utcnow() + timedelta(days=1000))

    told(stage, 501, at=utcnow() + timedelta(seconds=1))

    assert now_is(stage) == 501


def test_event_brings_back_an_installation_that_left(stage: Stage) -> None:
    stage.claim("pod", job_id=1, state="claimed")
    for each in (501, FORGED):
        make_left(stage.rt.engine)(each)

    told(stage, 501, at=None)

    assert left(stage) == [FORGED]


def test_mint_goes_on_with_the_installation_that_works(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = stage.claim("pod", job_id=1, state="claimed")
    stage.rows("UPDATE claims SET installation_id = :id", id=FORGED)
    stage.rows("UPDATE jobs SET installation_id = :id", id=FORGED)
    github = stage.rt.github = GitHubWithout(FORGED)
    monkeypatch.setattr(mint, "retry", _retry)

    with pytest.raises(Retry):
        mint.run(claim_id=claim, chain_no=None)
    mint.run(claim_id=claim, chain_no=None)

    assert github.asked == [FORGED, 501]
    assert left(stage) == [FORGED]
    assert stage.see(claim).state == "minted"
    assert stage.see(claim).hold_reason is None


def _retry(**_: Any) -> None:
    raise Retry


def test_mint_without_another_installation_holds_its_job(stage: Stage) -> None:
    claim = stage.claim("pod", job_id=1, state="claimed")
    stage.rows("DELETE FROM installations WHERE id = :id", id=FORGED)
    stage.rt.github = GitHubWithout(501)

    mint.run(claim_id=claim, chain_no=None)

    assert left(stage) == [501]
    (job,) = stage.rows("SELECT hold_reason, hold_detail FROM jobs")
    assert (job.hold_reason, job.hold_detail) == (
        "backoff",
        "the App is no longer installed for this account or repository",
    )


class GitHubThatSuspended:
    """A GitHub that refuses every mint."""

    def mint(self, **_rest: Any) -> Jit:
        raise Suspended("the App's installation is suspended")


def job_is_due(stage: Stage) -> bool:
    """Return whether the hold of the job is checked at once."""
    (job,) = stage.rows("SELECT hold_reason, not_before <= now() AS due FROM jobs")
    assert job.hold_reason == "backoff"
    return bool(job.due)


@pytest.mark.parametrize(("github", "back"), [(GitHubWithout(501), 612), (GitHubThatSuspended(), 501)])
class TestInstallationThatComesBackWhileAMintIsRefused:
    """The job does not wait for a backoff that has ended, whenever the event arrives."""

    @pytest.fixture(autouse=True)
    def claim(self, stage: Stage, github: Any) -> int:
        """A claim of the only installation of the account, and the GitHub that refuses its mint."""
        stage.rows("DELETE FROM installations WHERE id = :id", id=FORGED)
        stage.rt.github = github
        return stage.claim("pod", job_id=1, state="claimed")

    def test_before_the_claim_is_released(self, stage: Stage, claim: int, back: int) -> None:
        mint.run(claim_id=claim, chain_no=None)
        assert not job_is_due(stage)

        told(stage, back, at=utcnow())

        assert job_is_due(stage)

    def test_before_the_job_is_held(self, stage: Stage, claim: int, back: int, monkeypatch: pytest.MonkeyPatch) -> None:
        refuse = minting.refuse

        def late(*args: Any, **kwargs: Any) -> None:
            told(stage, back, at=utcnow())
            refuse(*args, **kwargs)

        monkeypatch.setattr(minting, "refuse", late)
        mint.run(claim_id=claim, chain_no=None)

        assert job_is_due(stage)

    def test_before_the_hold_is_committed(
        self, stage: Stage, claim: int, back: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        keep = backoffs.keep
        event = threading.Thread(target=lambda: told(stage, back, at=utcnow()))

        def slow(db: Connection, kind: str, key: str) -> bool:
            kept = keep(db, kind, key)
            event.start()
            until_blocked(stage)
            return kept

        monkeypatch.setattr(backoffs, "keep", slow)
        mint.run(claim_id=claim, chain_no=None)
        event.join(10)

        assert job_is_due(stage)


def test_mint_that_works_shows_that_its_installation_did_not_leave(stage: Stage) -> None:
    claim = stage.claim("pod", job_id=1, state="claimed")
    transaction(
        stage.rt.engine,
        lambda db: installations.leave(db, installation_id=501, reason="gone", gone=True, now=utcnow()),
    )
    assert left(stage) == [501]
    stage.rt.github = GitHubWithout()

    mint.run(claim_id=claim, chain_no=None)

    assert left(stage) == []


def test_mint_that_works_after_a_sweep_met_a_false_404_brings_its_installation_back(stage: Stage) -> None:
    claim = stage.claim("pod", job_id=1, state="claimed")
    make_left(stage.rt.engine)(501)
    stage.rt.github = GitHubWithout()

    mint.run(claim_id=claim, chain_no=None)

    assert left(stage) == []


def test_jobs_that_went_over_to_a_dead_installation_return_with_the_mint_that_works(stage: Stage) -> None:
    """A false 404 moved a job to an installation that was removed, and the job is held there."""
    claim = stage.claim("pod", job_id=1, state="claimed")
    stage.job(2)
    stage.rows("UPDATE jobs SET installation_id = :id, state = 'queued' WHERE id = 2", id=FORGED)
    make_left(stage.rt.engine)(501)
    transaction(
        stage.rt.engine,
        lambda db: installations.leave(db, installation_id=FORGED, reason="gone", gone=True, now=utcnow()),
    )
    stage.rt.github = GitHubWithout(FORGED)

    mint.run(claim_id=claim, chain_no=None)

    assert left(stage) == [FORGED]
    (job,) = stage.rows("SELECT installation_id, not_before <= now() AS due FROM jobs WHERE id = 2")
    assert (job.installation_id, job.due) == (501, True)
    assert stage.outbox.take("ostler.rematch") == [{}]


@pytest.mark.parametrize(("action", "marks"), [("deleted", [501]), ("suspend", [])])
def test_only_a_removed_installation_left(stage: Stage, action: str, marks: list[int]) -> None:
    reason = installations.LEFT[action]
    transaction(
        stage.rt.engine,
        lambda db: installations.leave(
            db, installation_id=501, reason=reason, gone=action in installations.GONE, now=utcnow()
        ),
    )

    assert left(stage) == marks


def test_scopes_of_an_installation_that_left_are_not_listed(stage: Stage) -> None:
    stage.claim("pod", job_id=1, state="claimed", runner="r")
    since = utcnow() - timedelta(hours=1)

    def scopes() -> list[int]:
        return transaction(
            stage.rt.engine,
            lambda db: [each.installation_id for each in scopes_of_runners(db, since=since, unheard_since=since)],
        )

    assert scopes() == [FORGED]
    make_left(stage.rt.engine)(FORGED)
    assert scopes() == [501]
    make_left(stage.rt.engine)(501)
    assert scopes() == []


def test_restore_asks_the_installation_that_works(stage: Stage) -> None:
    def asked() -> set[int]:
        return transaction(stage.rt.engine, lambda db: {each.installation_id for each in restoring.scopes(db)})

    assert asked() == {FORGED}
    make_left(stage.rt.engine)(FORGED)
    assert asked() == {501}
    make_left(stage.rt.engine)(501)  # nobody else can be asked
    assert len(asked()) == 1


def test_catching_up_asks_the_installation_that_works(stage: Stage) -> None:
    def places() -> list[int]:
        return transaction(
            stage.rt.engine,
            lambda db: [
                row.installation_id
                for row in db.execute(catch_up._PLACES, {"now": utcnow(), "since": utcnow() - timedelta(hours=1)})
            ],
        )

    assert places() == [FORGED]
    make_left(stage.rt.engine)(FORGED)
    assert places() == [501]
    make_left(stage.rt.engine)(501)
    assert places() == []


LOCK_CLAIM = text("SELECT id FROM claims FOR NO KEY UPDATE")
LOCK_INSTALLATIONS = text("SELECT id FROM installations FOR NO KEY UPDATE NOWAIT")


def until_blocked(stage: Stage) -> None:
    """Wait until a session waits for a lock. Raises TimeoutError after 10 seconds."""
    deadline = time.monotonic() + 10
    waits = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    while not stage.rows(waits):
        if time.monotonic() > deadline:
            raise TimeoutError("nobody waits for a lock")
        time.sleep(0.02)


def lock_installations_of_locked_claim(stage: Stage, other: threading.Thread, begin: Callable[[], None]) -> None:
    """Lock the claim as the commit of a mint does and, while another thread waits for it, the installations.

    Raises the database's error if the other thread has locked the installations, because this would be a deadlock.
    """
    with stage.rt.engine.connect() as db:
        db.execute(LOCK_CLAIM)
        begin()
        try:
            until_blocked(stage)
            db.execute(LOCK_INSTALLATIONS)
        finally:
            db.rollback()
            other.join(10)


def test_event_of_an_installation_locks_it_after_the_claims(stage: Stage) -> None:
    stage.claim("pod", job_id=1, state="claimed")
    stage.rows("UPDATE claims SET installation_id = :id", id=FORGED)
    make_left(stage.rt.engine)(501)

    other = threading.Thread(target=lambda: told(stage, 501, at=utcnow()))
    lock_installations_of_locked_claim(stage, other, other.start)

    assert left(stage) == []


def test_mint_of_a_left_installation_locks_it_after_its_claim(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = stage.claim("pod", job_id=1, state="claimed")
    stage.rows("UPDATE claims SET installation_id = :id", id=FORGED)
    called, locked = threading.Event(), threading.Event()

    class Slow(GitHubWithout):
        def mint(self, *, installation_id: int, name: str, **rest: Any) -> Jit:
            called.set()
            locked.wait(10)
            return super().mint(installation_id=installation_id, name=name, **rest)

    def minting() -> None:
        with pytest.raises(Retry):
            mint.run(claim_id=claim, chain_no=None)

    stage.rt.github = Slow(FORGED)
    monkeypatch.setattr(mint, "retry", _retry)
    other = threading.Thread(target=minting)
    other.start()
    assert called.wait(10)
    lock_installations_of_locked_claim(stage, other, locked.set)

    assert left(stage) == [FORGED]

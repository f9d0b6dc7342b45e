"""A mint never lasts longer than its lease, even if GitHub is slow."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from cryptography.fernet import Fernet

from github_adapters.endpoints.runners import Jit, RunnerSeen
from models.claims import steps
from ostler.clock import utcnow
from ostler.encryption import Cipher
from ostler.errors import Gone, RateLimited, Retryable, UpstreamError
from ostler.secrets import Secret
from rules.claims.machines import allowed
from rules.routing.scopes import Scope
from tasks.claims import mint as module
from tasks.claims import mint_lease
from tasks.claims.mint import mint
from tasks.claims.mint_lease import COMMIT
from tests.integration.tasks.conftest import Stage
from tests.rows import insert_pool

MINT_LEASE = allowed("lease_mint").seconds


class SlowGitHub:
    """A GitHub that uses the whole timeout of each call, on a clock that only it moves, and records these times."""

    def __init__(self) -> None:
        self.began = utcnow()
        self.late = timedelta(0)
        self.calls: list[tuple[str, float]] = []
        self.paths: list[str] = []
        self.on_call: Callable[[], None] = lambda: None
        self.refuses: UpstreamError | None = None
        """The error of the next mints."""

    def now(self) -> datetime:
        return self.began + self.late

    def find_runner(self, *, deadline_seconds: float, name: str, **_rest: Any) -> RunnerSeen:
        self._take("find", deadline_seconds)
        return RunnerSeen(id=7, name=name, status="offline", busy=False, labels=())

    def delete_runner(self, *, deadline_seconds: float, **_rest: Any) -> None:
        self._take("delete", deadline_seconds)

    def mint(self, *, deadline_seconds: float, name: str, scope: Scope, **_rest: Any) -> Jit:
        self.paths.append(scope.path)
        self._take("mint", deadline_seconds)
        if self.refuses is not None:
            raise self.refuses
        return Jit(runner_id=8, runner_name=name, config=Secret("jit"))

    def get_installation(self, *, deadline_seconds: float, **_rest: Any) -> None:
        self._take("installation", deadline_seconds)
        raise Retryable("down")

    def _take(self, call: str, seconds: float) -> None:
        self.calls.append((call, seconds))
        self.late += timedelta(seconds=seconds)
        self.on_call()


@pytest.fixture
def github(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> SlowGitHub:
    github = SlowGitHub()
    stage.rt.github = github
    stage.rt.cipher = Cipher([Secret(Fernet.generate_key().decode())])  # type: ignore[attr-defined]
    for each in (module, mint_lease):
        monkeypatch.setattr(each, "utcnow", github.now)
    monkeypatch.setattr("tasks.worker.transactions.utcnow", github.now)
    return github


def claimed(stage: Stage) -> int:
    stage.pool(replicas=1)
    insert_pool(stage.rt.engine, namespace=stage.namespace)
    stage.rows(
        """
        INSERT INTO runner_pods (pool_id, namespace, name, uid, attempt_id, template_hash, created_at)
        SELECT id, namespace, 'small-0000000a', 'pod', 'a', 'h', now() FROM pools
        """
    )
    stage.job(1)
    return stage.claim("small-0000000a", job_id=1, state="claimed")


def lease_left(stage: Stage, claim_id: int, github: SlowGitHub) -> float:
    until: datetime | None = stage.see(claim_id).leased_until
    assert until is not None
    return (until - github.now()).total_seconds()


def test_a_mint_leaves_time_for_its_commit(stage: Stage, github: SlowGitHub) -> None:
    claim_id = claimed(stage)
    left: list[float] = []
    github.on_call = lambda: left.append(lease_left(stage, claim_id, github))

    mint.run(claim_id=claim_id, chain_no=None)

    assert [call for call, _ in github.calls] == ["mint"]
    assert github.calls[0][1] <= MINT_LEASE - COMMIT
    assert left[0] >= COMMIT - 0.1
    assert stage.see(claim_id).state == "minted"


@pytest.mark.parametrize(
    "known_by", ["UPDATE claims SET repository_id = 11", "UPDATE jobs SET repository_id = 11"], ids=["claim", "job"]
)
def test_a_runner_of_a_repository_is_made_by_its_id(stage: Stage, github: SlowGitHub, known_by: str) -> None:
    """The name might belong to another repository: the runner would be registered there, and not be found by the id."""
    claim_id = claimed(stage)
    stage.rows("UPDATE claims SET scope = 'repos/acme/shop'")
    stage.rows(known_by)

    mint.run(claim_id=claim_id, chain_no=None)

    assert github.paths == ["/repositories/11"]


def test_lookup_of_an_older_attempt_takes_its_time_from_the_same_lease(stage: Stage, github: SlowGitHub) -> None:
    claim_id = claimed(stage)
    stage.rows(
        "INSERT INTO mint_attempts (claim_id, runner_name, outcome, created_at) VALUES (:id, 'old', 'open', now())",
        id=claim_id,
    )
    left: list[float] = []
    github.on_call = lambda: left.append(lease_left(stage, claim_id, github))

    mint.run(claim_id=claim_id, chain_no=None)

    assert [call for call, _ in github.calls] == ["find", "delete", "mint"]
    assert sum(seconds for _, seconds in github.calls) <= MINT_LEASE - COMMIT + 0.2
    assert left[-1] >= COMMIT - 0.2
    assert stage.see(claim_id).state == "minted"


def test_a_mint_whose_lease_is_over_asks_for_nothing(
    stage: Stage, github: SlowGitHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim_id = claimed(stage)
    begin = steps.begin_mint

    def stopped_for_a_while(*args: Any, **kwargs: Any) -> steps.MintWork | None:
        work = begin(*args, **kwargs)
        github.late += timedelta(seconds=MINT_LEASE)
        return work

    monkeypatch.setattr(steps, "begin_mint", stopped_for_a_while)

    mint.run(claim_id=claim_id, chain_no=None)

    assert github.calls == []
    claim = stage.see(claim_id)
    assert (claim.state, claim.job_state) == ("claimed", "claimed")
    assert [row.outcome for row in stage.rows("SELECT outcome FROM mint_attempts")] == ["open"]


def test_a_mint_that_waits_for_its_turn_leaves_no_row_however_often(
    stage: Stage, github: SlowGitHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim_id = claimed(stage)
    sent: list[float] = []

    class Signature:
        def apply_async(self) -> None:
            """Send nothing. The test runs the task again."""

    def again(*, countdown: float, retries: int) -> Signature:
        assert retries == 0
        sent.append(countdown)
        return Signature()

    monkeypatch.setattr(mint, "signature_from_request", again)
    github.refuses = RateLimited("Ostler's own rate limit", after=1, paced=True)
    for _ in range(3):
        mint.run(claim_id=claim_id, chain_no=None)
    assert sent == [1, 1, 1]
    assert stage.rows("SELECT * FROM mint_attempts") == []

    github.refuses = None
    mint.run(claim_id=claim_id, chain_no=None)

    assert stage.see(claim_id).state == "minted"
    assert [row.outcome for row in stage.rows("SELECT outcome FROM mint_attempts")] == ["minted"]


def test_a_404_that_took_the_whole_lease_backs_off_all_the_same(stage: Stage, github: SlowGitHub) -> None:
    claim_id = claimed(stage)
    github.refuses = Gone("404")

    mint.run(claim_id=claim_id, chain_no=None)

    assert [call for call, _ in github.calls] == ["mint"]
    assert stage.see(claim_id).state == "releasing"
    assert [row.hold_reason for row in stage.rows("SELECT hold_reason FROM jobs")] == ["backoff"]
    assert [(row.kind, row.key) for row in stage.rows("SELECT kind, key FROM backoffs")] == [("account", "1")]
    assert [row.outcome for row in stage.rows("SELECT outcome FROM mint_attempts")] == ["refused"]


def test_a_mint_that_came_too_late_is_deregistered_before_anything_that_may_fail(
    stage: Stage, github: SlowGitHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim_id = claimed(stage)
    stage.rows(
        """
        INSERT INTO backoffs (kind, key, failures, reason, not_before, changed_at)
        VALUES ('repository', 'acme/shop', 1, '404', now(), now())
        """
    )
    stage.rows("UPDATE jobs SET state = 'queued', hold_reason = 'backoff', not_before = now() + interval '1 hour'")

    def move_on() -> None:
        stage.rows("UPDATE claims SET chain_no = chain_no + 1 WHERE id = :id", id=claim_id)

    github.on_call = move_on

    def away(*_: Any, **__: Any) -> None:
        raise ConnectionError("no Redis")

    monkeypatch.setattr(stage.rt.waker, "send", away)

    with pytest.raises(ConnectionError):
        mint.run(claim_id=claim_id, chain_no=None)

    assert [call for call, _ in github.calls] == ["mint", "delete"]
    assert [row.outcome for row in stage.rows("SELECT outcome FROM mint_attempts")] == ["removed"]

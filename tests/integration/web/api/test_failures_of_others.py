"""A token that is limited to accounts reveals nothing about the failures of other accounts' jobs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from ostler.clock import utcnow
from rules.token_scopes import TokenScope
from tests.integration.web.api.conftest import Stage

OURS, THEIRS = 7, 8
WORDS = "container `runner` exited 134 after a line of globex"


@pytest.fixture
def pool_id(stage: Stage) -> int:
    stage.account(OURS, "acme")
    stage.account(THEIRS, "globex")
    pool_id = stage.pool()
    stage.job(100, pool_id=pool_id)
    return pool_id


def fail(stage: Stage, pool_id: int, number: int, *, account: int, ago: float, why: str, code: int | None) -> None:
    """Record a runner of the pool that ended without an execution."""
    stage.execute(
        """
        INSERT INTO runner_failures (claim_id, pool_id, template_hash, account_id, job_id, pod_uid, claimed_at, at,
                                     exit_code, why)
        VALUES (:id, :pool, 'h', :account, :id, :uid, :at, :at, :code, :why)
        """,
        id=number,
        pool=pool_id,
        account=account,
        uid=f"failed-{number}",
        why=why,
        code=code,
        at=utcnow() - timedelta(seconds=ago),
    )


def why(stage: Stage, *accounts: int) -> Any:
    """Return the reason why the job of our account waits. If accounts are given, the token is limited to them."""
    token = stage.token(TokenScope.READ, accounts=list(accounts)) if accounts else stage.reader
    return stage.client.call("GET", "/api/v1/jobs/100", token=token).json()["why"]["summary"]


def test_limited_token_reads_no_words_of_the_failure_of_another_account(stage: Stage, pool_id: int) -> None:
    fail(stage, pool_id, 1, account=OURS, ago=30, why="ours", code=1)
    for number in (2, 3):
        fail(stage, pool_id, number, account=THEIRS, ago=20 - number, why=WORDS, code=134)

    ours = why(stage, OURS)

    assert "The runners of pool small do not start: 3 runners in a row ended without a job. Ostler tries one" in ours
    assert "134" not in ours
    assert WORDS in why(stage)
    assert WORDS in why(stage, OURS, THEIRS)


def test_limited_token_reads_the_words_of_its_own_failure_under_a_brake_of_the_pool(stage: Stage, pool_id: int) -> None:
    for number in (1, 2):
        fail(stage, pool_id, number, account=THEIRS, ago=30 - number, why=WORDS, code=134)
    fail(stage, pool_id, 3, account=OURS, ago=10, why="ours", code=5)

    assert "the last runner: exit code 5, ours." in why(stage, OURS)


def test_limited_token_reads_that_a_runner_is_too_old_without_whose_job_failed(stage: Stage, pool_id: int) -> None:
    fail(stage, pool_id, 1, account=THEIRS, ago=10, why=WORDS, code=7)

    ours = why(stage, OURS)

    assert "GitHub refuses the version of the runner as too old; 1 runner in a row ended" in ours
    assert "exit code" not in ours


def shared_pod(stage: Stage, pool_id: int) -> int:
    """Add a Pod that a claim of ours returned, and that then failed a job of the other account. Return our claim."""
    stage.execute(
        """
        INSERT INTO runner_pods (pool_id, namespace, name, uid, attempt_id, template_hash, created_at, terminal_at,
                                 poller_exit_code, runner_exit_code, exit_reason, event_reason, event_by, event_message)
        VALUES (:pool, 'runners', 'shared', 'shared', 'a', 'h', now(), now(), 0, 987654321, 'OOMKilled', 'Evicted',
                'kubelet', 'a note of globex')
        """,
        pool=pool_id,
    )
    stage.job(200, pool_id=pool_id, account_id=THEIRS, repository="globex/app")
    made = [
        stage.execute(
            """
            INSERT INTO claims (purpose, job_id, runner_pod_id, pod_uid, pool_id, account_id, scope, vcpu, memory,
                                state, created_at, changed_at, due_at, delivered_at, ended_at, end_reason)
            SELECT 'job', CAST(:job AS bigint), id, uid, pool_id, CAST(:account AS bigint), 'orgs/x', 1, 1, 'ended',
                   now(), now(), now(), CASE WHEN :delivered THEN now() END, now(), :end
            FROM runner_pods RETURNING id
            """,
            job=job,
            account=account,
            delivered=delivered,
            end="pod_spent" if delivered else "released",
        )[0].id
        for job, account, delivered in ((100, OURS, False), (200, THEIRS, True))
    ]
    claim: int = made[0]
    return claim


@pytest.mark.parametrize("path", ["/pods/shared", "/jobs/100", "/claims", "/claims/{claim}"])
def test_limited_token_reads_not_how_a_pod_ended_that_a_job_of_another_account_had(
    stage: Stage, pool_id: int, path: str
) -> None:
    url = f"/api/v1{path.format(claim=shared_pod(stage, pool_id))}"

    def read(*accounts: int) -> str:
        token = stage.token(TokenScope.READ, accounts=list(accounts)) if accounts else stage.reader
        answer = stage.client.call("GET", url, token=token)
        assert answer.status_code == 200
        assert "shared" in answer.text
        return answer.text

    words = ["987654321", "OOMKilled"] + (["a note of globex", "Evicted"] if path.startswith("/pods") else [])
    assert [word for word in words if word in read(OURS)] == []
    assert [word for word in words if word not in read()] == []
    assert [word for word in words if word not in read(OURS, THEIRS)] == []
    stage.execute("UPDATE claims SET delivered_at = NULL WHERE account_id = :theirs", theirs=THEIRS)
    assert [word for word in words if word not in read(OURS)] == [], "how it ended is nobody else's"
